"""A compile beside more urgent work: its priority, and its end when it takes too much memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from build_factories import TABLE, make_project
from fakes import fake_engine
from hatch_model_cache.compiling import compiler, engine_process, interpreter
from hatch_model_cache.compiling.overlap import NICE, OOM_SCORE, Bounds
from hatch_model_cache.recipe.file import load_recipe
from model_cache.errors import CompileError

HOLDS = """
import time
data = bytearray(b"x" * (64 << 20))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """One that holds 64 MiB, in a session of its own."""
    command = [sys.executable, "-S", "-c", HOLDS]
    found = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert found.stdout is not None
    assert found.stdout.readline() == b"ready\n"
    yield found
    engine_process.end(found)
    found.stdout.close()


def test_what_a_session_holds_is_counted(process: subprocess.Popen[bytes]) -> None:
    assert Bounds(200 << 20).excess(process.pid) == ""
    assert Bounds(60 << 20).excess(process.pid).endswith("beside other work it may take 62.9 MB")
    assert Bounds(0).excess(1 << 30) == "", "others are not, and there is no such session"


def test_it_is_the_least_urgent(process: subprocess.Popen[bytes]) -> None:
    Bounds(1).apply(process.pid)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == NICE
    assert int(Path(f"/proc/{process.pid}/oom_score_adj").read_text()) == OOM_SCORE


@pytest.fixture
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(engine_process, "NEUTRAL_PLACES", ())
    monkeypatch.setenv(interpreter.VARIABLE, str(fake_engine.interpreter(tmp_path)))


@pytest.mark.usefixtures("_machine")
def test_a_compile_that_takes_too_much_is_ended(tmp_path: Path) -> None:
    table = {**TABLE, "environment": {"FAKE_ENGINE": "hang", "FAKE_REPORT": str(tmp_path / "report.json")}}
    recipe = load_recipe(make_project(tmp_path / "project", table))
    with pytest.raises(CompileError, match=r"may take 1\.0 MB, and was ended\. Its log: ") as caught:
        compiler.compile_recipe(recipe, tmp_path / "out", bounds=Bounds(1 << 20))
    assert [str(path) for path in (tmp_path / "temporary").iterdir()] == [caught.value.message.rpartition(" ")[2]]
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("_machine")
def test_one_process_at_a_time(tmp_path: Path) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    serve_args = [*TABLE["serve-args"], "--tensor-parallel-size", "3"]
    environment = {"FAKE_ENGINE": "alone", "FAKE_MEET": str(meeting)}
    table = {**TABLE, "environment": environment, "serve-args": serve_args}
    recipe = load_recipe(make_project(tmp_path / "project", table))
    compiler.compile_recipe(recipe, tmp_path / "out", bounds=Bounds(1 << 30))
    assert [path.read_text() for path in sorted(meeting.iterdir())] == [str(NICE)] * 3
