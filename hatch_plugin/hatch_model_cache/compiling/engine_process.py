"""One process in the engine's interpreter: given a job, watched while it works, ended with everything it started."""

from __future__ import annotations

import io
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hatch_model_cache.compiling.overlap import Bounds
from model_cache.errors import CompileError, UsageError

_BOOTSTRAP = Path(__file__).parent.parent / "compile" / "bootstrap.py"
LOG = "engine.log"

NEUTRAL_PLACES = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - what is made there is private, and checked to be ours
"""Where a compile works: the path is traced into artifacts, so it should be the same for every user."""


class UnknownEngineError(CompileError):
    """The engine's version has no adapter in this release."""


def run(
    python: str,
    job: Mapping[str, Any],
    directory: Path,
    environment: Mapping[str, str],
    *,
    cwd: Path | None = None,
    label: str,
    needed: Iterable[str] = (),
    bounds: Bounds | None = None,
    on_event: Callable[[Mapping[str, Any]], None],
) -> dict[str, Any]:
    """Run `compile/worker.py` on a job, to its end, and return its result.

    Args:
        python: the engine's interpreter.
        job: see `compile.worker.run`.
        directory: the process's own; gets ``job.json``, ``result.json`` and ``engine.log``.
        environment: the whole environment of the process.
        cwd: its working directory; `directory` if None.
        label: how errors call it.
        needed: keys that a result must have.
        bounds: what it may take beside other work; None: what it needs.
        on_event: told of every stage and kernel.

    Raises:
        UsageError: if it cannot be started.
        CompileError: if the process fails, takes more than it may, or leaves no result that can be read; its log is
            kept and named.
    """
    (directory / "job.json").write_text(json.dumps(job), "utf-8")
    reading, writing = os.pipe()
    command = [python, "-s", "-P", str(_BOOTSTRAP), str(directory / "job.json"), str(writing)]
    with (directory / LOG).open("wb") as output, os.fdopen(reading, "rb", buffering=0) as events:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[writing],
                cwd=cwd or directory,
                env=dict(environment),
                start_new_session=True,  # one signal ends it with everything it started
            )
        except (OSError, ValueError) as error:  # a directory that is gone, an environment that is too large
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"{label}: the engine's interpreter {python} cannot be started: {reason}") from None
        finally:
            os.close(writing)
        try:
            if bounds:
                bounds.apply(process.pid)
            for line in _lines(process, events):
                if bounds and (excess := bounds.excess(process.pid)):
                    raise CompileError(f"{label}: {excess}, and was ended. Its log: {keep_log(directory, label)}")
                with suppress(ValueError):
                    on_event(json.loads(line))
            status = process.wait()
        finally:
            end(process)
    return _result(directory, status, label, needed)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads its own session, and all that is in it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def neutral_place() -> Path:
    """The first of `NEUTRAL_PLACES` that can be written to, else TMPDIR: which is often below the user's home, whose
    path may not be shipped."""
    for place in NEUTRAL_PLACES:
        if os.access(place, os.W_OK | os.X_OK):
            return place
    return Path(tempfile.gettempdir())


def keep_log(directory: Path, label: str) -> Path:
    """Copy a process's log out of its directory, which is about to be removed."""
    descriptor, path = tempfile.mkstemp(prefix=f"model-cache-{label.replace(' ', '-')}-", suffix=".log")
    os.close(descriptor)
    shutil.copyfile(directory / LOG, path)
    return Path(path)


def _lines(process: subprocess.Popen[bytes], pipe: io.FileIO) -> Iterator[bytes]:
    """Lines from the pipe until the process ends, even if the file does not: a child of the engine may hold it open.

    An empty one comes when there is none for half a second.
    """
    pending = b""
    while True:
        ended = process.poll() is not None
        if select.select([pipe], [], [], 0 if ended else 0.5)[0]:
            data = pipe.read(65536)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            yield from lines
        elif ended:
            return
        else:
            yield b""


def _result(directory: Path, status: int, label: str, needed: Iterable[str]) -> dict[str, Any]:
    try:
        result = json.loads((directory / "result.json").read_text("utf-8"))
    except FileNotFoundError:
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        log = keep_log(directory, label)
        raise CompileError(f"{label}: the engine ended without a result ({how}). Its log: {log}") from None
    except (OSError, ValueError, RecursionError):
        result = None
    if isinstance(result, dict) and "error" in result:
        kind = UnknownEngineError if result.get("unknown") else CompileError
        problems = [_short(str(problem)) for problem in result.get("problems", ())]
        said = f"{label}: {_short(str(result['error']))}"
        raise kind(f"{said}. The engine's log: {keep_log(directory, label)}", problems)
    if not isinstance(result, dict) or not result.keys() >= set(needed):
        log = keep_log(directory, label)
        raise CompileError(f"{label}: the engine left a result that cannot be read. Its log: {log}")
    return result


def _short(text: str, limit: int = 300) -> str:
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= limit else line[: limit - 1] + "…"
