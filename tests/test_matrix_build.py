"""`model-cache matrix build` with fakes/fake_engine.py for an engine: real processes, real compiles of made-up kernels,
real wheels."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build_factories import CONFIG
from fakes import fake_engine
from hatch_model_cache.matrix import ray_cluster
from model_cache.errors import ModelCacheError
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.verify import verify
from steady import command

H100, A100 = "model-cache-m-h100-sxm5-80gb", "model-cache-m-a100-sxm4-80gb"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A place for a matrix, with a model."""
    place = tmp_path / "matrix"
    (place / "model").mkdir(parents=True)
    (place / "model/config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "temporary").mkdir()
    fake_engine.interpreter(tmp_path)
    return place


def write(directory: Path, h100: str = "success", a100: str = "success", *, targets: str = "h100 a100") -> None:
    """A matrix of one model for two GPUs, each with an environment that tells the fake how to behave."""
    names = {"h100": "h100-sxm5-80gb", "a100": "a100-sxm4-80gb"}
    models = ""
    for short, behaviour in (("h100", h100), ("a100", a100)):
        if short in targets:
            report = directory.parent / f"{short}.json"
            variables = f'FAKE_ENGINE = "{behaviour}", FAKE_REPORT = "{report}", FAKE_MEET = "{directory.parent}/meet"'
            models += f"""
[models."{short}/M"]
config = "model"
targets = ["{names[short]}"]
environment = {{ {variables} }}
"""
    (directory / "matrix.toml").write_text(f'engines = ["vllm==0.33.0"]\n{models}')


def environment(directory: Path, **more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME")}
    own = {"MODEL_CACHE_PYTHON": str(directory.parent / "fake-python"), "TMPDIR": str(directory.parent / "temporary")}
    return {**kept, **own, **more}


def run(directory: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("build", directory, *arguments),
        env=environment(directory, **more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def told(directory: Path, *arguments: str, **more: str) -> tuple[int, dict[str, Any]]:
    done = run(directory, "--json", *arguments, **more)
    assert not done.stderr, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, answer


def states(answer: dict[str, Any]) -> dict[str, str]:
    return {wheel["name"]: wheel["state"] for wheel in answer["wheels"]}


def waited(condition: Callable[[], Any]) -> Any:
    """What `condition` says as soon as it is true."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it never came")


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.fleet
def test_a_matrix_is_built_once_and_only_what_changed_again(directory: Path) -> None:
    write(directory)
    done = run(directory)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    *lines, summary = done.stdout.splitlines()
    assert summary.startswith("2 built of 2 wheels in ")
    wheels = sorted((directory / "dist").iterdir())
    assert sorted(line.partition("): ")[2] for line in lines) == [str(wheel) for wheel in wheels]
    for wheel in wheels:
        with WheelPayload(str(wheel)) as payload:
            assert verify(payload).manifest.version == "1.0.0"
    work = directory / ".model-cache-matrix"
    assert [list(home.iterdir()) for home in (work / "cells").iterdir()] == [[], []], "nothing is kept of what is done"

    for report in directory.parent.glob("*.json"):
        report.unlink()
    assert states(told(directory)[1]) == {H100: "up to date", A100: "up to date"}
    write(directory, a100="grandchild")
    code, answer = told(directory)
    assert (code, states(answer)) == (0, {H100: "up to date", A100: "built"})
    assert not (directory.parent / "h100.json").exists(), "no engine was started for what is up to date"
    assert (directory.parent / "a100.json").exists()


@pytest.mark.fleet
def test_a_failure_is_told_and_the_others_are_built(directory: Path) -> None:
    write(directory, h100="error")
    done = run(directory)
    assert done.returncode == 6
    assert sorted(line.partition(":")[0] for line in done.stdout.splitlines()[:2]) == ["built", "failed"]
    first, second = done.stderr.splitlines()
    assert first == "model-cache: 1 of 2 wheels could not be built:"
    assert "h100-sxm5-80gb rank 0: ValueError: the model's head size is odd" in second
    code, answer = told(directory)
    assert (code, states(answer), answer["error"]["kind"]) == (6, {H100: "failed", A100: "up to date"}, "compile")


@pytest.mark.fleet
def test_fail_fast_begins_nothing_more(directory: Path) -> None:
    write(directory, h100="error")
    code, answer = told(directory, "--fail-fast", "--jobs", "1")
    assert (code, states(answer)) == (6, {H100: "failed", A100: "not begun"})


@pytest.mark.fleet
def test_two_cells_run_at_a_time_when_there_is_room(directory: Path) -> None:
    (directory.parent / "meet").mkdir()
    write(directory, "meet", "meet")
    begun = time.monotonic()
    code, answer = told(directory, "--jobs", "2")
    assert (code, set(states(answer).values())) == (0, {"built"})
    assert time.monotonic() - begun < 20, "the fakes wait that long for each other"


@pytest.mark.fleet
def test_what_was_compiled_before_a_failure_is_not_compiled_again(directory: Path) -> None:
    write(directory, targets="h100")
    code, answer = told(directory, MODEL_CACHE_SIGNING_KEY="/no/such/key.pem")
    assert (code, states(answer)) == (6, {H100: "failed"})
    assert "/no/such/key.pem" in answer["wheels"][0]["error"]["message"]
    (directory.parent / "h100.json").unlink()
    assert states(told(directory)[1]) == {H100: "built"}
    assert not (directory.parent / "h100.json").exists()


@pytest.mark.fleet
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupt_ends_the_engines_and_the_next_build_goes_on(directory: Path, number: int) -> None:
    write(directory, a100="hang")
    building = subprocess.Popen(
        command("build", directory, "--jobs", "2"),
        env=environment(directory),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    report = directory.parent / "a100.json"
    waited(lambda: report.exists() and list((directory / "dist").glob("*.whl")))
    engine = json.loads(report.read_text())["child"]
    building.send_signal(number)
    _, errors = building.communicate(timeout=30)
    if number == signal.SIGKILL:
        assert building.returncode == -number
    else:
        assert building.returncode == 130
        assert errors.startswith("model-cache: interrupted")
    assert waited(lambda: gone(engine))
    write(directory)
    assert states(told(directory)[1]) == {H100: "up to date", A100: "built"}


@pytest.mark.fleet
def test_two_builds_do_not_meet(directory: Path) -> None:
    write(directory, h100="hang", targets="h100")
    first = subprocess.Popen(command("build", directory), env=environment(directory), stderr=subprocess.DEVNULL)
    try:
        waited(lambda: (directory.parent / "h100.json").exists())
        code, answer = told(directory)
        assert (code, answer["error"]["kind"]) == (2, "usage")
        assert "another build is at work" in answer["error"]["message"]
    finally:
        first.send_signal(signal.SIGINT)
        first.wait(timeout=30)


def test_an_engine_that_is_not_there_is_said_once(directory: Path) -> None:
    write(directory)
    code, answer = told(directory, MODEL_CACHE_PYTHON="/no/python")
    assert (code, answer["error"]["problems"]) == (2, [])
    assert "/no/python" in answer["error"]["message"]
    assert not (directory / ".model-cache-matrix").exists()


def test_a_dry_run_writes_nothing(directory: Path) -> None:
    write(directory)
    done = run(directory, "--dry-run")
    assert done.returncode == 0
    assert done.stdout.endswith("2 of 2 wheels are to be built\n")
    assert sorted(path.name for path in directory.iterdir()) == ["matrix.toml", "model"]


@pytest.mark.fleet
def test_a_terminal_gets_a_live_table(directory: Path) -> None:
    write(directory, h100="error")
    ours, theirs = pty.openpty()
    variables = environment(directory, TERM="xterm", COLUMNS="200", LINES="40")
    building = subprocess.Popen(
        command("build", directory, "--jobs", "1"), env=variables, stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    while building.poll() is None:
        shown += _read(ours)
    shown += _read(ours)
    assert building.stdout is not None
    printed = building.stdout.read().decode()
    assert building.returncode == 6
    assert printed.startswith("1 built, 1 failed of 2 wheels"), "the table has the rest"
    text = shown.decode()
    for word in ("kernels", "waits", "builds", "built", "failed", "head size is odd", H100):
        assert word in text, word


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # nobody holds the other side any more
        return b""


def test_a_node_cannot_write_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ModelCacheError, match="a name that is a path"):
        ray_cluster._kept({"node": "n", "wheel": "../x.whl", "data": b""}, tmp_path)
    assert not list(tmp_path.parent.glob("x.whl"))


def test_without_ray_one_line_names_the_extra(directory: Path) -> None:
    write(directory)
    blocked = directory.parent / "blocked"
    blocked.mkdir()
    (blocked / "ray.py").write_text("raise ImportError('no ray')")
    code, answer = told(directory, "--on", "ray", PYTHONPATH=str(blocked))
    assert (code, answer["error"]["message"]) == (2, "--on ray needs Ray: pip install 'hatch-model-cache[ray]'")
    shutil.rmtree(blocked)
