"""The publishing guide: every command in it is run, with the addresses it names on the loopback."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import shown
from hatch_model_cache.publish import notes
from model_cache.wheel import catalogue
from package_indexes import PASSWORD, USER, FileServer, devpi, environment, free_port, pypiserver, run, server
from test_publishing import NAMES, SERVING, digest, dist, wheel_of  # noqa: F401 (dist is a fixture)

pytestmark = pytest.mark.index

GUIDE = shown.PAGES["publish.md"]
TEXT = GUIDE.read_text("utf-8")
COMMANDS = shown.commands("publish.md")


@pytest.fixture(scope="module")
def work(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Where the reader of the guide works: one cache, its sdist and the serving side in `dist`."""
    folder = tmp_path_factory.mktemp("guide")
    shutil.copytree(dist, folder / "dist")
    for path in (folder / "dist").glob("model_cache_synth_etic*"):
        path.unlink()
    return folder


@pytest.fixture(scope="module")
def addresses(work: Path) -> Iterator[dict[str, str]]:
    """What the guide's addresses are here."""
    with FileServer(work / "site") as static, pypiserver(work / "a") as one, devpi(work / "b") as other:
        yield {
            "https://wheels.example/caches": static.url.rstrip("/"),
            "https://pypi.example/": one.upload,
            "https://devpi.example/releases/prod/": other.upload,
        }


def words_of(line: str, addresses: dict[str, str], work: Path) -> list[str]:
    for there, here in addresses.items():
        line = line.replace(there, here)
    words = []
    for word in shlex.split(line):
        words += sorted(map(str, work.glob(word))) if "*" in word else [word]
    return words


def test_there_are_commands() -> None:
    assert len(COMMANDS) == 10


def test_every_command_runs(work: Path, addresses: dict[str, str]) -> None:
    scripts = Path(sys.executable).parent
    host = {"TWINE_USERNAME": USER, "TWINE_PASSWORD": PASSWORD, "TWINE_NON_INTERACTIVE": "1"}
    # uv is told what GPU to find: there is none here
    host |= {"NV_VARIANT_PROVIDER_FORCE_SM_ARCH": "9.0", "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": "13.0"}
    host |= {"UV_PUBLISH_USERNAME": USER, "UV_PUBLISH_PASSWORD": PASSWORD}
    for line in (command.text for command in COMMANDS):
        words = words_of(line, addresses, work)
        if "http.server" in words:
            port = free_port()
            words = [sys.executable, *words[1:-1], str(port)]
            with server(work / "try", f"http://127.0.0.1:{port}/catalogue.json", *_absolute(words, work)):
                continue
        if "requirements.txt" in words:
            (work / "requirements.txt").write_text(_requirements(work))
        target = ["--target", str(work / f"installed-{len(list(work.iterdir()))}")] if "install" in words else []
        python = ["--python", sys.executable] if words[0] == "uv" and target else []
        done = run(scripts / words[0], *words[1:], *python, *target, home=work, **host)
        assert done.returncode == 0, f"{line}\n{done.stdout}"
        assert not target or list(Path(target[1]).glob("model_cache_synthetic*/manifest.json")), line
    assert len(list((work / "a/packages").iterdir())) == 2


def _absolute(words: list[str], work: Path) -> list[str]:
    return [str(work / word) if word == "site" else word for word in words]


def _requirements(work: Path) -> str:
    """What the page says, without the tags around it."""
    page = (work / "site/index.html").read_text("utf-8")
    [text] = re.findall(r'aria-label="requirements.txt">([^<]*)<', page)
    return str(text)


def test_the_output_shown_is_what_it_prints(work: Path, addresses: dict[str, str]) -> None:
    out = work / "site-again"
    done = run(Path(sys.executable).parent / "model-cache", "index", "build", "dist", "--out", out, home=work)
    [expected] = [command.output for command in COMMANDS if command.output]
    assert _without_size(done.stdout) == _without_size(expected.replace("/srv/site", str(out)))


def _without_size(text: str) -> str:
    return re.sub(r"[\d.]+ [kM]?B\)", "SIZE)", text)


def test_the_files_shown_are_there(work: Path, addresses: dict[str, str]) -> None:
    run(Path(sys.executable).parent / "model-cache", "index", "build", "dist", "--out", work / "site", home=work)
    wheel = wheel_of(work / "dist", NAMES[0]).name
    for name in re.findall(r"^\| `([^`]+)`", TEXT, re.MULTILINE):
        assert (work / "site" / name.replace("NAME.whl", wheel)).exists() or name == "file", name
    found = catalogue.parse((work / "site/catalogue.json").read_bytes())
    assert [one.name for one in found.others] == [SERVING]
    assert found.wheels[0].sha256 == digest(work / "dist" / wheel)


def test_the_notes_shown_are_right(tmp_path: Path) -> None:
    [text] = re.findall(r"^```toml\n(\[wheels.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    (tmp_path / "index.toml").write_text(text)
    [name] = tomllib.loads(text)["wheels"]
    assert notes.read(tmp_path, [name]) == {
        name: notes.Note("built from the wrong revision", "2026-11-30T12:00:00Z", 83)
    }


def test_no_second_index_is_shown() -> None:
    """A20."""
    assert environment(Path()).keys() >= {"PIP_CONFIG_FILE", "UV_NO_CONFIG"}
    assert "extra-index" not in TEXT
