"""What a rehearsed engine process reports, and where it is stopped: the engine core, or each worker of several.

Facts of vllm 0.31.0 to 0.33.0: ``EngineCore.__init__`` makes the executor, loads the model and profiles a run of it.
With one rank the model is in that process. With several, ``MultiprocExecutor`` starts a process for each, which makes a
``WorkerProc`` and then serves calls in ``worker_busy_loop``; the engine core waits for the answers.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

WAIT = 600
"""Seconds that a process which has reported waits to be ended; one that ends would have the engine end the others."""


class Reporter:
    """Follows one engine process to its model, writes the report, and stops.

    Args:
        pretence: the pretended GPUs of this process.
        reports: directory of the reports.
    """

    def __init__(self, pretence: Any, reports: Path) -> None:
        self._pretence = pretence
        self._reports = reports
        self._begun = time.monotonic()
        self._stages: list[tuple[str, float]] = []
        self._load = 0.0
        self._rank = ""
        self._piecewise = 0

    def prepare(self) -> None:
        """Answer for the model loader, and stop where the model would be run. Call before the worker is made."""
        import vllm.compilation.decorators as decorators

        from hatch_model_cache.compile.engines import vllm_stops

        self._begun = time.monotonic()
        self._look_up = decorators._try_load_aot_compiled_fn
        self._pretence.device.in_use = True
        self._pretence.before_worker()
        vllm_stops.stop_at_first_call(self._pretence, self, self._stage)

    def look_up(self, model: Any, path: str) -> Any:
        """See `vllm_stops.Moments`."""
        at = time.monotonic()
        try:
            return self._look_up(model, path)
        finally:
            self._load += time.monotonic() - at
            self._rank = Path(path).parent.name.removeprefix("rank_")

    def traced(self, traced: Any) -> bool:
        """See `vllm_stops.Moments`."""
        self._at, self._counted = time.monotonic(), _counted()
        return True

    def saved(self, traced: Any) -> None:
        """See `vllm_stops.Moments`. A model is loaded when every piece of it is."""
        self._load += time.monotonic() - self._at
        self._rank = Path(traced.backend.compilation_config.local_cache_dir).parent.name.removeprefix("rank_")
        loaded, compiled = (now - before for now, before in zip(_counted(), self._counted, strict=True))
        self._piecewise += loaded > 0 and not compiled

    def follow(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call a function of the engine under the pretence; does not come back from the model, nor from an error."""
        with self._pretence.mode:
            self.guard(function, *args, **kwargs)

    def guard(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call a function of the engine, and report how it ended if it did not end well."""
        from hatch_model_cache.compile.engines import vllm_stops

        error = None
        try:
            function(*args, **kwargs)
            return
        except vllm_stops.CompilationDone:
            pass
        except BaseException as failure:
            error = f"{type(failure).__name__}: {failure}"
        self.report(error)

    def report(self, error: str | None) -> None:
        """Write the report, and wait to be ended."""
        path = self._reports / f"{os.getpid()}.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._document(error), indent=1) + "\n", "utf-8")
        temporary.replace(path)
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(WAIT)
        os._exit(0)

    def _stage(self, name: str) -> None:
        self._stages.append((name, round(time.monotonic() - self._begun, 2)))

    def _document(self, error: str | None) -> dict[str, Any]:
        from torch._dynamo.utils import counters as dynamo
        from vllm.compilation.counter import compilation_counter

        counters = {k: v for k, v in vars(compilation_counter).items() if isinstance(v, int)}
        device = self._pretence.device
        return {
            "pretended": device.target.name,
            "rank": self._rank,
            "error": error,
            "artifacts_loaded": counters.get("num_aot_artifacts_loaded", 0) + self._piecewise,
            "compiled_parts_loaded": counters.get("num_compiled_artifacts_loaded", 0),
            "inductor_compiles": counters.get("num_inductor_compiles", 0),
            "ptxas_runs": device.log.ptxas_runs,
            "kernels_loaded": len(device.log.kernels),
            "seconds": {"load": round(self._load, 2), "until_first_run": round(time.monotonic() - self._begun, 2)},
            "stages": self._stages,
            "counters": {k: v for k, v in counters.items() if v},
            "inductor": dict(dynamo["inductor"]),
        }


def _counted() -> tuple[int, int]:
    """Pieces that the engine has loaded in this process, and graphs that it has compiled, by its own counters."""
    from vllm.compilation.counter import compilation_counter

    return compilation_counter.num_compiled_artifacts_loaded, compilation_counter.num_inductor_compiles


def _wrap_core(module: ModuleType, reporter: Reporter) -> None:
    core = module.EngineCore
    start = core.__init__

    def start_and_report(self: Any, *args: Any, **kwargs: Any) -> None:
        config = inspect.signature(start).bind(self, *args, **kwargs).arguments["vllm_config"]
        if config.parallel_config.distributed_executor_backend == "mp":
            reporter.guard(start, self, *args, **kwargs)  # the workers report, and are forked from this process
        else:
            reporter.prepare()
            reporter.follow(start, self, *args, **kwargs)
        reporter.report(None)  # it started without having called a compiled model

    core.__init__ = start_and_report


def _wrap_worker(module: ModuleType, reporter: Reporter) -> None:
    worker = module.WorkerProc
    start, loop = worker.__init__, worker.worker_busy_loop

    def start_prepared(self: Any, *args: Any, **kwargs: Any) -> None:
        reporter.prepare()
        reporter.follow(start, self, *args, **kwargs)

    def followed_loop(self: Any) -> None:
        reporter.follow(loop, self)

    worker.__init__, worker.worker_busy_loop = start_prepared, followed_loop


WRAPPERS = {"vllm.v1.engine.core": _wrap_core, "vllm.v1.executor.multiproc_executor": _wrap_worker}
"""Module → what is done to it once it is imported."""
