"""The progress display: lines on a terminal, nothing anywhere else."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest

from hatch_model_cache.compiling import progress


class Tty(io.StringIO):
    """What sys.stderr is on a terminal."""

    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Tty:
    """Make stderr a terminal. No fixture: pytest puts its own sys.stderr back between set-up and test."""
    stream = Tty()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return stream


@pytest.fixture(params=["with rich", "without rich"])
def rich(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    if request.param == "with rich":
        pytest.importorskip("rich")
        yield True
    else:
        for name in ("rich", "rich.console", "rich.status"):
            monkeypatch.setitem(sys.modules, name, None)
        yield False


def use(shown: progress.Progress) -> None:
    shown.stage("h100 rank 0", "build the model")
    shown.kernel("h100 rank 0", "triton_poi_fused_0")
    shown.kernel("h100 rank 0", "triton_red_fused_1")
    shown.stage("h100 rank 0", "save")


def test_silent_when_piped(capfd: pytest.CaptureFixture[str], rich: bool) -> None:
    with progress.shown() as shown:
        use(shown)
    assert capfd.readouterr() == ("", "")


def test_silent_when_told_to_be_quiet(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    stream = terminal(monkeypatch)
    with progress.shown(quiet=True) as shown:
        use(shown)
    assert stream.getvalue() == ""
    assert capfd.readouterr() == ("", "")


def test_stages_are_lines_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, rich: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    stream = terminal(monkeypatch)
    with progress.shown() as shown:
        use(shown)
    text = stream.getvalue()
    for stage in ("build the model", "save"):
        assert f"h100 rank 0: {stage}" in text
    assert " s  h100" in text, "the elapsed time"
    assert capfd.readouterr().out == "", "stdout belongs to results"


def test_the_living_line_counts_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    seen: list[str] = []
    monkeypatch.setattr(progress._Plain, "update", lambda self, text: seen.append(text))
    monkeypatch.setattr(progress, "_live", progress._Plain)
    with progress.shown() as shown:
        use(shown)
        shown.stage("h100 rank 1", "build the model")
    assert seen[0].endswith("h100 rank 0: build the model, 0 kernels")
    assert seen[2].endswith("h100 rank 0: build the model, 2 kernels")
    assert seen[-1].endswith("h100 rank 0: save, 2 kernels | h100 rank 1: build the model, 0 kernels")


def test_the_display_ends_when_the_work_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    seen: list[str] = []
    for name in ("start", "stop"):
        monkeypatch.setattr(progress._Plain, name, lambda self, name=name: seen.append(name))
    monkeypatch.setattr(progress, "_live", progress._Plain)

    def fail() -> None:
        seen.append("work")
        raise KeyError

    with pytest.raises(KeyError), progress.shown():
        fail()
    assert seen == ["start", "work", "stop"]
