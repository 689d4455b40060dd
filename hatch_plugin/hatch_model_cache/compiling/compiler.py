"""Parent side of a compile: from a recipe to an artifact directory, through one engine process per target and rank."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hatch_model_cache import targets
from hatch_model_cache.compile import engines
from hatch_model_cache.compile.engines import vllm_command
from hatch_model_cache.compiling import compiled, engine_process, interpreter
from hatch_model_cache.compiling.overlap import Bounds
from hatch_model_cache.compiling.progress import Progress, Silent
from hatch_model_cache.packing import artifacts
from hatch_model_cache.packing.pack import pack
from hatch_model_cache.recipe.checkpoint import Headers
from hatch_model_cache.recipe.recipe import Recipe, config_files
from hatch_model_cache.selfcheck import checker, subject
from model_cache.errors import CompileError, DamagedError, UsageError
from model_cache.store.files import human
from model_cache.wheel.names import counted, printable

BYTES_PER_PROCESS = 3 << 30
"""Memory one compile process is counted with: the 8B and 70B Llama take 1.5 GB each (benchmarks/compile_memory.py)."""


@dataclass(frozen=True)
class _Job:
    target: str
    rank: int

    def __str__(self) -> str:
        return f"{self.target} rank {self.rank}"

    @property
    def directory(self) -> str:
        return f"{self.target}-rank{self.rank}"


@dataclass(frozen=True)
class Way:
    """How artifacts come about.

    Attributes:
        task: what each engine process is told to do (`compile.worker.run`).
        mode: as the manifest says it, for GPUs.
        needed: keys that the result of such a process must have.
        finish: makes of that result, the target, and the directory of the process what `compiled.collect` takes.
        kept: variables of this process that the engine's gets too.
    """

    task: str
    mode: str
    needed: tuple[str, ...]
    finish: Callable[[dict[str, Any], str, Path], dict[str, Any]]
    kept: tuple[str, ...] = ()


CROSS = Way("compile", "cross", compiled.RESULT_KEYS, lambda result, *_: result)
"""For a pretended GPU; for the CPU that is here, which is all that can be compiled for a CPU."""


def compile_recipe(
    recipe: Recipe, out: Path, *, way: Way = CROSS, bounds: Bounds | None = None, progress: Progress | None = None
) -> None:
    """Compile every target and rank of a recipe and leave the artifact directory `out`.

    `out` appears whole or not at all. The engine's logs lie in ``out/logs``; when a compile fails its log is kept and
    named in the error.

    Args:
        recipe: what to compile.
        out: a directory that does not exist yet, or is empty.
        way: how the artifacts come about.
        bounds: what it may take beside other work: then one engine process runs at a time.
        progress: told of stages and kernels.

    Raises:
        UsageError: if `out` is in use or cannot be made, or no interpreter with the engine is known.
        ModelCacheError: as `recipe.checkpoint.read`, if there is a checkpoint.
        CompileError: if the engine fails, the checkpoint does not fit the model, or what is left is not complete and
            right.
    """
    out = check_out(out)
    check_machine(recipe)
    python = interpreter.choose(recipe.engine_name, recipe.python)
    with _staging(out) as staging, _scratch(recipe.digest()) as scratch:
        model = scratch / "model"
        _copy_config(recipe, model)
        headers = recipe.headers()
        if headers is not None:
            headers.write(model)
        results: list[tuple[_Job, dict[str, Any]]] = []
        for target in recipe.targets:
            first = _Job(target, 0)
            run_one = functools.partial(_run, python, recipe, way, bounds, scratch, headers, progress or Silent())
            result = run_one(first)
            results.append((first, result))
            others = [_Job(target, rank) for rank in range(1, result["ranks"])]
            at_a_time = 1 if bounds else processes(len(others))
            if others:
                free = f"one for a core, {BYTES_PER_PROCESS >> 30} GiB of free memory for each"
                why = f"{at_a_time} at a time: {f'{human(bounds.memory)} at most' if bounds else free}"
                (progress or Silent()).stage(target, f"{counted(len(others), 'more rank')}, {why}")
            with ThreadPoolExecutor(max_workers=at_a_time) as pool:
                run = [pool.submit(run_one, job) for job in others]
                results.extend((job, future.result()) for job, future in zip(others, run, strict=True))
        collected = [compiled.RankResult(job.target, job.rank, scratch / job.directory, r) for job, r in results]
        try:
            compiled.collect(recipe, model, collected, staging, way.mode, headers)
            # what cannot be packed (a secret, a path of this machine) is better known now than in the build
            pack(artifacts.read(staging), recipe, name=recipe.distribution_name, version="0")
        except (CompileError, DamagedError) as error:
            logs = [engine_process.keep_log(scratch / job.directory, str(job)) for job, _ in results]
            told = f"What the engine left cannot be shipped (logs: {', '.join(map(str, logs))}):"
            raise CompileError(told, error.problems or [error.message]) from None
        if recipe.selfcheck:
            _check_kernels(staging, python, progress or Silent())
        staging.chmod(0o755)
        try:
            if out.exists():
                out.rmdir()
            staging.rename(out)
        except OSError as error:
            raise _cannot_be_made(out, error) from None


def _check_kernels(directory: Path, python: str, progress: Progress) -> None:
    """Check the kernels of an artifact directory; the report goes to its logs. Raises CompileError if one fails."""
    report = checker.check(subject.of_artifacts(artifacts.read(directory)), python, progress)
    text = json.dumps({**report.as_dict(), "subject": None}, indent=1) + "\n"
    (directory / artifacts.LOGS / "selfcheck.json").write_text(text, "utf-8")
    if problem := report.problem("the recipe's kernels"):
        raise CompileError(problem.message, problem.problems)


def check_out(out: Path) -> Path:
    """Where the artifact directory `out` really is. Raises UsageError unless it can become the artifact directory."""
    try:
        real = out.resolve()  # a link cannot be renamed over
        if real.exists() and (not real.is_dir() or any(real.iterdir())):
            raise UsageError(f"{real} is not empty: give a new directory, or remove it first.")
        if real.is_mount():
            raise UsageError(f"{real} is a mount point, which cannot be replaced: give a directory below it.")
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of links; ValueError: a NUL
        raise _cannot_be_made(out, error) from None
    return real


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """A directory beside `out`, made before the engine runs: a place that cannot be written to is known at once."""
    made = [parent for parent in out.parents if not parent.exists()]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".model-cache-compile-", dir=out.parent))
    except OSError as error:
        raise _cannot_be_made(out, error) from None
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        for parent in made:  # the innermost first; one that holds something stays
            with suppress(OSError):
                parent.rmdir()


def _cannot_be_made(out: Path, error: Exception) -> UsageError:
    reason = getattr(error, "strerror", None) or str(error)
    return UsageError(f"the artifact directory {printable(str(out)):.300} cannot be made: {reason}")


def check_machine(recipe: Recipe) -> None:
    """Raise UsageError for a CPU that this machine is not, since its code is native, and for ranks that were not shown
    on one."""
    from hatch_model_cache import probe

    for target in recipe.load_targets():
        if isinstance(target, targets.CpuTarget):
            here = probe.cpu_target(recipe.environment)
            if here != target:
                is_one = f"is of the target {here.name}" if here else "is of no shipped target"
                raise UsageError(
                    f"{target.name} can only be compiled for on such a machine, and this one {is_one}: "
                    "`model-cache targets show` tells what it takes."
                )
            if unshown := vllm_command.other_parallelism(recipe.serve_args):
                raise UsageError(
                    f"{', '.join(unshown)} in `serve-args`: of several ranks on a CPU only those of "
                    "--tensor-parallel-size have been shown."
                )


def _copy_config(recipe: Recipe, destination: Path) -> None:
    """The configuration under a neutral path. Weights that lie beside it are not copied."""
    source = recipe.config_dir
    if source is None and recipe.factory is not None:  # it is in the engine's environment
        destination.mkdir()
        return
    if source is None:
        from hatch_model_cache.recipe import hub_config

        source = hub_config.fetch(recipe.model, recipe.revision)
    _copy_files(source, destination)


def _copy_files(source: Path, destination: Path) -> None:
    for name, path in config_files(source):
        (destination / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, destination / name)


@contextmanager
def _scratch(digest: str) -> Iterator[Path]:
    """A private directory whose path depends on the recipe alone, since the path is traced into the artifacts.

    If somebody else holds that path, another one is taken; the artifacts are as good, but not byte-identical.
    """
    wanted = engine_process.neutral_place() / f"model-cache-{digest[:16]}"
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
    scratch = wanted if ours else Path(tempfile.mkdtemp(prefix="model-cache-", dir=wanted.parent))
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


def processes(jobs: int) -> int:
    """How many compile processes at a time: at most one per core, and `BYTES_PER_PROCESS` of free memory for each."""
    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    [available] = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    return max(1, min(jobs, len(os.sched_getaffinity(0)), available // BYTES_PER_PROCESS))


def _run(
    python: str,
    recipe: Recipe,
    way: Way,
    bounds: Bounds | None,
    scratch: Path,
    headers: Headers | None,
    progress: Progress,
    job: _Job,
) -> dict[str, Any]:
    """One compile process, to its end."""
    directory = scratch / job.directory
    for name in ("home", "tmp", "work"):
        (directory / name).mkdir(parents=True)
    for name, source in recipe.draft_dirs.items():
        _copy_files(source, directory / "work" / name)
    description = {
        "task": way.task,
        "native": way.mode == "native",
        "layout": recipe.device_layout,
        "packages": recipe.packages_directory,
        "engine": recipe.engine_name,
        "version": recipe.engine_version,
        "target": targets.load(job.target).as_dict(),
        "rank": job.rank,
        "serve_arguments": [str(scratch / "model"), *recipe.engine_arguments],
        "served_as": list(recipe.served_as),
        "checkpoint": headers and {"directory": str(scratch / "model"), "values": list(headers.named)},
        "components": list(recipe.components),
        "evidence": str(directory / artifacts.EVIDENCE) if recipe.keeps_evidence else None,
    }
    cache = engines.adapter(recipe.engine_name).environment(directory / "cache")

    def tell(event: Mapping[str, Any]) -> None:
        if "stage" in event:
            progress.stage(str(job), event["stage"])
        elif "kernel" in event:
            progress.kernel(str(job), event["kernel"])

    kept = {name: os.environ[name] for name in way.kept if name in os.environ}
    environment = kept | interpreter.scrubbed_environment(recipe.environment, cache, directory)
    result = engine_process.run(
        python,
        description,
        directory,
        environment,
        cwd=directory / "work",
        label=str(job),
        needed=way.needed,
        bounds=bounds,
        on_event=tell,
    )
    return way.finish(result, job.target, directory)
