"""docs/guides/hub.md and find.md: every command in them runs and prints what they show. Hub and engine are fakes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import shown
from factories import A100, MODEL, make_host, make_wheel
from fakes import fake_look_up
from fakes.web_server import WebServer
from fakes.writable_hub import WritableHub
from hatch_model_cache.compiling import interpreter
from hatch_model_cache.publish import installing
from model_cache import cli
from model_cache.origin import keyring
from test_find import serve_site
from verdicts import FACTORS, FLAGS, HOST, OPTIONS, UNKEYED, look_up
from verdicts import wheel as manifest_of

pytestmark = pytest.mark.fleet


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the reader works: three wheels in `dist`, on a host that trusts nobody."""
    for name in ("MODEL_CACHE_TRUST", "MODEL_CACHE_POLICY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(keyring, "SYSTEM", str(tmp_path / "etc/trusted.d"))
    changes = {"factors": {"f": FACTORS}, "host_answers": HOST, "unkeyed": UNKEYED}
    make_wheel(tmp_path / "dist", changes=changes)
    make_wheel(tmp_path / "dist", name="model-cache-synthetic-1b-a100-sxm4-80gb", targets=(A100,))
    make_wheel(tmp_path / "dist", version="2.0.0", changes={"engine.version": "0.34.0"})
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def hub(work: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WritableHub]:
    with WritableHub(work / "the-hub") as running:
        running.patch(monkeypatch, work / "home")
        command = installing.command
        monkeypatch.setattr(installing, "command", lambda wheel: [*command(wheel), "--target", str(work / "site")])
        yield running


def plain(text: str) -> list[str]:
    """Lines without what differs from run to run."""
    text = re.sub(r"sha256( {4}|=)[0-9a-f…]+", r"sha256\1…", text)
    text = re.sub(r"\b[0-9a-f]{40}\b", "COMMIT", text)
    return re.sub(r"https?://[^ ]*#", "URL#", re.sub(r"\([\d.]+ kB\)", "SIZE", text)).splitlines()


def test_the_hub_s_guide(work: Path, hub: WritableHub, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = "dist/model_cache_synthetic_1b_h100_sxm5_80gb-1.0.0-cp311-none-any.whl"
    printed = []
    for command in shown.commands("hub.md"):
        words = shlex.split(command.text.replace("dist/WHEEL", wheel))
        assert cli.main(words[1:]) == 0, command
        out, err = capsys.readouterr()
        printed.append((command.output, err + out))
    assert len(printed) == 4
    assert list((work / "site").glob("model_cache_*/manifest.json")), "--install"
    assert [path.name for path in (work / "wheels").iterdir()] == [Path(wheel).name], "--out"
    told = [(expected, output) for expected, output in printed if expected]
    assert len(told) == 2
    for expected, output in told:
        assert plain(output) == plain(expected)


def test_the_files_that_the_guide_lists(work: Path, hub: WritableHub) -> None:
    wheel = next((work / "dist").glob("*.whl"))
    assert cli.main(["push", str(wheel), "hf://my-org/caches", "--create"]) == 0
    listed = set(re.findall(r"^\| `([^`]+)`", shown.PAGES["hub.md"].read_text("utf-8"), re.MULTILINE))
    there = {"NAME.whl" if name.endswith(".whl") else name for name in hub.names("my-org/caches")}
    assert there - {".gitattributes"} == listed - {"manifest.sig"}, "it is not signed"


def test_find_s_guide(work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(
        "model_cache.machine.host.read_host", lambda engine, target: make_host(engine=engine, assumed=target)
    )
    monkeypatch.setenv(interpreter.VARIABLE, str(fake_look_up.interpreter(work)))
    monkeypatch.setenv("FAKE_RESULT", str(work / "result.json"))
    monkeypatch.setenv("FAKE_REPORT", str(work / "report.json"))
    answer = {"engine": vars(manifest_of().engine), "host_answers": HOST, "look_ups": [look_up()]}
    answer |= {"why_nothing": None, "flags": FLAGS, "options": OPTIONS}
    (work / "result.json").write_text(json.dumps(answer))
    with WebServer() as server:
        url = serve_site(server, work / "dist", work)
        printed = []
        for command in shown.commands("find.md"):
            line = command.text.replace("https://wheels.example/caches", url).replace("my-org/Model", MODEL)
            capsys.readouterr()
            assert cli.main(shlex.split(line)[1:]) == 0, line
            printed.append((command.output or "", capsys.readouterr().out))
    assert len(printed) == 3
    assert printed[2][1].startswith("hit: ")
    expected, output = printed[0]
    assert plain(output) == plain(expected.replace("https://wheels.example/caches/", url))
