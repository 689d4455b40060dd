"""Parent side of a rehearsal: start an unmodified engine under pretended GPUs, and read what it did with the cache."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hatch_model_cache.compile import engines
from hatch_model_cache.compile import rehearsal as inside
from hatch_model_cache.compiling import engine_process, interpreter
from model_cache.errors import CompileError, UsageError
from model_cache.wheel.names import printable

_ERROR = re.compile(r"\b[\w.]*(Error|Exception): .*")
_LOG_END_BYTES = 256 << 10

_LONGEST_PLACE = 107 - len("/model-cache-rehearsal-12345678/12345678-1234-1234-1234-123456789012")
"""Bytes. Linux takes 107 for the path of a socket, and vLLM's processes talk over some in TMPDIR, named by UUIDs."""


@dataclass(frozen=True)
class Report:
    """What a rehearsed engine did, up to the point where it would have run the model on the GPU.

    Attributes:
        ranks: the ranks that got there (``0_0``, ``1_0``, …); empty if the engine looks for no artifact.
        loaded: compiled models loaded from the cache; with several ranks, by the one that loaded the fewest.
        parts: compiled parts inside them (0 would mean: loaded, and running uncompiled); counted likewise.
        inductor_compiles: graphs compiled anew, in all ranks.
        ptxas_runs: kernels assembled anew, in all ranks.
        load_seconds: time in the engine's look-up, in the slowest rank.
        seconds: from the start of the engine core, or the worker, to the first call of the model; the slowest again.
        error: how an engine process ended, if it did not get there.
    """

    ranks: tuple[str, ...]
    loaded: int
    parts: int
    inductor_compiles: int
    ptxas_runs: int
    load_seconds: float
    seconds: float
    error: str | None

    @property
    def warm(self) -> bool:
        """Everything was loaded and nothing was compiled."""
        return (
            self.error is None
            and self.loaded > 0
            and self.parts > 0
            and not self.inductor_compiles
            and not self.ptxas_runs
        )

    @classmethod
    def parse(cls, documents: Sequence[Mapping[str, Any]]) -> Report:
        """Read the reports that the engine's processes wrote, one or more."""
        return cls(
            ranks=tuple(sorted(document["rank"] for document in documents if document["rank"])),
            loaded=min(document["artifacts_loaded"] for document in documents),
            parts=min(document["compiled_parts_loaded"] for document in documents),
            inductor_compiles=sum(document["inductor_compiles"] for document in documents),
            ptxas_runs=sum(document["ptxas_runs"] for document in documents),
            load_seconds=max(document["seconds"]["load"] for document in documents),
            seconds=max(document["seconds"]["until_first_run"] for document in documents),
            error=next((document["error"] for document in documents if document["error"]), None),
        )


def rehearse(
    command: Sequence[str],
    target: str,
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: Path | None = None,
    timeout: float = 900,
) -> Report:
    """Run an engine's command line under pretended GPUs until every rank reports, then end it.

    Args:
        command: for example ``["vllm", "serve", "org/model", "--max-model-len", "8192"]``. The interpreter behind it
            must have hatch-model-cache installed, as every serving host with a model-cache wheel does.
        target: the target to pretend.
        environment: the whole environment of the engine (default: this process's).
        cwd: its working directory.
        log: file for its output; a temporary one, kept only where an error names it, if None.
        timeout: seconds after which the engine is ended.

    Raises:
        UsageError: if the command cannot be started.
        CompileError: if the engine ends, or the time does, without a report; names the log.
    """
    with tempfile.TemporaryDirectory(prefix="model-cache-rehearsal-", dir=_place()) as scratch:
        reports = Path(scratch) / "reports"
        reports.mkdir()
        ranks = len(engines.adapter("vllm").expected_ranks(command))
        settings = inside.environment(target, reports, ranks)
        whole = dict(os.environ if environment is None else environment)
        path = [settings.pop("PYTHONPATH"), *filter(None, [whole.get("PYTHONPATH")])]
        own = {"PYTHONPATH": os.pathsep.join(path), "TMPDIR": scratch}  # where an engine that is ended leaves things
        whole.update(settings, **own, **interpreter.UNDISTURBED)
        written = log or Path(scratch) / engine_process.LOG
        with written.open("wb") as output:
            try:
                process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=cwd,
                    env=whole,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"{command[0]!r:.300} cannot be started: {getattr(error, 'strerror', None) or error}"
                ) from None
        try:
            found, in_time = _wait(process, reports, ranks, timeout)
        finally:
            engine_process.end(process)
        if len(found) == ranks or any(document["error"] for document in found):
            return Report.parse(found)
        model = "its model" if ranks == 1 else f"its model in every rank ({len(found)} of {ranks})"
        late = f"did not reach {model} within {timeout:g} s, and was ended"
        what = f"ended without reaching {model}" if in_time else late
        kept = log or engine_process.keep_log(Path(scratch), "rehearsal")
        raise CompileError(f"The engine {what}{_last_error(written)}. Its log: {kept}")


def _place() -> Path:
    """Where a rehearsal works: TMPDIR, or a shorter directory when the engine's sockets would not fit there."""
    temporary = Path(tempfile.gettempdir())
    return temporary if len(os.fsencode(temporary)) <= _LONGEST_PLACE else engine_process.neutral_place()


def _last_error(log: Path) -> str:
    """The last line of a log that tells an exception, as the end of a sentence; empty if there is none."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_END_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    # vLLM's parent process ends with an error of its own, which says only that there is one above
    own = (line for line in reversed(lines) if "See root cause above" not in line)
    error = next(filter(None, map(_ERROR.search, own)), None)
    return f": {printable(error[0]).rstrip('.'):.300}" if error else ""


def _wait(
    process: subprocess.Popen[bytes], reports: Path, ranks: int, timeout: float
) -> tuple[list[dict[str, Any]], bool]:
    """Wait for a report of every rank, for one with an error, or for the engine's end: the reports, and if in time."""
    deadline = time.monotonic() + timeout
    while True:
        ended = process.poll() is not None  # asked before the reports are read: the last may come just now
        found = [json.loads(path.read_text("utf-8")) for path in sorted(reports.glob("*.json"))]
        if ended or len(found) == ranks or any(document["error"] for document in found):
            return found, True
        if time.monotonic() > deadline:
            return found, False
        time.sleep(0.1)
