"""Parent side of a compile: from a recipe to an artifact directory, through one engine process per target and rank."""

from __future__ import annotations

import fcntl
import io
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_cache.errors import CompileError, UsageError

from . import compiled, interpreter
from .compile import engines
from .progress import Progress, Silent
from .recipe import Recipe, config_files

BYTES_PER_PROCESS = 3 << 30
"""Memory one compile process is counted with: the 8B and 70B Llama take 1.5 GB each (benchmarks/compile_memory.py)."""

_BOOTSTRAP = Path(__file__).parent / "compile" / "bootstrap.py"


@dataclass(frozen=True)
class _Job:
    target: str
    rank: int

    def __str__(self) -> str:
        return f"{self.target} rank {self.rank}"

    @property
    def directory(self) -> str:
        return f"{self.target}-rank{self.rank}"


def compile_recipe(recipe: Recipe, out: Path, *, progress: Progress | None = None) -> None:
    """Compile every target and rank of a recipe and leave the artifact directory `out`.

    `out` appears whole or not at all. The engine's logs lie in ``out/logs``; when a compile fails its log is kept and
    named in the error.

    Args:
        recipe: what to compile.
        out: a directory that does not exist yet, or is empty.
        progress: told of stages and kernels.

    Raises:
        UsageError: if `out` is in use, or no interpreter with the engine is known.
        CompileError: if the engine fails, or what it left is not complete and right.
    """
    out = out.resolve()  # a link cannot be renamed over
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is not empty: give a new directory, or remove it first.")
    python = interpreter.choose(recipe.engine_name, recipe.python)
    out.parent.mkdir(parents=True, exist_ok=True)
    with _scratch(recipe.digest()) as scratch:
        model = scratch / "model"
        _copy_config(recipe, model)
        results: list[tuple[_Job, dict[str, Any]]] = []
        for target in recipe.targets:
            first = _Job(target, 0)
            result = _run(python, recipe, first, scratch, progress or Silent())
            results.append((first, result))
            others = [_Job(target, rank) for rank in range(1, result["ranks"])]
            with ThreadPoolExecutor(max_workers=max(1, _processes(len(others)))) as pool:
                run = [pool.submit(_run, python, recipe, job, scratch, progress or Silent()) for job in others]
                results.extend((job, future.result()) for job, future in zip(others, run, strict=True))
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            collected = [compiled.RankResult(job.target, job.rank, scratch / job.directory, r) for job, r in results]
            try:
                compiled.collect(recipe, model, collected, staging)
            except CompileError as error:
                logs = ", ".join(str(_keep(scratch / job.directory / "engine.log", job)) for job, _ in results)
                raise CompileError(f"{error.message.rstrip(':')} (logs: {logs}):", error.problems) from None
            staging.chmod(0o755)
            if out.exists():
                out.rmdir()
            staging.rename(out)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _copy_config(recipe: Recipe, destination: Path) -> None:
    """The configuration under a neutral path. Weights that lie beside it are not copied: nothing may read them."""
    source = recipe.config_dir
    if source is None:
        from . import hub_config

        source = hub_config.fetch(recipe.model, recipe.revision)
    for name, path in config_files(source):
        (destination / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, destination / name)


@contextmanager
def _scratch(digest: str) -> Iterator[Path]:
    """A private directory whose path depends on the recipe alone, since the path is traced into the artifacts.

    If somebody else holds that path, another one is taken; the artifacts are as good, but not byte-identical.
    """
    wanted = Path(tempfile.gettempdir()) / f"model-cache-{digest[:16]}"
    lock = -1
    try:
        wanted.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(wanted, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held, named = os.fstat(lock), wanted.lstat()
        # another compile may have removed the directory between our opening and locking it
        ours = held.st_uid == os.getuid() and (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)
    except OSError:
        ours = False
    scratch = wanted if ours else Path(tempfile.mkdtemp(prefix="model-cache-"))
    try:
        _empty(scratch)
        scratch.chmod(0o700)
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _processes(jobs: int) -> int:
    """How many compile processes at a time: at most one per core, and `BYTES_PER_PROCESS` of free memory for each."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(jobs, len(os.sched_getaffinity(0)), available // BYTES_PER_PROCESS)


def _run(python: str, recipe: Recipe, job: _Job, scratch: Path, progress: Progress) -> dict[str, Any]:
    """One compile process, to its end."""
    directory = scratch / job.directory
    for name in ("home", "tmp"):
        (directory / name).mkdir(parents=True)
    description = {
        "engine": recipe.engine_name,
        "version": recipe.engine_version,
        "target": job.target,
        "rank": job.rank,
        "model": str(scratch / "model"),
        "serve_arguments": list(recipe.serve_args),
        "served_as": list(recipe.served_as),
    }
    (directory / "job.json").write_text(json.dumps(description), "utf-8")
    log = directory / "engine.log"
    cache = engines.adapter(recipe.engine_name).environment(directory / "cache")
    reading, writing = os.pipe()
    command = [python, "-s", "-P", str(_BOOTSTRAP), str(directory / "job.json"), str(writing)]
    with log.open("wb") as output, os.fdopen(reading, "rb", buffering=0) as events:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[writing],
            cwd=directory,
            env=interpreter.scrubbed_environment(recipe.environment, cache, directory),
            start_new_session=True,  # one signal ends it with everything it started
        )
        os.close(writing)
        try:
            for line in _lines(process, events):
                _tell(progress, job, line)
            status = process.wait()
        finally:
            _end(process)
    return _result(directory, job, status, log)


def _lines(process: subprocess.Popen[bytes], pipe: io.FileIO) -> Iterator[bytes]:
    """Lines from the pipe until the process ends, even if the file does not: a child of the engine may hold it open."""
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


def _tell(progress: Progress, job: _Job, line: bytes) -> None:
    event = json.loads(line)
    if "stage" in event:
        progress.stage(str(job), event["stage"])
    elif "kernel" in event:
        progress.kernel(str(job), event["kernel"])


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _result(directory: Path, job: _Job, status: int, log: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads((directory / "result.json").read_text("utf-8"))
    except FileNotFoundError:
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        raise CompileError(f"{job}: the engine ended without a result ({how}). Its log: {_keep(log, job)}") from None
    if "error" in result:
        raise CompileError(f"{job}: {_short(result['error'])}. The engine's log: {_keep(log, job)}")
    return result


def _keep(log: Path, job: _Job) -> Path:
    """Move a log out of the scratch directory, which is about to be removed."""
    descriptor, path = tempfile.mkstemp(prefix=f"model-cache-{job.directory}-", suffix=".log")
    os.close(descriptor)
    shutil.copyfile(log, path)
    return Path(path)


def _short(text: str, limit: int = 300) -> str:
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= limit else line[: limit - 1] + "…"
