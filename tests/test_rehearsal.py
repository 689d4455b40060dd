"""The parent side of a rehearsal, with ordinary programs in the engine's place."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from hatch_model_cache import cli
from hatch_model_cache.rehearsal import rehearse
from model_cache.errors import CompileError, UsageError

TARGET = "h100-sxm5-80gb"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place for the logs that are kept."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "-inf", "soon"])
def test_a_timeout_is_a_positive_number(timeout: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rehearse", "--target", TARGET, f"--timeout={timeout}", "--", "true"]) == 2
    err = capsys.readouterr().err
    assert "--timeout" in err
    assert len(err.splitlines()) == 1


def test_an_engine_that_is_too_slow() -> None:
    with pytest.raises(CompileError, match=r"did not reach its model within 0\.2 s"):
        rehearse(["/bin/sleep", "60"], TARGET, timeout=0.2)


def test_an_engine_that_ends_early() -> None:
    with pytest.raises(CompileError, match="ended without reaching its model"):
        rehearse(["/bin/true"], TARGET, timeout=60)


@pytest.mark.parametrize("command", [["/no/such/engine"], ["/"], ["a\0b"], [""]])
def test_an_engine_that_cannot_be_started(command: list[str]) -> None:
    with pytest.raises(UsageError, match="cannot be started"):
        rehearse(command, TARGET)
