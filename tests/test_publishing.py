"""Publishing for real: twine and uv to pypiserver and devpi, and from each and from a static site with pip and uv.

The wheels are built by the hook from synthetic artifacts; tools and servers are the real ones.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import pytest

from build_factories import TABLE, make_artifacts, make_project
from factories import A100, H100, make_wheel
from hatch_model_cache.publish import shelf, site, variants
from model_cache.origin.trust import Trust
from model_cache.wheel.names import data_package, normalize
from package_indexes import PASSWORD, USER, FileServer, Index, devpi, environment, pypiserver, run

pytestmark = pytest.mark.index

REPOSITORY = Path(__file__).parent.parent
SERVING = "hatch-model-cache"
NAMES = ("model-cache-synthetic-1b-h100-sxm5-80gb", "model-cache-synth.etic-v1.5-h100-sxm5-80gb")
"""One name, and one that indexes spell in another way."""
MODELS = ("test-org/Synthetic-1B", "test-org/Synth.etic-v1.5")


def hatchling(folder: Path, *arguments: str | Path, **changes: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder, **changes), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is to be published: two model caches, their sdists, and the serving side."""
    folder = tmp_path_factory.mktemp("publishing")
    for name, model in zip(NAMES, MODELS, strict=True):
        table = TABLE | {"model": model, "served-as": [model]}
        project = make_project(folder / name, table, name=name)
        compiled = make_artifacts(folder / f"{name}-artifacts", project)
        hatchling(project, "-d", folder / "dist", MODEL_CACHE_ARTIFACTS=str(compiled), HOME=str(folder / "home"))
    hatchling(REPOSITORY, "-t", "wheel", "-d", folder / "dist")
    return folder / "dist"


def wheel_of(dist: Path, name: str) -> Path:
    [wheel] = dist.glob(f"{data_package(name)}-*.whl")
    return wheel


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def twine(home: Path, *arguments: str | Path, program: tuple[str, ...] = ("-m", "twine")) -> str:
    done = run(sys.executable, *program, *arguments, home=home)
    assert done.returncode == 0, done.stdout
    return done.stdout


def publish(index: Index, dist: Path, home: Path) -> None:
    """The first cache by twine, everything else by uv."""
    stems = [data_package(name) for name in NAMES]
    first = sorted(path for path in dist.iterdir() if path.name.startswith(f"{stems[0]}-"))
    rest = sorted(path for path in dist.iterdir() if path not in first)
    assert (len(first), len(rest)) == (2, 3)
    login = ("--non-interactive", "-u", USER, "-p", PASSWORD)
    twine(home, "upload", "--repository-url", index.upload, *login, *first)
    login = ("--username", USER, "--password", PASSWORD, "--keyring-provider", "disabled")
    done = run(*uv("publish"), "--publish-url", index.upload, "--trusted-publishing", "never", *login, *rest, home=home)
    assert done.returncode == 0, done.stdout


def uv(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "uv", *arguments]


@pytest.fixture(scope="session")
def static(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("static") / "site"
    site.build(shelf.read([dist], Trust.of_this_host({}), {}), site.Site.at(folder))
    return folder


@pytest.fixture(scope="session", params=["pypiserver", "devpi", "static"])
def index(request: pytest.FixtureRequest, dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """Each index with everything published."""
    home = tmp_path_factory.mktemp(request.param)
    if request.param == "static":
        with FileServer(request.getfixturevalue("static")) as server:
            yield Index(f"{server.url}simple/")
        return
    with (pypiserver if request.param == "pypiserver" else devpi)(home / "server") as found:
        publish(found, dist, home / "client")
        yield found


@pytest.fixture(params=["pip", "uv"])
def installer(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "pip":
        return [sys.executable, "-m", "pip", "install", "--no-input"]
    return uv("pip", "install", "--python", sys.executable)


def installed(folder: Path, home: Path) -> str:
    """What the serving side that was installed says of what was installed with it."""
    code = "import sys; from model_cache.cli import main; sys.exit(main(['verify']))"
    done = run(sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {code}", home=home)
    assert done.returncode == 0, done.stdout
    return done.stdout


def requirements(folder: Path, *wheels: Path, wrong: bool = False) -> Path:
    lines = []
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        found = digest(wheel)
        lines.append(f"{name}=={version} --hash=sha256:{found[::-1] if wrong else found}\n")
    path = folder / "requirements.txt"
    path.write_text("".join(lines))
    return path


# From each index, with each installer


@pytest.mark.parametrize("name", NAMES)
def test_install_by_name(index: Index, installer: list[str], name: str, tmp_path: Path) -> None:
    """The dependency comes from the same index, and what was installed is what was built."""
    target = tmp_path / "target"
    done = run(*installer, "--index-url", index.simple, "--target", target, name, home=tmp_path)
    assert done.returncode == 0, done.stdout
    assert f"intact: {name} 1.0.0" in installed(target, tmp_path)


@pytest.mark.parametrize(
    "spelling", ["Model_Cache.Synth-etic.v1-5_H100.sxm5.80GB", "model-cache-synth-etic-v1-5-h100-sxm5-80gb"]
)
def test_names_that_are_one(index: Index, installer: list[str], spelling: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    done = run(*installer, "--index-url", index.simple, "--target", target, "--no-deps", spelling, home=tmp_path)
    assert done.returncode == 0, done.stdout
    assert (target / data_package(NAMES[1]) / "manifest.json").is_file()


def test_install_with_hashes(index: Index, installer: list[str], dist: Path, tmp_path: Path) -> None:
    wheels = wheel_of(dist, NAMES[0]), wheel_of(dist, SERVING)
    command = [*installer, "--index-url", index.simple, "--require-hashes", "--target"]
    done = run(*command, tmp_path / "target", "-r", requirements(tmp_path, *wheels), home=tmp_path)
    assert done.returncode == 0, done.stdout
    assert f"intact: {NAMES[0]} 1.0.0" in installed(tmp_path / "target", tmp_path)
    done = run(*command, tmp_path / "other", "-r", requirements(tmp_path, *wheels, wrong=True), home=tmp_path)
    assert done.returncode != 0
    assert re.search(r"hash", done.stdout, re.IGNORECASE)
    assert not list((tmp_path / "other").glob("model_cache_*"))


def test_what_is_downloaded_is_what_was_built(index: Index, dist: Path, tmp_path: Path) -> None:
    """A21: not one byte of the wheel changes on its way."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--index-url", index.simple, "--dest", "got"]
    done = run(*command, NAMES[0], home=tmp_path)
    assert done.returncode == 0, done.stdout
    [got] = (tmp_path / "got").iterdir()
    assert got.name == wheel_of(dist, NAMES[0]).name
    assert digest(got) == digest(wheel_of(dist, NAMES[0]))


def test_an_sdist_carries_the_recipe_only(index: Index, dist: Path, tmp_path: Path) -> None:
    """A21: it is on the indexes that take one; the static site leaves it out, since pip would compile it on a host."""
    page = f"{index.simple}{normalize(NAMES[0])}/"
    with urllib.request.urlopen(page, timeout=30) as answer:
        links = re.findall(r'href="([^"]+)"', answer.read().decode())
    assert [link for link in links if ".whl" in link]
    sdists = [link for link in links if ".tar.gz" in link]
    assert len(sdists) == (1 if index.upload else 0)
    for link in sdists:
        got = tmp_path / "got.tar.gz"
        urllib.request.urlretrieve(urljoin(page, html.unescape(link)), got)
        assert digest(got) == digest(dist / f"{data_package(NAMES[0])}-1.0.0.tar.gz")
        with tarfile.open(got) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        assert names == {"pyproject.toml", "PKG-INFO", "model/config.json", "model/tokenizer_config.json"}


# Tools


def test_twine_takes_the_metadata(dist: Path, tmp_path: Path) -> None:
    """A22: hatchling's newest metadata version is more than older tools and indexes know; ours is 2.4."""
    files = sorted(dist.glob("model_cache_*"))
    assert len(files) == 4
    told = twine(tmp_path, "check", *files)
    assert told.count("PASSED") == 4


def test_an_older_twine_takes_it_too(dist: Path, tmp_path: Path) -> None:
    """A22: twine 6.1 refuses metadata 2.5."""
    wheel = wheel_of(dist, NAMES[0])
    older = uv("tool", "run", "--from", "twine==6.1.0", "twine")
    with pypiserver(tmp_path / "server") as found:
        login = ("--non-interactive", "-u", USER, "-p", PASSWORD, "--repository-url", found.upload)
        # uv fetches that twine as this machine fetches packages
        steering = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_"))}
        done = run(*older, "upload", *login, wheel, home=tmp_path, **steering)
        assert done.returncode == 0, done.stdout
        assert digest(tmp_path / "server/packages" / wheel.name) == digest(wheel)


def test_an_upload_without_the_password_is_refused(dist: Path, tmp_path: Path) -> None:
    """What the other tests upload gets in for its password."""
    with pypiserver(tmp_path / "server") as found:
        login = ("--non-interactive", "-u", USER, "-p", "wrong", "--repository-url", found.upload)
        done = run(sys.executable, "-m", "twine", "upload", *login, wheel_of(dist, NAMES[0]), home=tmp_path)
        assert done.returncode != 0
        assert not list((tmp_path / "server/packages").iterdir())


# One index


@pytest.fixture
def attackers(tmp_path: Path, dist: Path) -> Iterator[str]:
    """An index of somebody else, with a newer version of our private name, and our version with other content."""
    theirs = tmp_path / "theirs"
    for version in ("1.0.0", "99.0"):
        make_wheel(theirs, name=NAMES[0], version=version)
    (theirs / wheel_of(dist, SERVING).name).write_bytes(wheel_of(dist, SERVING).read_bytes())
    out = tmp_path / "their-site"
    site.build(shelf.read([theirs], Trust.of_this_host({}), {}), site.Site.at(out))
    with FileServer(out) as server:
        yield f"{server.url}simple/"


def install_lines(page: str) -> tuple[str, str, str]:
    """What the page says for pip, for uv and as requirements, for the first of NAMES."""
    lines = [html.unescape(text) for text in re.findall(r"<pre[^>]*>([^<]*)</pre>", page)]
    pip, bare, hashed = (line for line in lines if data_package(NAMES[0]).replace("_", "-") in line)
    return pip, bare, hashed


@pytest.mark.parametrize("tool", ["pip", "uv", "with hashes"])
def test_the_install_lines_of_the_page_take_ours(dist: Path, attackers: str, tool: str, tmp_path: Path) -> None:
    """A20: one index, or a hash, and a public name that is newer does not win.

    With hashes it holds even on a host whose configuration names the other index.
    """
    out = tmp_path / "ours"
    with FileServer(out) as server:
        site.build(shelf.read([dist], Trust.of_this_host({}), {}), site.Site.at(out), url=server.url)
        pip, bare, hashed = install_lines((out / "index.html").read_text())
        (tmp_path / "requirements.txt").write_text(hashed)
        [command] = set(re.findall(r"<code>(pip install [^<]*)</code>", (out / "index.html").read_text()))
        line = {"pip": pip, "uv": bare, "with hashes": command}[tool]
        program, *arguments = shlex.split(line)
        steered = {"PIP_EXTRA_INDEX_URL": attackers} if tool == "with hashes" else {}
        options = ["--python", sys.executable] if program == "uv" else []
        target = tmp_path / "target"
        done = run(sys.executable, "-m", program, *arguments, *options, "--target", target, home=tmp_path, **steered)
    assert done.returncode == 0, done.stdout
    assert f"intact: {NAMES[0]} 1.0.0" in installed(target, tmp_path)


def test_a_second_index_is_the_danger(dist: Path, static: Path, attackers: str, tmp_path: Path) -> None:
    """A20: what the lines above guard against does happen without them."""
    with FileServer(static) as server:
        command = [sys.executable, "-m", "pip", "install", "--index-url", f"{server.url}simple/", "--no-deps"]
        target = tmp_path / "target"
        done = run(*command, "--target", target, NAMES[0], home=tmp_path, PIP_EXTRA_INDEX_URL=attackers)
    assert done.returncode == 0, done.stdout
    assert (target / f"{data_package(NAMES[0])}-99.0.dist-info").is_dir()


# The static site


def test_the_metadata_is_enough_to_resolve(static: Path, installer: list[str], tmp_path: Path) -> None:
    """PEP 658: what a wheel needs is known without downloading it."""
    with FileServer(static) as server:
        command = [*installer, "--index-url", f"{server.url}simple/", "--target", tmp_path / "target", "--dry-run"]
        done = run(*command, NAMES[0], home=tmp_path)
        assert done.returncode == 0, done.stdout
        wheel = next(path for path in server.asked if data_package(NAMES[0]) in path and path.endswith(".metadata"))
        if "uv" in installer:  # pip 26 downloads for a dry run what it would install
            assert wheel.removesuffix(".metadata") not in server.asked


def test_a_server_that_negotiates_serves_json(static: Path, installer: list[str], tmp_path: Path) -> None:
    """PEP 691: with the right media type both installers take the JSON pages, which have sizes and upload times."""
    with FileServer(static, typed=True) as server:
        target = tmp_path / "target"
        done = run(*installer, "--index-url", f"{server.url}simple/", "--target", target, NAMES[0], home=tmp_path)
        assert done.returncode == 0, done.stdout
        pages = [path for path in server.asked if path.startswith("/simple/")]
    assert pages
    assert all(path.endswith("/index.json") for path in pages), pages
    assert (target / data_package(NAMES[0]) / "manifest.json").is_file()


def test_from_a_folder(static: Path, installer: list[str], tmp_path: Path) -> None:
    """A mounted share is an index as it is."""
    target = tmp_path / "target"
    done = run(*installer, "--index-url", f"{static.as_uri()}/simple/", "--target", target, NAMES[0], home=tmp_path)
    assert done.returncode == 0, done.stdout
    assert f"intact: {NAMES[0]} 1.0.0" in installed(target, tmp_path)


def test_a_withdrawn_version_is_not_chosen(installer: list[str], tmp_path: Path) -> None:
    """PEP 592."""
    newest = make_wheel(tmp_path / "dist", name=NAMES[0], version="2.0.0")
    make_wheel(tmp_path / "dist", name=NAMES[0], version="1.0.0")
    (tmp_path / "dist/index.toml").write_text(f'[wheels."{newest.name}"]\nyanked = "a reason"\n')
    out = tmp_path / "site"
    site.build(shelf.read([tmp_path / "dist"], Trust.of_this_host({}), {}), site.Site.at(out))
    with FileServer(out) as server:
        command = [*installer, "--index-url", f"{server.url}simple/", "--no-deps", "--target"]
        done = run(*command, tmp_path / "any", NAMES[0], home=tmp_path)
        exact = run(*command, tmp_path / "exact", f"{NAMES[0]}==2.0.0", home=tmp_path)
    assert (done.returncode, exact.returncode) == (0, 0), done.stdout + exact.stdout
    assert (tmp_path / "any" / f"{data_package(NAMES[0])}-1.0.0.dist-info").is_dir()
    assert (tmp_path / "exact" / f"{data_package(NAMES[0])}-2.0.0.dist-info").is_dir()


def test_a_local_version(installer: list[str], tmp_path: Path) -> None:
    """A23: public indexes refuse `+cu130`; ours has it, under an address in which `+` is encoded."""
    make_wheel(tmp_path / "dist", name=NAMES[0], version="1.0.0+cu130")
    out = tmp_path / "site"
    site.build(shelf.read([tmp_path / "dist"], Trust.of_this_host({}), {}), site.Site.at(out))
    with FileServer(out) as server:
        command = [*installer, "--index-url", f"{server.url}simple/", "--no-deps", "--target", tmp_path / "target"]
        done = run(*command, f"{NAMES[0]}==1.0.0+cu130", home=tmp_path)
        assert any("%2Bcu130" in path for path in server.asked)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "target" / f"{data_package(NAMES[0])}-1.0.0+cu130.dist-info").is_dir()


# Wheel variants: experimental


@pytest.fixture(scope="module")
def variant_index(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    """One model's caches for two architectures, as wheels and as variants of one project."""
    folder = tmp_path_factory.mktemp("variants")
    for target in (A100, H100):
        changes = {"kernels.0.arch": "sm_" + target["compute_capability"].replace(".", "")}
        wheel = make_wheel(folder / "dist", name=f"model-cache-v-{target['name']}", targets=(target,), changes=changes)
        for one in variants.plan([wheel]):
            variants.make(one, folder / "dist")
    site.build(shelf.read([folder / "dist"], Trust.of_this_host({}), {}), site.Site.at(folder / "site"))
    with FileServer(folder / "site") as server:
        yield server


@pytest.mark.parametrize("typed", [False, True], ids=["html", "json"])
@pytest.mark.parametrize(("capability", "label"), [("8.0", "sm80"), ("9.0", "sm90"), ("12.0", None)])
def test_uv_chooses_the_variant_of_the_gpu(
    variant_index: FileServer, capability: str, label: str | None, typed: bool, tmp_path: Path
) -> None:
    """uv's own GPU detection is told what to find: there is no GPU here. Its preview is what the drafts describe."""
    variant_index.typed = typed
    gpu = {"NV_VARIANT_PROVIDER_FORCE_SM_ARCH": capability, "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": "13.0"}
    target = tmp_path / "target"
    command = uv("pip", "install", "--preview-features", "wheel-variants", "--python", sys.executable, "--no-deps")
    options = ["--index-url", f"{variant_index.url}simple/", "--target", target]
    done = run(*command, *options, "model-cache-v", home=tmp_path, **gpu)
    if label is None:
        assert done.returncode != 0
        assert "only unsupported wheel variants" in done.stdout
        return
    assert done.returncode == 0, done.stdout
    manifest = json.loads((target / "model_cache_v/manifest.json").read_text())
    assert [one["compute_capability"] for one in manifest["targets"]] == [capability]
    assert f'"{label}"' in (target / "model_cache_v-1.0.0.dist-info/variant.json").read_text()


def test_pip_does_not_see_variants(variant_index: FileServer, tmp_path: Path) -> None:
    """They stand beside the wheels, never for them."""
    variant_index.typed = False
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--index-url", f"{variant_index.url}simple/"]
    done = run(*command, "--target", tmp_path / "a", "model-cache-v", home=tmp_path)
    assert (done.returncode != 0, "No matching distribution" in done.stdout) == (True, True)
    done = run(*command, "--target", tmp_path / "b", "model-cache-v-h100-sxm5-80gb", home=tmp_path)
    assert done.returncode == 0, done.stdout
