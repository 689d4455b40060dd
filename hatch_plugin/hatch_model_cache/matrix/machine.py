"""This machine as a place to build cells on: as many at a time as fit into its cores and memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from hatch_model_cache.compile import engines
from hatch_model_cache.compiling import compiler
from model_cache.errors import CompileError, ModelCacheError

from . import cell_process
from .cells import Cell

LOG = "build.log"
Tell = Callable[[Mapping[str, Any]], None]
"""Told of a cell's ``stage`` and ``kernel`` events."""


class Place(Protocol):
    """Where cells are built."""

    capacity: int
    """Compile processes at a time."""

    def run(self, cell: Cell, directory: Path, tell: Tell) -> Path:
        """Build the project in `directory`/project and return the wheel; called in a thread for each cell.

        Raises ModelCacheError when it fails.
        """

    def stop(self) -> None:
        """End everything that runs; `run` then fails. Called once, from another thread."""


def weight(cell: Cell) -> int:
    """Compile processes that a cell runs at a time: the ranks after the first one together."""
    recipe = cell.recipe
    return max(1, len(engines.adapter(recipe.engine_name).expected_ranks(recipe.serve_args)) - 1)


class Machine:
    """One process for each cell, which starts the engine's."""

    def __init__(self, jobs: int | None = None) -> None:
        """jobs: compile processes at a time; by default what the compiler allows itself."""
        self.capacity = jobs or compiler.processes(sys.maxsize)
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def run(self, cell: Cell, directory: Path, tell: Tell) -> Path:  # noqa: ARG002
        """See `Place`."""
        return run_process(directory, tell, self._started, self._ended)

    def stop(self) -> None:
        """See `Place`. A process that is interrupted ends its engine before it ends itself."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGINT)

    def _started(self, process: subprocess.Popen[str]) -> None:
        with self._lock:
            self._running.add(process)
            if self._stopped:
                process.send_signal(signal.SIGINT)

    def _ended(self, process: subprocess.Popen[str]) -> None:
        with self._lock:
            self._running.discard(process)


def run_process(
    directory: Path,
    tell: Tell,
    started: Callable[[subprocess.Popen[str]], None],
    ended: Callable[[subprocess.Popen[str]], None],
    environment: Mapping[str, str] | None = None,
) -> Path:
    """Run `cell_process` on a cell's directory and return the wheel. Its log is `LOG` in there.

    started, ended: told of the process while it lives. environment: added to that of this process. Raises
    ModelCacheError when it fails.
    """
    last: Mapping[str, Any] = {}
    with (directory / LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", cell_process.__name__, str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            errors="replace",
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # Ctrl-C reaches us, and we interrupt it once
        )
        started(process)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                with suppress(ValueError):
                    last = json.loads(line)
                    tell(last)
            status = process.wait()
        finally:
            ended(process)
    if "wheel" in last:
        return Path(last["wheel"])
    error = last.get("error")
    if isinstance(error, dict):
        kind = CompileError if error.get("kind") == CompileError.kind else ModelCacheError
        raise kind(str(error["message"]), [str(problem) for problem in error["problems"]])
    raise CompileError(f"ended without a wheel (exit status {status}); its log: {directory / LOG}")
