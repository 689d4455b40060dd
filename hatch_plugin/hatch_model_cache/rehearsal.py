"""Parent side of a rehearsal: start an unmodified engine under a pretended GPU, and read what it did with the cache."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_cache.errors import CompileError, UsageError

from . import engine_process
from .compile import rehearsal as inside


@dataclass(frozen=True)
class Report:
    """What a rehearsed engine did, up to the point where it would have run the model on the GPU.

    Attributes:
        loaded: compiled models loaded from the cache.
        parts: compiled parts inside them (0 would mean: loaded, and running uncompiled).
        inductor_compiles: graphs compiled anew.
        ptxas_runs: kernels assembled anew.
        load_seconds: time in the engine's look-up.
        seconds: from the start of the engine core to the first call of the model.
        error: how the engine core ended, if it did not get there.
    """

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
    def parse(cls, document: Mapping[str, Any]) -> Report:
        """Read the report that the engine process wrote."""
        return cls(
            loaded=document["artifacts_loaded"],
            parts=document["compiled_parts_loaded"],
            inductor_compiles=document["inductor_compiles"],
            ptxas_runs=document["ptxas_runs"],
            load_seconds=document["seconds"]["load"],
            seconds=document["seconds"]["until_first_run"],
            error=document["error"],
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
    """Run an engine's command line under a pretended GPU until its engine core reports, then end it.

    Args:
        command: for example ``["vllm", "serve", "org/model", "--max-model-len", "8192"]``. The interpreter behind it
            must have hatch-model-cache installed, as every serving host with a model-cache wheel does.
        target: the target to pretend.
        environment: the whole environment of the engine (default: this process's).
        cwd: its working directory.
        log: file for its output; a temporary one, kept and named on failure, if None.
        timeout: seconds after which the engine is ended.

    Raises:
        UsageError: if the command cannot be started.
        CompileError: if the engine ends, or the time does, without a report; names the log.
    """
    with tempfile.TemporaryDirectory(prefix="model-cache-rehearsal-") as scratch:
        report = Path(scratch) / "report.json"
        settings = inside.environment(target, report)
        whole = dict(os.environ if environment is None else environment)
        path = [settings.pop("PYTHONPATH"), *filter(None, [whole.get("PYTHONPATH")])]
        whole.update(settings, PYTHONPATH=os.pathsep.join(path))
        if log is None:
            descriptor, name = tempfile.mkstemp(prefix="model-cache-rehearsal-", suffix=".log")
            os.close(descriptor)
            log = Path(name)
        with log.open("wb") as output:
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
            in_time = _wait(process, report, timeout)
        finally:
            engine_process.end(process)
        if not in_time:
            raise CompileError(
                f"The engine did not reach its model within {timeout:g} s, and was ended. Its log: {log}"
            )
        if not report.is_file():
            raise CompileError(f"The engine ended without reaching its model. Its log: {log}")
        return Report.parse(json.loads(report.read_text("utf-8")))


def _wait(process: subprocess.Popen[bytes], report: Path, timeout: float) -> bool:
    """Whether the engine came to its end, or to its report, in time."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if report.is_file() or process.poll() is not None:
            return True
        time.sleep(0.1)
    return report.is_file()
