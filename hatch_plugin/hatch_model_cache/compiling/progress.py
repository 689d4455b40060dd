"""Progress of long work on a terminal: one line that lives, one line per finished stage. Silent when piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self


class Progress(Protocol):
    """Told of what happens; shows it or does not."""

    def stage(self, job: str, name: str) -> None:
        """`job` (target and rank) begins the stage `name`."""

    def kernel(self, job: str, name: str) -> None:
        """`job` has compiled one more kernel."""


class Silent:
    """Shows nothing."""

    def stage(self, job: str, name: str) -> None:
        """Shows nothing."""

    def kernel(self, job: str, name: str) -> None:
        """Shows nothing."""


class Terminal:
    """Stages, kernels and elapsed seconds on stderr. With rich (extra `progress`) the current line is animated."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._kernels: dict[str, int] = {}
        self._stage: dict[str, str] = {}
        self._live = _live()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def stage(self, job: str, name: str) -> None:
        """One line for the stage that begins."""
        self._stage[job] = name
        self._live.console(f"{self._elapsed()}  {job}: {name}")
        self._show()

    def kernel(self, job: str, name: str) -> None:  # noqa: ARG002
        """Counts in the living line."""
        self._kernels[job] = self._kernels.get(job, 0) + 1
        self._show()

    def _show(self) -> None:
        parts = [f"{job}: {stage}, {self._kernels.get(job, 0)} kernels" for job, stage in self._stage.items()]
        self._live.update(f"{self._elapsed()}  " + " | ".join(parts))

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._begun:5.0f} s"


@contextmanager
def shown(*, quiet: bool = False) -> Iterator[Progress]:
    """The progress display for this process: a `Terminal` if stderr is one and `quiet` is false, else `Silent`."""
    if quiet or not sys.stderr.isatty():
        yield Silent()
    else:
        with Terminal() as terminal:
            yield terminal


class _Plain:
    """Without rich: lines only."""

    def start(self) -> None:
        return None

    def stop(self) -> None:
        return None

    def update(self, text: str) -> None:  # noqa: ARG002
        return None

    def console(self, text: str) -> None:
        sys.stderr.write(text + "\n")


class _Rich:
    def __init__(self, status: Any) -> None:
        self._status = status
        self.start, self.stop = status.start, status.stop

    def update(self, text: str) -> None:
        self._status.update(text)

    def console(self, text: str) -> None:
        self._status.console.print(text, highlight=False, markup=False)


def _live() -> _Plain | _Rich:
    try:
        from rich.console import Console
        from rich.status import Status
    except ImportError:
        return _Plain()
    return _Rich(Status("", console=Console(stderr=True)))
