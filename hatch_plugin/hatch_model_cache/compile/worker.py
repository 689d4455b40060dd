"""One compile process: one target, one rank. Reads a job, writes a result, reports progress as JSON lines."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hatch_model_cache import targets

from . import engines
from .pretend import pretend

RESULT = "result.json"


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
    except (Exception, SystemExit) as error:
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
    """Compile what `job` says.

    Args:
        job: ``target`` (its name), ``engine`` and ``version``, ``model`` (directory with config.json),
            ``serve_arguments``, ``served_as``, ``rank``.
        scratch: directory of this process.
        progress: told of stages and kernels.
    """
    adapter = engines.adapter(job["engine"])
    target = targets.load(job["target"])
    progress.stage("import the engine")
    with pretend(target, scratch=scratch) as pretence:
        versions = adapter.versions()
        if versions["version"] != job["version"]:
            raise RuntimeError(
                f"the recipe asks for {job['engine']}=={job['version']}, this interpreter has {versions['version']}"
            )
        if versions["version"] not in adapter.VERSIONS:
            raise RuntimeError(
                f"{job['engine']} {versions['version']} is not known to this release; "
                f"known: {', '.join(sorted(adapter.VERSIONS))}"
            )
        progress.stage("create the engine's configuration")
        arguments = adapter.parse([job["model"], *job["serve_arguments"]])
        pretence.device.count = adapter.ranks(arguments)
        config = adapter.create_config(arguments)
        pretence.device.log.on_kernel = lambda kernel: progress.tell(kernel=kernel.name)
        compiled = adapter.compile_rank(pretence, config, job["served_as"], job["rank"], progress.stage)
        log = pretence.device.log
        return {
            "engine": versions,
            "ranks": pretence.device.count,
            "architectures": list(config.model_config.hf_config.architectures or []),
            "host_answers": adapter.host_answers(),
            "factors": compiled.factors,
            "models": compiled.models,
            "saved": compiled.saved,
            "parts": compiled.parts,
            "artifacts": [asdict(artifact) for artifact in compiled.artifacts],
            "kernels": [asdict(kernel) for kernel in log.kernels.values()],
            "ptxas_runs": log.ptxas_runs,
            "stand_ins": [
                {"site": site, "answer": answer, "count": count}
                for (site, answer), count in sorted(log.stand_ins.items())
            ],
            "launches_skipped": dict(sorted(log.launches_skipped.items())),
        }
