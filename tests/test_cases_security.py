"""Public bug reports as tests, by their numbers in the list of cases: A06 to A10, A16 to A20 and A25.

What else is tested of them elsewhere is named where it is.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import build_factories
import test_compiled
import test_pack
from factories import (
    BIG,
    ENTRY_ONE,
    NAME,
    add_member,
    expected_files,
    files_of,
    make_engine,
    make_host,
    make_site,
    make_wheel,
    run,
    sha,
)
from hatch_model_cache.recipe.file import load_recipe
from hatch_model_cache.recipe.recipe import Recipe
from model_cache.cli import main
from model_cache.errors import DamagedError, NotTrustedError
from model_cache.origin.keyring import Keyring
from model_cache.origin.trust import Trust
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.names import data_package, folded
from model_cache.wheel.verify import blob_path, verify
from test_plugin import SOMEBODY, interpreter_for_somebody

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = data_package(NAME)
PYTHON = ".".join(map(str, sys.version_info[:3]))
HERE = {"engine.python": PYTHON, "engine.platform": f"linux_{os.uname().machine}"}

needs_a_second_user = pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return load_recipe(build_factories.make_project(tmp_path / "project"))


@pytest.fixture
def out(tmp_path: Path, recipe: Recipe) -> Path:
    return build_factories.make_artifacts(tmp_path / "out", tmp_path / "project")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("MODEL_CACHE_ASSUME_TARGET", "h100-sxm5-80gb")
    return tmp_path / "root"


@pytest.fixture
def site(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = make_site(tmp_path, changes=HERE)
    monkeypatch.setattr(sys, "path", [str(site), str(make_engine(tmp_path / "engine")), *sys.path])
    return site


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that another user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


# A06: the bundle has nothing in it


@pytest.mark.parametrize("what", ["no entry", "no file"])
def test_a06_nothing_to_pack_is_an_error_never_an_empty_wheel(out: Path, recipe: Recipe, what: str) -> None:
    """Also tests/test_hook.py: test_without_artifacts_and_engine_nothing_is_built."""
    entries = test_pack.edit(out)["entries"]
    if what == "no file":
        for entry in entries:
            entry["files"] = []
    test_pack.edit(out, entries=entries if what == "no file" else [])
    with pytest.raises(DamagedError) as caught:
        test_pack.packed(out, recipe)
    assert caught.value.problems


# A07: a file that was cut short


def test_a07_a_file_cut_short_before_packing_fails_the_build_by_name(out: Path, recipe: Recipe) -> None:
    (out / test_pack.SOURCE).write_bytes(b"")
    assert test_pack.problems(out, recipe) == [f"{test_pack.SOURCE}: has 0 bytes, artifacts.json says 3000"]


def test_a07_a_deployed_file_cut_short_is_named_and_restored_alone(
    site: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy"]) == 0
    cut, other = root / ENTRY_ONE / "rank_0_0/model", root / ENTRY_ONE / "rank_1_0/model"
    cut.write_bytes(b"")
    before = other.stat()
    capsys.readouterr()
    assert main(["verify", NAME, "--root", str(root)]) == 3
    assert f"{ENTRY_ONE}/rank_0_0/model has other content" in capsys.readouterr().err
    assert main(["deploy"]) == 0
    assert files_of(root) == expected_files()
    assert (other.stat().st_ino, other.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert main(["verify", NAME, "--root", str(root)]) == 0


# A08: intact, and without anything compiled in it


def test_a08_an_artifact_without_compiled_parts_is_refused(tmp_path: Path) -> None:
    build = test_compiled.Build(tmp_path)
    build.result().update(parts=0)
    (problem,) = build.problems()
    assert "no compiled part (num_artifacts = 0)" in problem


# A09: a random user with HOME=/


@needs_a_second_user
def test_a09_a_random_user_with_home_slash(public: Path) -> None:
    """No attempt to write below "/": one line that says which variable to set, or the place that was given."""
    python, version = interpreter_for_somebody()
    site = make_site(public, changes={**HERE, "engine.python": version})
    make_engine(public / "engine")
    shutil.copytree(REPOSITORY / "hatch_plugin", public / "source")
    (public / "scratch").mkdir()
    os.chown(public / "scratch", 12345, 0)
    subprocess.run(["chmod", "-R", "a+rX", str(public)], check=True)
    environment = {
        "PYTHONPATH": os.pathsep.join(map(str, (public / "source", site, public / "engine"))),
        "MODEL_CACHE_ASSUME_TARGET": "h100-sxm5-80gb",
        "HOME": "/",
    }

    def deploy(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [python, "-m", "model_cache", "deploy", *arguments]
        return subprocess.run(command, env=environment, check=False, **SOMEBODY)

    before = sorted(os.listdir("/"))
    done = deploy()
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "set VLLM_CACHE_ROOT or give --root" in done.stderr
    root = public / "scratch/root"
    assert deploy("--root", str(root)).returncode == 0
    assert files_of(root) == expected_files()
    for path in root.rglob("*"):
        mode = path.stat().st_mode
        assert mode & stat.S_IRGRP, path
        assert not path.is_dir() or mode & stat.S_IXGRP, path
    assert sorted(os.listdir("/")) == before


# A10: a compile that died half-way


def test_a10_a_rank_that_is_missing_fails_the_build_by_name(tmp_path: Path) -> None:
    """Also tests/test_hook.py: test_a_failed_compile (no wheel after it); a compile has an empty cache root."""
    table = build_factories.TABLE | {"serve-args": ["-tp", "4", "--max-num-seqs=8"], "served-as": ["a"]}
    project = build_factories.make_project(tmp_path / "tp", table)
    out = build_factories.make_artifacts(tmp_path / "out", project, ranks=["0_0", "1_0", "2_0"])
    (problem,) = test_pack.problems(out, load_recipe(project))
    assert "has no rank 3_0" in problem


@pytest.mark.parametrize("name", ["rank_0_0/model.123.tmp", "rank_0_0/x.pid.tmp", "rank_0_0/x.lock"])
def test_a10_leftovers_are_not_packed_and_named(out: Path, recipe: Recipe, name: str) -> None:
    test_pack.add(out, name, b"half")
    (problem,) = test_pack.problems(out, recipe)
    assert name in problem


# A16: secrets in a cache that is shared


def test_a16_no_secret_leaves_the_build_and_none_is_printed(out: Path, recipe: Recipe) -> None:
    key, token = "sk-" + "q7" * 15, test_pack.TOKEN
    test_pack.add(out, "rank_0_0/cache_key_factors.json", json.dumps({"VLLM_API_KEY": key}).encode())
    test_pack.add(out, "rank_0_0/notes.py", f"token = '{token}'".encode(), contains=["other"])
    test_pack.add(out, "rank_0_0/paths", b"/home/builder/x", contains=["cubin"])
    found = test_pack.problems(out, recipe, test_pack.watch(HOME="/home/builder"))
    for name in ("cache_key_factors.json", "notes.py", "paths"):
        assert any(name in problem for problem in found), name
    assert not any(secret in problem for secret in (key, token) for problem in found)


def test_a16_the_wheel_of_a_builder_with_secrets_holds_none(out: Path, recipe: Recipe) -> None:
    packed = test_pack.packed(out, recipe, test_pack.watch(VLLM_API_KEY="a-secret-value-of-the-builder"))
    everything = packed.manifest_bytes + b"".join(path.read_bytes() for path in packed.blobs.values())
    assert b"a-secret-value-of-the-builder" not in everything


# A17: installers do not look at RECORD


@pytest.mark.parametrize(("installer", "change"), [("pip", "a byte"), ("uv", "a byte"), ("uv", "a file")])
def test_a17_what_installers_let_through_is_refused(
    root: Path, tmp_path: Path, installer: str, change: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def tamper(files: dict[str, bytes]) -> None:
        blob = f"{PACKAGE}/{blob_path(sha(BIG))}"
        if change == "a byte":
            files[blob] = BIG[:-1] + b"!"
        else:
            files[f"{PACKAGE}/added.py"] = b"print()"

    wheel = make_wheel(tmp_path / "dist", edit_late=tamper, changes=HERE)
    site = tmp_path / "installed"
    command = {
        "pip": [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)],
        "uv": [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "install",
            "--quiet",
            "--offline",
            "--no-deps",
            "--target",
            str(site),
        ],
    }[installer]
    environment = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "uv"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run([*command, str(wheel)], check=True, capture_output=True, env=environment)
    monkeypatch.setattr(sys, "path", [str(site), str(make_engine(tmp_path / "engine")), *sys.path])
    assert main(["deploy", NAME]) == 3
    named = f"{blob_path(sha(BIG))} has other content" if change == "a byte" else "added.py is not listed"
    assert named in capsys.readouterr().err
    assert not root.exists()


# A18: links


def test_a18_links_fail_the_build_by_name_and_nothing_is_read_through_them(
    out: Path, recipe: Recipe, tmp_path: Path
) -> None:
    """Links inside a recipe's config directory are another thing: test_a_link_inside_the_project_travels."""
    inside, outside = out / "files/inside", out / "files/outside"
    inside.symlink_to((out / test_pack.SOURCE).relative_to(out / "files"))
    outside.symlink_to("/etc/hostname")
    (out / "files/dangling").symlink_to("nowhere")
    (out / "files/folder").symlink_to("h100-sxm5-80gb")
    found = test_pack.problems(out, recipe)
    for name in ("inside", "outside", "dangling", "folder"):
        assert any(problem.startswith(f"files/{name}") for problem in found), (name, found)
    outside.unlink()
    description = test_pack.edit(out)
    for entry in description["entries"]:
        entry["files"][0]["source"] = "files/outside"
    outside.symlink_to("/etc/hostname")
    test_pack.edit(out, entries=description["entries"])
    assert any("is a link" in problem for problem in test_pack.problems(out, recipe))


# A19: archives that two programs read differently


@pytest.mark.parametrize("trick", ["a name twice", "a name twice in other letters", "data after the end"])
def test_a19_ambiguous_archives_are_refused(tmp_path: Path, trick: str, capsys: Any) -> None:
    """Many more in tests/test_payload.py."""
    wheel = make_wheel(tmp_path)
    if trick == "data after the end":
        wheel.write_bytes(wheel.read_bytes() + b"PK\x05\x06" + bytes(18) + b"more")
    else:
        name = f"{PACKAGE}/manifest.json"
        name = name if trick == "a name twice" else name.replace("manifest", "Manifest")
        with zipfile.ZipFile(wheel, "a") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zipfile warns of the name
            add_member(archive, name, b"{}")
    assert main(["verify", str(wheel)]) == 3
    assert wheel.name in capsys.readouterr().err
    with pytest.raises(DamagedError):
        WheelPayload(str(wheel))


def test_a19_what_is_packed_has_names_that_are_unique_in_any_letters(out: Path, recipe: Recipe) -> None:
    names = [*test_pack.packed(out, recipe).members(), "manifest.json"]
    assert len({folded(name) for name in names}) == len(names)


# A20: a private name on a public index


def index(folder: Path, version: str) -> str:
    """A package index in a folder, with one version of the wheel."""
    wheel = make_wheel(folder / NAME, version=version, changes=HERE)
    (folder / NAME / "index.html").write_text(f"<a href='{wheel.name}'>{wheel.name}</a>")
    return folder.as_uri()


def test_a20_one_index_takes_ours_and_two_take_the_attackers(tmp_path: Path) -> None:
    ours, attackers = index(tmp_path / "ours", "1.0.0"), index(tmp_path / "theirs", "99.0")

    def takes(*arguments: str) -> str:
        folder = tmp_path / f"taken{len(list(tmp_path.iterdir()))}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *arguments]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
        subprocess.run(
            [*command, NAME], check=True, capture_output=True, env=environment | {"PIP_CONFIG_FILE": "/dev/null"}
        )
        (taken,) = folder.iterdir()
        return taken.name.split("-")[1]

    assert takes("--index-url", ours) == "1.0.0"
    assert takes("--index-url", ours, "--extra-index-url", attackers) == "99.0", "the danger is still there"


def test_a20_no_command_that_we_show_takes_a_second_index() -> None:
    shown = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md"), *(REPOSITORY / "templates").rglob("*")]
    for path in (path for path in (*shown, *(REPOSITORY / "examples").rglob("*")) if path.is_file()):
        assert not re.search(r"--extra-index-url|extra-index-url\s*=", path.read_text("utf-8", "replace")), path


def test_a20_a_wheel_that_nobody_trusted_has_signed_is_refused_where_signatures_are_required(tmp_path: Path) -> None:
    """More in tests/test_signing.py."""
    with WheelPayload(str(make_wheel(tmp_path))) as payload, pytest.raises(NotTrustedError, match="not signed"):
        verify(payload, trust=Trust("require", Keyring()))


# A25: installed by root under umask 077


@needs_a_second_user
def test_a25_installed_and_deployed_under_umask_077_every_file_can_be_read(public: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "dist")
    site, root = tmp_path / "site", public / "way/root"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--target",
        str(site),
        str(wheel),
    ]
    old = os.umask(0o077)
    try:
        subprocess.run(pip, check=True, capture_output=True)
        assert stat.S_IMODE((site / PACKAGE).stat().st_mode) == 0o700, "pip applies the umask"
        run(site, root, make_host())
    finally:
        os.umask(old)
    paths = [str(path) for path in root.rglob("*") if path.is_file()]
    assert len(paths) >= len(expected_files())
    done = subprocess.run(["cat", *paths], check=False, **{**SOMEBODY, "text": False})
    assert done.returncode == 0, done.stderr
    for path in (root.parent, root, *root.rglob("*")):
        assert not path.lstat().st_mode & stat.S_IWOTH, path
