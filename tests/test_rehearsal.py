"""The parent side of a rehearsal, with ordinary programs in the engine's place."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import shown
from hatch_model_cache import cli
from hatch_model_cache.compiling import engine_process, rehearsal
from hatch_model_cache.compiling.rehearsal import Report, rehearse
from model_cache.errors import CompileError, UsageError

TARGET = "h100-sxm5-80gb"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for the logs that are kept."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(engine_process, "NEUTRAL_PLACES", ())  # TMPDIR's path is too long for sockets here
    return tmp_path


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "-inf", "soon"])
def test_a_timeout_is_a_positive_number(timeout: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rehearse", "--target", TARGET, f"--timeout={timeout}", "--", "true"]) == 2
    err = capsys.readouterr().err
    assert "--timeout: must be a positive number of seconds" in err
    assert len(err.splitlines()) == 1


def test_an_engine_that_is_too_slow() -> None:
    with pytest.raises(CompileError, match=r"did not reach its model within 0\.2 s"):
        rehearse(["/bin/sleep", "60"], TARGET, timeout=0.2)


def test_an_engine_that_ends_early() -> None:
    with pytest.raises(CompileError, match="ended without reaching its model"):
        rehearse(["/bin/true"], TARGET, timeout=60)


def test_the_last_error_of_the_log_is_told_and_only_that_log_is_kept(temporary: Path) -> None:
    script = (
        "echo '(EngineCore pid=7) ERROR 11-30 [core.py:1] ValueError: too long.'; echo later;"
        "echo 'RuntimeError: Engine core initialization failed. See root cause above.'"
    )
    with pytest.raises(CompileError, match=r"without reaching its model: ValueError: too long\. Its log: ") as caught:
        rehearse(["/bin/sh", "-c", script], TARGET, timeout=60)
    (log,) = temporary.iterdir()
    assert str(log) in caught.value.message
    assert "later\n" in log.read_text()


@pytest.mark.parametrize("command", [["/no/such/engine"], ["/"], ["a\0b"], [""]])
def test_an_engine_that_cannot_be_started(command: list[str]) -> None:
    with pytest.raises(UsageError, match="cannot be started"):
        rehearse(command, TARGET)


def test_what_it_says_of_several_ranks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As docs/guides/ranks-and-drafts.md shows it."""
    report = Report(("0_0", "1_0"), 1, 3, 0, 0, 1.0, 35.6, None)
    monkeypatch.setattr(rehearsal, "rehearse", lambda *_, **__: report)
    [command] = shown.commands("ranks-and-drafts.md", "model-cache rehearse")
    assert cli.main(shlex.split(command.text)[1:]) == 0
    assert capsys.readouterr().out == command.output


class TestRanks:
    """Ordinary programs that write what the processes of an engine with several ranks would."""

    COMMAND = ("/bin/sh", "-c", "{script}", "serve", "./model", "--tensor-parallel-size", "2")

    def engine(self, script: str, timeout: float = 60) -> Report:
        script = f'reports=$(echo "$MODEL_CACHE_REHEARSAL" | sed \'s/.*"reports": "\\([^"]*\\)".*/\\1/\'); {script}'
        command = [part.replace("{script}", script) for part in self.COMMAND]
        return rehearse(command, TARGET, timeout=timeout)

    def test_every_rank_reports(self, temporary: Path) -> None:
        first, second = written("0_0", loaded=2, load=0.5), written("1_0", loaded=1, compiles=3, load=0.25)
        found = self.engine(f"touch $TMPDIR/socket; {first} > $reports/1.json; {second} > $reports/2.json; sleep 60")
        assert found.ranks == ("0_0", "1_0")
        assert (found.loaded, found.inductor_compiles, found.load_seconds) == (1, 3, 0.5)
        assert list(temporary.iterdir()) == [], "nothing of a rehearsal that succeeded is left"
        assert not found.warm

    def test_one_rank_fails(self) -> None:
        found = self.engine(f"{written('1_0', error='RuntimeError: no')} > $reports/1.json; sleep 60")
        assert found.error == "RuntimeError: no"
        assert not found.warm

    def test_one_rank_is_silent(self) -> None:
        with pytest.raises(CompileError, match=r"without reaching its model in every rank \(1 of 2\)"):
            self.engine(f"{written('0_0', loaded=1)} > $reports/1.json")
        with pytest.raises(CompileError, match=r"in every rank \(1 of 2\) within 1 s"):
            self.engine(f"{written('0_0', loaded=1)} > $reports/1.json; sleep 60", timeout=1)


def written(rank: str, *, loaded: int = 0, compiles: int = 0, load: float = 0.0, error: str | None = None) -> str:
    """A shell command that prints a report."""
    document = {
        "rank": rank,
        "error": error,
        "artifacts_loaded": loaded,
        "compiled_parts_loaded": loaded,
        "inductor_compiles": compiles,
        "ptxas_runs": 0,
        "seconds": {"load": load, "until_first_run": 1.0},
    }
    return f"printf %s '{json.dumps(document)}'"


class TestWhatThePlugInHasSeen:
    """A program that reports a warm start, and records look-ups as the plug-in in the engine does."""

    @pytest.fixture
    def rehearsed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
        def rehearse(*options: str, parts: int = 1, **changes: object) -> tuple[int, str]:
            (tmp_path / "root").mkdir(exist_ok=True)
            program = tmp_path / "vllm"
            program.write_text(PROGRAM.format(python=sys.executable, parts=parts, changes=changes))
            program.chmod(0o755)
            command = ["rehearse", "--target", TARGET, "--root", str(tmp_path / "root"), *options]
            code = cli.main([*command, "--", str(program), "serve", "./model"])
            return code, capsys.readouterr().out

        return rehearse

    def test_a_hit_needs_no_word(self, rehearsed: Callable[..., tuple[int, str]]) -> None:
        code, out = rehearsed()
        assert (code, len(out.splitlines())) == (0, 1)
        assert out.startswith("warm start under a pretended NVIDIA H100 80GB HBM3: 1 artifact loaded")

    def test_an_adoption_is_told(self, rehearsed: Callable[..., tuple[int, str]]) -> None:
        code, out = rehearsed(adopted=True)
        assert code == 0
        assert out.splitlines()[1].startswith("  backbone rank 0_0: adopted from model-cache-x, ")
        code, out = rehearsed("--json", adopted=True)
        [one] = json.loads(out)["look_ups"]
        assert (one["adopted"], one["wheel"]) == (True, "model-cache-x"), "not what an earlier start has recorded"

    def test_an_unsafe_hit_is_no_success(self, rehearsed: Callable[..., tuple[int, str]]) -> None:
        code, out = rehearsed(unsafe="has_flashinfer is True here")
        assert code == 11
        assert "\n  backbone rank 0_0: unsafe: has_flashinfer is True here\n" in out

    def test_a_miss_is_explained(self, rehearsed: Callable[..., tuple[int, str]]) -> None:
        code, out = rehearsed(parts=0, hit=False, wheel="", nearest="model-cache-x", reason="not for this model")
        assert code == 10
        assert "\n  backbone rank 0_0: miss: not for this model\n" in out


PROGRAM = """#!{python}
import json, os, pathlib, time
from model_cache.engine import lookups
from model_cache.store.root import Root
found = dict(pid=1, prefix="backbone", rank="0_0", key="k", hit=True, parts=1, seconds=0.1, wheel="model-cache-x")
with Root.open(os.environ["VLLM_CACHE_ROOT"]) as root:
    lookups.append(root, lookups.LookUp(time=time.time(), **(found | {changes!r})))
report = {{"rank": "0_0", "error": None, "artifacts_loaded": {parts}, "compiled_parts_loaded": {parts},
    "inductor_compiles": 1 - {parts}, "ptxas_runs": 0, "seconds": {{"load": 0.1, "until_first_run": 1.0}}}}
path = pathlib.Path(json.loads(os.environ["MODEL_CACHE_REHEARSAL"])["reports"], "1")
path.write_text(json.dumps(report))
path.rename(path.with_suffix(".json"))
time.sleep(60)
"""
