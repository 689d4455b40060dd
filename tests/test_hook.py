"""The build hook, by real builds of real projects. The payload is synthetic; the frontends are not."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.metadata import Metadata

import model_cache
from build_factories import MODEL, NAME, PACKAGE, TABLE, document, make_artifacts, make_project, write_artifacts
from hatch_model_cache.packing.artifacts import read
from hatch_model_cache.packing.pack import pack
from hatch_model_cache.packing.wheel_check import check_wheel
from hatch_model_cache.recipe.file import load_recipe
from hatch_model_cache.recipe.recipe import Recipe
from model_cache.errors import CompileError
from model_cache.wheel.lookup import open_payload
from model_cache.wheel.verify import verify

REPOSITORY = Path(__file__).parent.parent
STEM = f"{PACKAGE}-1.0.0"
WHEEL = f"{STEM}-cp311-none-any.whl"

pytestmark = pytest.mark.fleet


def environment(**changes: str | Path) -> dict[str, str]:
    """The tests' environment without what would steer a build; a home that is in no payload."""
    steering = re.compile(r"(MODEL_CACHE|HATCH|PIP_FIND|UV_FIND|SOURCE_DATE|PYTHONPATH|VIRTUAL_ENV)")
    kept = {name: value for name, value in os.environ.items() if not steering.match(name)}
    return kept | {name: str(value) for name, value in changes.items()}


def run(*command: str | Path, cwd: Path, **changes: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment(**changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )


def hatchling(project: Path, *arguments: str | Path, **changes: str | Path) -> subprocess.CompletedProcess[str]:
    """One build with the hatchling of this environment: no isolation, the fastest way to run the hook."""
    return run(sys.executable, "-m", "hatchling", "build", *arguments, cwd=project, **changes)


def refused(project: Path, *arguments: str | Path, **changes: str | Path) -> str:
    """The output of a build that must fail and leave nothing."""
    done = hatchling(project, *arguments, **changes)
    assert done.returncode, done.stdout
    assert "Traceback" not in done.stdout
    assert not list((project / "dist").glob("*")), done.stdout
    return done.stdout


def built(project: Path, **changes: str | Path) -> tuple[Path, str]:
    """The wheel of a build that must succeed, and its output."""
    done = hatchling(project, "-t", "wheel", **changes)
    assert not done.returncode, done.stdout
    (wheel,) = (project / "dist").glob("*.whl")
    return wheel, done.stdout


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def dist_info(wheel: Path, name: str) -> str:
    return next(data for member, data in members(wheel).items() if member.endswith(f".dist-info/{name}")).decode()


def sdist_members(project: Path) -> set[str]:
    (sdist,) = (project / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts for the recipe that `make_project` writes."""
    folder = tmp_path_factory.mktemp("compiled")
    return make_artifacts(folder / "artifacts", make_project(folder / "project"))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, compiled: Path) -> Path:
    """The recipe project with what hatchling alone has built of it: an sdist and a wheel."""
    project = make_project(tmp_path_factory.mktemp("finished") / "project")
    done = hatchling(project, MODEL_CACHE_ARTIFACTS=compiled)
    assert not done.returncode, done.stdout
    return project


@pytest.fixture(scope="session")
def links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of this very source: isolated builds take hatch-model-cache from it."""
    folder = tmp_path_factory.mktemp("links")
    done = hatchling(REPOSITORY, "-t", "wheel", "-d", folder)
    assert not done.returncode, done.stdout
    return folder


@pytest.fixture(scope="session")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an empty virtual environment with pip."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, env=environment())
    return folder / "bin/python"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


# Every frontend


@pytest.fixture(scope="session")
def frontends(
    tmp_path_factory: pytest.TempPathFactory, compiled: Path, links: Path, venv: Path
) -> dict[str, tuple[Path, subprocess.CompletedProcess[str]]]:
    """The same recipe project built by each frontend, in isolation, each in a directory of its own."""
    python, folder = Path(sys.executable), tmp_path_factory.mktemp("frontends")
    commands: dict[str, list[str | Path]] = {
        "python -m build": [python, "-m", "build"],
        "python -m build --wheel": [python, "-m", "build", "--wheel"],
        "hatch build": [python, "-m", "hatch", "build"],
        "uv build": [python, "-m", "uv", "build", "--python", python],
        "pip wheel": [venv, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", "dist", "."],
    }

    def build(item: tuple[int, str]) -> tuple[str, tuple[Path, subprocess.CompletedProcess[str]]]:
        index, name = item
        project = make_project(folder / f"{index}/project")
        done = run(
            *commands[name],
            cwd=project,
            MODEL_CACHE_ARTIFACTS=compiled,
            PIP_FIND_LINKS=links,
            PIP_DISABLE_PIP_VERSION_CHECK="1",
            UV_FIND_LINKS=links,
            HATCH_DATA_DIR=folder / f"{index}/hatch",
            TMPDIR=_directory(folder / f"{index}/tmp"),
        )
        return name, (project, done)

    with ThreadPoolExecutor(2) as pool:
        return dict(pool.map(build, enumerate(commands)))


def _directory(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def test_every_frontend_gives_the_same_wheel(
    frontends: dict[str, tuple[Path, subprocess.CompletedProcess[str]]], finished: Path
) -> None:
    """A21: also those that build the wheel from the unpacked sdist, in another directory."""
    payloads, wheels = {}, {}
    for name, (project, done) in frontends.items():
        assert not done.returncode, (name, done.stdout)
        (wheel,) = (project / "dist").glob("*.whl")
        assert wheel.name == WHEEL, name
        payloads[name] = {path: data for path, data in members(wheel).items() if ".dist-info/" not in path}
        # The same hatchling writes the same bytes; an isolated build may have fetched another.
        wheels[name, dist_info(wheel, "WHEEL")] = wheel.read_bytes()
    alone = members(finished / "dist" / WHEEL)
    first = {path: data for path, data in alone.items() if ".dist-info/" not in path}
    assert f"{PACKAGE}/manifest.json" in first
    assert len(first) == 2
    assert all(payload == first for payload in payloads.values())
    generators = {generator for _, generator in wheels}
    assert len(set(wheels.values())) == len(generators)


def test_frontends_leave_nothing_behind(
    frontends: dict[str, tuple[Path, subprocess.CompletedProcess[str]]],
) -> None:
    for name, (project, _) in frontends.items():
        assert not list((project.parent / "tmp").glob("*model-cache*")), name
        assert {path.name for path in project.iterdir()} <= {"dist", "model", "pyproject.toml"}, name


def test_the_wheel_is_data_only(finished: Path) -> None:
    wheel = finished / "dist" / WHEEL
    content = members(wheel)
    blobs = [name for name in content if "/blobs/" in name]
    info = f"{STEM}.dist-info"
    assert sorted(content) == sorted(
        [f"{PACKAGE}/manifest.json", *blobs]
        + [
            f"{info}/{name}"
            for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "sboms/model-cache.cdx.json")
        ]
    )
    schema = json.loads((Path(model_cache.__file__).parent / "wheel/manifest.schema.json").read_text())
    manifest = json.loads(content[f"{PACKAGE}/manifest.json"])
    jsonschema.Draft202012Validator(schema).validate(manifest)
    assert (manifest["name"], manifest["version"]) == (NAME, "1.0.0")
    assert manifest["build"]["recipe_digest"] == load_recipe(finished).digest()
    assert str(finished).encode() not in b"".join(content.values())
    assert {tuple(info.date_time[:3]) for info in zipfile.ZipFile(wheel).infolist()} == {(2020, 2, 2)}


def test_the_metadata(finished: Path) -> None:
    """A22: upload tools and indexes older than Core Metadata 2.5 take both files."""
    wheel = finished / "dist" / WHEEL
    texts = [dist_info(wheel, "METADATA")]
    with tarfile.open(finished / f"dist/{STEM}.tar.gz") as archive:
        member = archive.extractfile(f"{STEM}/PKG-INFO")
        assert member is not None
        texts.append(member.read().decode())
    assert texts[0] == texts[1]
    metadata = Metadata.from_email(texts[0], validate=True)
    assert metadata.metadata_version == "2.4"
    assert metadata.name == NAME
    assert [str(requirement) for requirement in metadata.requires_dist or []] == [
        "hatch-model-cache",
        'vllm==0.33.0; extra == "vllm"',
    ]
    assert dist_info(wheel, "entry_points.txt") == f"[model_cache]\n{NAME} = {PACKAGE}\n"
    assert "Tag: cp311-none-any\n" in dist_info(wheel, "WHEEL")


def test_the_sdist_carries_the_recipe_only(finished: Path) -> None:
    assert sdist_members(finished) == {
        "pyproject.toml",
        "PKG-INFO",
        "model/config.json",
        "model/tokenizer_config.json",
    }


def test_the_serving_side_accepts_it(finished: Path) -> None:
    with open_payload(str(finished / "dist" / WHEEL)) as payload:
        assert verify(payload).manifest.model.served_as == (MODEL, "/models/synthetic")


def test_pip_installs_it(
    frontends: dict[str, tuple[Path, subprocess.CompletedProcess[str]]], links: Path, venv: Path
) -> None:
    wheel = frontends["python -m build"][0] / "dist" / WHEEL
    done = run(venv, "-m", "pip", "install", "--no-index", "--find-links", links, wheel, cwd=wheel.parent)
    assert not done.returncode, done.stdout
    program = (
        "import importlib.metadata as m, pathlib;"
        "(e,) = m.entry_points(group='model_cache'); d = m.distribution(e.name);"
        "print(e.name, e.value, d.metadata['Metadata-Version']);"
        "print(*sorted(p.name for p in pathlib.Path(d.locate_file(e.value)).rglob('*') if p.is_file()))"
    )
    done = run(venv, "-c", program, cwd=wheel.parent)
    entry, files = done.stdout.splitlines()
    assert entry == f"{NAME} {PACKAGE} 2.4"
    digest = next(name for name in members(wheel) if "/blobs/" in name).rpartition("/")[2]
    assert files == f"{digest} manifest.json"


def test_the_oldest_hatchling(tmp_path: Path, compiled: Path, links: Path) -> None:
    """The hook relies on how hatchling keeps what it read; 1.27 is the oldest one that is promised."""
    project = make_project(tmp_path / "old", requires='["hatchling==1.27.0", "hatch-model-cache"]')
    command = [sys.executable, "-m", "uv", "build", "--python", sys.executable]
    done = run(*command, cwd=project, MODEL_CACHE_ARTIFACTS=compiled, UV_FIND_LINKS=links)
    assert not done.returncode, done.stdout
    wheel = project / "dist" / WHEEL
    assert "Generator: hatchling 1.27.0\n" in dist_info(wheel, "WHEEL")
    assert dist_info(wheel, "METADATA").startswith("Metadata-Version: 2.4\n")
    assert dist_info(wheel, "entry_points.txt") == f"[model_cache]\n{NAME} = {PACKAGE}\n"
    assert "model/config.json" in sdist_members(project)


# Determinism


def test_place_time_and_modes_do_not_show(tmp_path: Path) -> None:
    project = make_project(tmp_path / "one")
    compiled = make_artifacts(tmp_path / "compiled", project, ranks=["0_0", "1_0"])
    first, _ = built(project, MODEL_CACHE_ARTIFACTS=compiled)
    moved = tmp_path / "moved"
    shutil.copytree(compiled, moved)
    for path in moved.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o750)
        os.utime(path, (1, 1))
    other = make_project(tmp_path / "some/other/place")
    before = os.umask(0o077)
    try:
        second, _ = built(other, MODEL_CACHE_ARTIFACTS=moved, TZ="Pacific/Kiritimati", PYTHONHASHSEED="7")
    finally:
        os.umask(before)
    assert first.read_bytes() == second.read_bytes()


# Where artifacts come from


def test_without_artifacts_and_engine_nothing_is_built(project: Path, tmp_path: Path) -> None:
    """A21: zero payload files is always a failure, with what to do."""
    output = refused(project, "-t", "wheel", TMPDIR=_directory(tmp_path / "tmp"))
    assert "No interpreter with vllm is known" in output
    assert "MODEL_CACHE_ARTIFACTS" in output
    assert "MODEL_CACHE_PYTHON" in output
    assert not list((tmp_path / "tmp").iterdir())


def test_artifacts_beside_the_recipe(project: Path, compiled: Path) -> None:
    """A21: they serve a wheel that is built in place; an sdist leaves them out, and says so."""
    shutil.copytree(compiled, project / "artifacts")
    wheel, _ = built(project)
    assert wheel.name == WHEEL
    done = hatchling(project, "-t", "sdist")
    assert not done.returncode
    assert re.search(r"warning: the sdist leaves \./artifacts out.*MODEL_CACHE_ARTIFACTS=.*--wheel", done.stdout)
    assert not [name for name in sdist_members(project) if name.startswith(("artifacts", "dist"))]
    done = hatchling(project, "-t", "sdist", MODEL_CACHE_ARTIFACTS=project / "artifacts")
    assert "warning: the sdist" not in done.stdout


def test_artifacts_elsewhere_in_the_project_stay_out_of_the_sdist(project: Path, compiled: Path) -> None:
    shutil.copytree(compiled, project / "out/h100")
    assert not hatchling(project, "-t", "sdist", MODEL_CACHE_ARTIFACTS=project / "out/h100").returncode
    assert not [name for name in sdist_members(project) if name.startswith("out")]


def test_a_half_made_artifact_directory_is_no_reason_to_compile(project: Path) -> None:
    (project / "artifacts/files").mkdir(parents=True)
    assert "is no artifact directory: it holds no artifacts.json" in refused(project, "-t", "wheel")


def test_the_third_source_is_a_compile(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compile itself is replaced: what is looked at is what the hook does with its result."""
    asked = []

    def compile_recipe(recipe: Recipe, out: Path, *, progress: object) -> None:
        asked.append((recipe, out))
        write_artifacts(out, *document(recipe))

    monkeypatch.setattr("hatch_model_cache.compiling.compiler.compile_recipe", compile_recipe)
    monkeypatch.delenv("MODEL_CACHE_ARTIFACTS", raising=False)
    wheel = Path(next(WheelBuilder(str(project)).build(directory=str(tmp_path / "dist"))))
    ((recipe, out),) = asked
    assert recipe == load_recipe(project)
    assert wheel.name == WHEEL
    assert not out.parent.exists()


def test_a_failed_compile(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compile_recipe(recipe: Recipe, out: Path, *, progress: object) -> None:
        raise CompileError("the engine ended with status 1; its log: /tmp/x.log")

    monkeypatch.setattr("hatch_model_cache.compiling.compiler.compile_recipe", compile_recipe)
    monkeypatch.setattr("tempfile.tempdir", str(_directory(tmp_path / "tmp")))
    monkeypatch.delenv("MODEL_CACHE_ARTIFACTS", raising=False)
    with pytest.raises(SystemExit) as caught:
        next(WheelBuilder(str(project)).build(directory=str(tmp_path / "dist")))
    assert caught.value.code == CompileError.exit_code
    assert capsys.readouterr().err == "model-cache: the engine ended with status 1; its log: /tmp/x.log\n"
    assert not list((tmp_path / "tmp").iterdir())
    assert not list((tmp_path / "dist").iterdir())


def test_a_relative_variable(project: Path) -> None:
    output = refused(project, "-t", "wheel", MODEL_CACHE_ARTIFACTS="artifacts")
    assert "MODEL_CACHE_ARTIFACTS must be an absolute path, not `artifacts`" in output


def test_artifacts_of_another_recipe(tmp_path: Path, compiled: Path) -> None:
    project = make_project(tmp_path / "other", TABLE | {"environment": {}})
    output = refused(project, "-t", "wheel", MODEL_CACHE_ARTIFACTS=compiled)
    assert "the artifacts were compiled from another recipe" in output
    assert load_recipe(project).digest() in output
    assert read(compiled).recipe_digest in output


def test_damaged_artifacts(project: Path, compiled: Path, tmp_path: Path) -> None:
    shutil.copytree(compiled, tmp_path / "bad")
    (tmp_path / "bad/files/left.tmp").write_bytes(b"x")
    next((tmp_path / "bad/files").rglob("model")).write_bytes(b"x")
    temporary = _directory(tmp_path / "tmp")
    output = refused(project, "-t", "wheel", MODEL_CACHE_ARTIFACTS=tmp_path / "bad", TMPDIR=temporary)
    assert output.count("\n  - files/") == 3
    assert not list(temporary.iterdir())


def _torch(folder: Path, version: str) -> Path:
    """A torch that is found and must not be imported, and a network that must not be asked."""
    (folder / f"torch-{version}.dist-info").mkdir(parents=True)
    (folder / f"torch-{version}.dist-info/METADATA").write_text(
        f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
    )
    (folder / "torch.py").write_text("raise SystemExit('torch was imported')")
    (folder / "sitecustomize.py").write_text(
        "import socket\n"
        "def refuse(*_, **__):\n"
        "    raise SystemExit('the network was asked')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
    )
    return folder


def test_neither_torch_nor_network_is_touched_and_another_torch_is_refused(
    project: Path, compiled: Path, tmp_path: Path
) -> None:
    """A24: the facts come from the artifacts; a torch that contradicts them is an error, not a skip."""
    other = _torch(tmp_path / "other", "2.13.0")
    output = refused(project, "-t", "wheel", MODEL_CACHE_ARTIFACTS=compiled, PYTHONPATH=other)
    assert "compiled with torch 2.14.0+cu130, and this build's environment has torch 2.13.0" in output
    same = _torch(tmp_path / "same", "2.14.0")
    wheel, _ = built(project, MODEL_CACHE_ARTIFACTS=compiled, PYTHONPATH=same)
    assert wheel.name == WHEEL
    assert json.loads(members(wheel)[f"{PACKAGE}/manifest.json"])["engine"]["torch"] == "2.14.0+cu130"


# The recipe and the project


@pytest.mark.parametrize("target", ["sdist", "wheel"])
def test_problems_of_the_recipe_come_together_before_anything_starts(tmp_path: Path, target: str) -> None:
    table = {"engine": "vllm", "model": MODEL, "config": "no", "targets": ["h100"], "sevred-as": ["x"]}
    output = refused(make_project(tmp_path / "wrong", table), "-t", target)
    where = "tool.hatch.build.hooks.model-cache"
    for key in ("engine", "config", "targets[0]", "sevred-as"):
        assert f"\n  - {where}.{key}: " in output
    assert "did you mean `served-as`?" in output


def test_the_table_of_one_target_is_named(tmp_path: Path) -> None:
    project = make_project(tmp_path / "own")
    text = (project / "pyproject.toml").read_text().replace("build.hooks", "build.targets.wheel.hooks")
    (project / "pyproject.toml").write_text(text.replace("vllm==0.33.0", "vllm"))
    assert "tool.hatch.build.targets.wheel.hooks.model-cache.engine: " in refused(project, "-t", "wheel")


@pytest.mark.parametrize("target", ["sdist", "wheel"])
def test_a_wrong_name_stops_with_the_right_one(tmp_path: Path, compiled: Path, target: str) -> None:
    project = make_project(tmp_path / "name", name="model-cache-mine")
    output = refused(project, "-t", target, MODEL_CACHE_ARTIFACTS=compiled)
    assert output.splitlines()[1:] == [
        f"  - project.name: is `model-cache-mine`; from the recipe's model and targets follows `{NAME}`."
    ]


def test_a_name_in_another_spelling(tmp_path: Path, compiled: Path) -> None:
    project = make_project(tmp_path / "name", name="Model_Cache.Synthetic-1B-H100-SXM5-80GB")
    wheel, _ = built(project, MODEL_CACHE_ARTIFACTS=compiled)
    assert json.loads(members(wheel)[f"{PACKAGE}/manifest.json"])["name"] == NAME


def test_an_editable_install_is_refused(project: Path, compiled: Path) -> None:
    output = refused(project, "-t", "wheel:editable", MODEL_CACHE_ARTIFACTS=compiled)
    assert "cannot be installed in editable mode" in output


def test_a_local_version_is_possible_and_warned_of(tmp_path: Path, compiled: Path) -> None:
    """A23: the wheel says torch's `+cu130` in its manifest, not in its version, unless the project does."""
    project = make_project(tmp_path / "local", version="1.0.0+cu130")
    wheel, output = built(project, MODEL_CACHE_ARTIFACTS=compiled)
    assert wheel.name == f"{PACKAGE}-1.0.0+cu130-cp311-none-any.whl"
    assert "warning: project.version 1.0.0+cu130 has a local part (+…), which public indexes refuse." in output


def test_warnings(tmp_path: Path) -> None:
    project = make_project(tmp_path / "loose", TABLE | {"serve-args": []})
    _, output = built(project, MODEL_CACHE_ARTIFACTS=make_artifacts(tmp_path / "out", project))
    assert output.count("warning: `serve-args` does not set --max-num-batched-tokens and --max-num-seqs") == 1
    assert output.count("warning: target h100-sxm5-80gb: no public source confirms") <= 1


def test_what_the_project_says_itself_is_kept(tmp_path: Path, compiled: Path) -> None:
    project = make_project(
        tmp_path / "own",
        project='dependencies = ["Hatch_Model.Cache>=0.1", "numpy"]\n'
        'entry-points = { other = { x = "y" } }\n'
        "optional-dependencies = { vllm = ['vllm>=0.33'] }",
        extra='[tool.hatch.build.targets.wheel]\ncore-metadata-version = "2.3"\n',
    )
    wheel, output = built(project, MODEL_CACHE_ARTIFACTS=compiled)
    metadata = Metadata.from_email(dist_info(wheel, "METADATA"))
    assert metadata.metadata_version == "2.3"
    assert [str(requirement) for requirement in metadata.requires_dist or []] == [
        "hatch-model-cache>=0.1",
        "numpy",
        'vllm>=0.33; extra == "vllm"',
    ]
    assert "[other]\nx = y\n" in dist_info(wheel, "entry_points.txt")
    assert f"[model_cache]\n{NAME} = {PACKAGE}\n" in dist_info(wheel, "entry_points.txt")
    assert "warning: project.dependencies names numpy: " in output


@pytest.mark.parametrize(
    "extra",
    [
        '[tool.hatch.build.targets.wheel]\ninclude = ["model"]\n',
        '[tool.hatch.build.targets.wheel.force-include]\n"pyproject.toml" = "x.toml"\n',
        '[tool.hatch.build]\nartifacts = ["*.json"]\n',
    ],
)
def test_other_files_may_not_be_added(tmp_path: Path, compiled: Path, extra: str) -> None:
    project = make_project(tmp_path / "more", extra=extra)
    output = refused(project, "-t", "wheel", MODEL_CACHE_ARTIFACTS=compiled)
    assert re.search(r"\n  - (model/config\.json|x\.toml): is no part of a model cache", output)


def test_a_package_of_the_same_name_may_not_come_along(project: Path, compiled: Path) -> None:
    (project / PACKAGE).mkdir()
    (project / PACKAGE / "__init__.py").write_text("")
    output = refused(project, "-t", "wheel", MODEL_CACHE_ARTIFACTS=compiled)
    assert f"{PACKAGE}/__init__.py: is no part of a model cache" in output


def test_a_link_inside_the_project_travels(project: Path, compiled: Path, tmp_path: Path) -> None:
    """From the checkout through the sdist: the recipe, and so its digest, stays the same."""
    (project / "shared").mkdir()
    (project / "model/tokenizer_config.json").rename(project / "shared/tokenizer_config.json")
    (project / "model/tokenizer_config.json").symlink_to("../shared/tokenizer_config.json")
    done = run(sys.executable, "-m", "build", "--no-isolation", cwd=project, MODEL_CACHE_ARTIFACTS=compiled)
    assert not done.returncode, done.stdout
    assert (project / "dist" / WHEEL).is_file()


def test_the_sdist_has_the_config_files_whatever_is_ignored_and_no_weights(project: Path) -> None:
    (project / ".gitignore").write_text("model/\n")
    (project / "model/sub").mkdir()
    for name in ("model.safetensors", "sub/pytorch_model.bin", "sub/tokenizer.json"):
        (project / "model" / name).write_bytes(b"x")
    assert not hatchling(project, "-t", "sdist").returncode
    assert {name for name in sdist_members(project) if name.startswith("model")} == {
        "model/config.json",
        "model/tokenizer_config.json",
        "model/sub/tokenizer.json",
    }


# The look at the finished wheel


def test_a_wheel_that_is_not_as_prepared(project: Path, compiled: Path, tmp_path: Path) -> None:
    recipe = load_recipe(project)
    packed = pack(read(compiled), recipe, name=NAME, version="1.0.0")
    wheel, _ = built(project, MODEL_CACHE_ARTIFACTS=compiled)
    assert check_wheel(wheel, packed, PACKAGE) == []
    content: dict[str, Any] = members(wheel)
    blob = next(name for name in content if "/blobs/" in name)
    record = content[f"{STEM}.dist-info/RECORD"].decode()
    changes = {
        f"{STEM}.dist-info/RECORD": re.sub(r"(/blobs/[^,]*,sha256=)......", r"\1AAAAAA", record).encode(),
        f"{STEM}.dist-info/METADATA": b"Metadata-Version: 2.4\nName: other\nVersion: 1\n",
        f"{STEM}.dist-info/entry_points.txt": b"[model_cache]\nother = other\n",
        f"{PACKAGE}/manifest.json": None,
        "extra.py": b"",
    }
    broken = tmp_path / "broken.whl"
    with zipfile.ZipFile(broken, "w") as archive:
        for name, data in (content | changes).items():
            if data is not None:
                archive.writestr(name, data)
    assert [problem.partition(": ")[::2] for problem in check_wheel(broken, packed, PACKAGE)] == [
        ("extra.py", "is no part of a model cache; take the option that includes it out of pyproject.toml"),
        (f"{PACKAGE}/manifest.json", "is missing"),
        (blob, "changed while the wheel was packed"),
        ("entry_points.txt", f"has no `{NAME} = {PACKAGE}` in [model_cache]"),
        ("METADATA", f"Name is other, the manifest's is {NAME}"),
        ("METADATA", "does not require hatch-model-cache exactly once"),
    ]
