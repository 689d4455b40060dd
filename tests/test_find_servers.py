"""`find` on real package indexes, and its install line run by the real pip and uv."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.writable_hub import WritableHub
from model_cache import cli
from package_indexes import FileServer, Index, devpi, pypiserver, run
from test_publishing import MODELS, NAMES, dist, publish, static, uv, wheel_of  # noqa: F401 (dist, static: fixtures)

pytestmark = pytest.mark.index

FOR = ("--target", "h100-sxm5-80gb", "--engine", "vllm==0.33.0")


@pytest.fixture(scope="module", params=["pypiserver", "devpi", "static"])
def index(
    request: pytest.FixtureRequest,
    dist: Path,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Index]:
    """Each index with everything published."""
    home = tmp_path_factory.mktemp(f"find-{request.param}")
    if request.param == "static":
        with FileServer(request.getfixturevalue("static")) as server:
            yield Index(f"{server.url}simple/")
        return
    with (pypiserver if request.param == "pypiserver" else devpi)(home / "server") as found:
        publish(found, dist, home / "client")
        yield found


def find(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    code = cli.main(["find", *words, *FOR, "--json"])
    out, err = capsys.readouterr()
    assert (code, err) == (0, ""), out + err
    answer: dict[str, Any] = json.loads(out)
    return answer


def installers(line: str, folder: Path) -> Iterator[tuple[list[str | Path], Path]]:
    """The line as pip and as uv run it, into a folder each."""
    pip, *words = shlex.split(line)
    assert pip == "pip"
    for name, command in (
        ("pip", [sys.executable, "-m", "pip"]),
        ("uv", uv("pip")),
    ):
        python = ["--python", sys.executable] if name == "uv" else []
        yield [*command, *words, *python, "--target", folder / name], folder / name


@pytest.mark.parametrize("number", [0, 1])
def test_what_is_found_can_be_installed(
    index: Index,
    dist: Path,  # noqa: F811
    number: int,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    answer = find(capsys, MODELS[number], "--index", index.simple)
    [wheel] = [one for one in answer["wheels"] if one["usable"]]
    assert wheel["name"] == NAMES[number]
    assert wheel["file"] == wheel_of(dist, NAMES[number]).name
    for command, folder in installers(answer["install"], tmp_path):
        done = run(*command, home=tmp_path / "home")
        assert done.returncode == 0, done.stdout
        assert (folder / NAMES[number].replace("-", "_").replace(".", "_") / "manifest.json").is_file()
        assert not list(folder.glob("hatch_model_cache*")), "nothing else is installed"


def test_another_content_is_refused(index: Index, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = find(capsys, MODELS[0], "--index", index.simple)["install"]
    start, _, digest = line.rstrip("'").rpartition("sha256=")
    for command, folder in installers(f"{start}sha256={digest[::-1]}'", tmp_path):
        done = run(*command, home=tmp_path / "home")
        assert done.returncode, done.stdout
        assert "hash" in done.stdout.lower()
        assert not list(folder.glob("model_cache_*"))


def test_the_hub_s_line(
    dist: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with WritableHub(tmp_path / "hub") as hub:
        hub.patch(monkeypatch, tmp_path / "hub-home")
        assert cli.main(["push", str(wheel_of(dist, NAMES[0])), "hf://test-org/caches", "--create"]) == 0
        answer = find(capsys, MODELS[0], "--hub", "hf://test-org/caches")
        for command, folder in installers(answer["install"], tmp_path):
            done = run(*command, home=tmp_path / "home")
            assert done.returncode == 0, done.stdout
            assert list(folder.glob("model_cache_*.dist-info"))
