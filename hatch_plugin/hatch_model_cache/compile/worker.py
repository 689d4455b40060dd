"""One compile process: one target, one rank. Reads a job, writes a result, reports progress as JSON lines."""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from . import engines
from .engines import layout
from .pretend.header_loader import Checkpoint, CheckpointError
from .selfcheck import recording
from .surroundings import Surroundings, surround

RESULT = "result.json"


class WrongEngineError(RuntimeError):
    """This interpreter has not the engine that was asked for."""


class UnknownVersionError(WrongEngineError):
    """The engine's version has no adapter: nothing can be said about its keys."""


class Progress:
    """Tells the parent process what happens, as JSON lines on a pipe. Says nothing more once the pipe is closed."""

    def __init__(self, descriptor: int) -> None:
        self._pipe = os.fdopen(descriptor, "w", buffering=1)

    def tell(self, **event: object) -> None:
        """Send one event."""
        try:
            self._pipe.write(json.dumps(event) + "\n")
        except OSError:
            return

    def stage(self, name: str) -> None:
        """A new stage begins."""
        self.tell(stage=name)


def main(job_path: Path, descriptor: int) -> int:
    """Run the job; write ``result.json`` beside it, with an ``error`` in it if it failed."""
    begun = time.monotonic()
    progress = Progress(descriptor)
    job = json.loads(job_path.read_text("utf-8"))
    try:
        result = run(job, job_path.parent, progress)
    except ModuleNotFoundError as error:
        traceback.print_exc()
        result = {"error": f"{sys.executable} has no working {job['engine']}: {error}"}
    except CheckpointError as error:
        traceback.print_exc()
        result = {"error": str(error), "problems": error.problems}
    except WrongEngineError as error:
        traceback.print_exc()
        result = {"error": str(error), "unknown": isinstance(error, UnknownVersionError)}
    except Exception as error:
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"}
    result["measured"] = {
        "seconds": round(time.monotonic() - begun, 2),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    (job_path.parent / RESULT).write_text(json.dumps(result, indent=1), "utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    # The engine leaves threads and half-made groups behind that would hang an orderly exit.
    os._exit(1 if "error" in result else 0)


def run(job: Mapping[str, Any], scratch: Path, progress: Progress) -> dict[str, Any]:
    """Do what `job` says.

    Args:
        job: ``task`` ("compile", "describe", "look-up", or "selfcheck": see `selfcheck.job.check`), ``engine`` and
            ``version`` (None: any known one), ``target`` (its record), ``serve_arguments`` (what the adapter's
            ``parse`` takes: what follows ``vllm serve``, the model first), for the first two ``served_as``, ``rank``,
            ``layout`` (which GPU each rank uses; else it is as this process's environment has it) and ``packages``
            (`Surroundings.packages`), and for a compile ``components`` (what is wanted beside, of an adapter that has
            any), ``evidence`` (None, or a directory for what kernels were made from), ``native`` (whether a GPU is the
            one that is here) and ``checkpoint`` (None, or the fields of `pretend.header_loader.Checkpoint`).
        scratch: directory of this process.
        progress: told of stages and kernels.
    """
    if job["task"] == "selfcheck":
        from .selfcheck import job as selfcheck

        return selfcheck.check(job, progress.stage)
    progress.stage("import the engine")
    native = job.get("native", False)
    with surround(job["target"], scratch=scratch, engine=job["engine"], native=native) as surroundings:
        return perform(job, surroundings, progress)


def perform(job: Mapping[str, Any], surroundings: Surroundings, progress: Progress) -> dict[str, Any]:
    """Do what `job` says, as `run` does, in a process that is in its surroundings already.

    Expects that the garbage collector was off while the engine was imported; puts it on for a compile.
    """
    adapter = engines.adapter(job["engine"])
    versions = adapter.versions()
    _check_version(job, versions["version"], adapter.VERSIONS)
    progress.stage("create the engine's configuration")
    arguments = adapter.parse(job["serve_arguments"])
    surroundings.count = adapter.ranks(arguments)
    surroundings.layout = job.get("layout") or layout.of_environment()
    surroundings.checkpoint = Checkpoint.of(job.get("checkpoint"))
    surroundings.packages = job.get("packages")
    config = adapter.create_config(arguments)
    gc.freeze()  # what was imported is no garbage, and looking through it takes seconds
    if job["task"] == "compile":
        gc.enable()
    surroundings.log.on_kernel = lambda kernel: progress.tell(kernel=kernel.name)
    task = {"compile": _compile, "describe": _describe, "look-up": _look_up}[job["task"]]
    result = task(adapter, surroundings, config, job, progress)
    return {"engine": versions, "host_answers": adapter.host_answers(), **result}


def _check_version(job: Mapping[str, Any], installed: str, known: Collection[str]) -> None:
    if job["version"] not in (None, installed):
        found = _distribution(job["engine"]) or f"{job['engine']} {installed}"
        raise WrongEngineError(f"the recipe asks for {job['engine']}=={job['version']}, {sys.executable} has {found}")
    if installed not in known:
        raise UnknownVersionError(
            f"{job['engine']} {installed} is not known to this release; known: {', '.join(sorted(known))}"
        )


def _distribution(engine: str) -> str | None:
    """The distribution that the engine's package is of, and its version: several have a package `vllm`."""
    for name in (engine, *engines.SERVERS):
        with suppress(metadata.PackageNotFoundError):
            return f"{name} {metadata.version(name)}"
    return None


def _compile(
    adapter: ModuleType, surroundings: Surroundings, config: Any, job: Mapping[str, Any], progress: Progress
) -> dict[str, Any]:
    record = recording.Record(job["target"]["name"], Path(job["evidence"]) if job["evidence"] else None)
    if job["target"]["kind"] == "gpu":
        recording.install(surroundings.patches, record)
    more = {"components": job["components"]} if job["components"] else {}
    compiled = adapter.compile_rank(surroundings, config, job["served_as"], job["rank"], progress.stage, **more)
    log = surroundings.log
    return {
        **_described(adapter, surroundings, config, compiled),
        "saved": compiled.saved,
        "parts": compiled.parts,
        "kernels": [{**asdict(kernel), "lineage": record.lineage(kernel.sha256)} for kernel in log.kernels.values()],
        "regions": record.regions_as_dicts(),
        "ptxas_runs": log.ptxas_runs,
        "stand_ins": [
            {"site": site, "answer": answer, "count": count} for (site, answer), count in sorted(log.stand_ins.items())
        ],
        "launches_skipped": dict(sorted(log.launches_skipped.items())),
    }


def _describe(
    adapter: ModuleType, surroundings: Surroundings, config: Any, job: Mapping[str, Any], progress: Progress
) -> dict[str, Any]:
    described = adapter.describe_rank(surroundings, config, job["served_as"], job["rank"], progress.stage)
    return _described(adapter, surroundings, config, described)


def _described(adapter: ModuleType, surroundings: Surroundings, config: Any, compiled: Any) -> dict[str, Any]:
    """What is the same whether the artifacts were compiled or only described."""
    return {
        "ranks": surroundings.count,
        "architectures": adapter.architectures(config),
        "factors": compiled.factors,
        "unkeyed": compiled.unkeyed,
        "models": compiled.models,
        "hints": compiled.hints,
        "artifacts": [asdict(artifact) for artifact in compiled.artifacts],
    }


def _look_up(
    adapter: ModuleType, surroundings: Surroundings, config: Any, _: Mapping[str, Any], progress: Progress
) -> dict[str, Any]:
    why = "the engine collects garbage while it starts, for seconds, and this process ends with its look-up"
    surroundings.patches.set(gc, "collect", lambda *_, **__: 0, why=why, checked="python 3.11")
    looked_up = adapter.look_up_keys(surroundings, config, progress.stage)
    return {
        "look_ups": [asdict(look_up) for look_up in looked_up],
        "why_nothing": None if looked_up else adapter.why_nothing(config),
        "flags": adapter.flags(),
        "options": adapter.options(),
    }
