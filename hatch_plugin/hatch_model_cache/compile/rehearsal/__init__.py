"""A rehearsal: an unmodified ``vllm serve``, under a pretended GPU, up to the point where it would run the model.

It shows on a machine without a GPU whether an installed wheel is found and loaded. It cannot show that the kernels are
right or fast: nothing runs.

The engine is started as always, in its own processes; ``site/sitecustomize.py`` on PYTHONPATH puts the pretence in
place while the engine is imported. The first engine core that reaches its model writes the report and ends.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "MODEL_CACHE_REHEARSAL"
SITE = Path(__file__).parent / "site"


def environment(target: str, report: Path) -> dict[str, str]:
    """What to add to the environment of ``vllm serve``.

    Args:
        target: name of the target to pretend.
        report: file the report is written to (JSON), absolute.
    """
    return {
        VARIABLE: json.dumps({"target": target, "report": str(report)}),
        "PYTHONPATH": str(SITE),
        # worker processes of Inductor would not share the pretence; in no key
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }


def arm(setting: str) -> None:
    """Watch this process import vllm, and pretend in time. Costs nothing in a process that does not."""
    sys.meta_path.insert(0, _Watch(**json.loads(setting)))


class _Watch(importlib.abc.MetaPathFinder):
    """Acts when the engine is about to import certain modules; finds nothing itself."""

    def __init__(self, target: str, report: str) -> None:
        self._target, self._report = target, Path(report)
        self._pretence: Any = None
        self._waves = {
            "vllm.env_override": self._torch,  # imports torch, the first module of vllm to do so
            "vllm.platforms": self._platform,
            "vllm.v1.engine.core": self._core,
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        act = self._waves.pop(name, None)
        return act(name) if act else None

    def _torch(self, _: str) -> None:
        from hatch_model_cache import targets
        from hatch_model_cache.compile.pretend import Pretence

        self._pretence = Pretence(targets.load_gpu(self._target))
        self._pretence.before_engine_import(Path(tempfile.mkdtemp(prefix="model-cache-rehearsal-")))

    def _platform(self, _: str) -> None:
        self._pretence.before_platform()

    def _core(self, name: str) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_wrap(module: ModuleType) -> None:
            execute(module)
            _wrap(module, self._pretence, self._report)

        spec.loader.exec_module = execute_and_wrap  # type: ignore[method-assign]
        return spec


def _wrap(module: ModuleType, pretence: Any, report: Path) -> None:
    """Make the engine core report and end where it would run the model."""
    core = module.EngineCore
    start = core.__init__

    def start_and_report(self: Any, *args: Any, **kwargs: Any) -> None:
        import vllm.compilation.decorators as decorators

        from hatch_model_cache.compile.engines import vllm_stops

        begun = time.monotonic()
        stages: list[tuple[str, float]] = []
        look_up = decorators._try_load_aot_compiled_fn
        seconds = {"load": 0.0}

        def timed_look_up(model: Any, path: str) -> Any:
            at = time.monotonic()
            try:
                return look_up(model, path)
            finally:
                seconds["load"] += time.monotonic() - at

        error = None
        try:
            pretence.before_worker()
            vllm_stops.stop_at_first_call(
                pretence, timed_look_up, lambda name: stages.append((name, round(time.monotonic() - begun, 2)))
            )
            with pretence.mode:
                start(self, *args, **kwargs)
        except vllm_stops.CompilationDone:
            pass
        except BaseException as failure:
            error = f"{type(failure).__name__}: {failure}"
        _write(report, pretence, error, stages, seconds["load"], time.monotonic() - begun)

    core.__init__ = start_and_report


def _write(
    report: Path, pretence: Any, error: str | None, stages: list[tuple[str, float]], load: float, total: float
) -> None:
    from torch._dynamo.utils import counters as dynamo
    from vllm.compilation.counter import compilation_counter

    counters = {k: v for k, v in vars(compilation_counter).items() if isinstance(v, int)}
    document = {
        "pretended": pretence.device.target.name,
        "error": error,
        "artifacts_loaded": counters.get("num_aot_artifacts_loaded", 0),
        "compiled_parts_loaded": counters.get("num_compiled_artifacts_loaded", 0),
        "inductor_compiles": counters.get("num_inductor_compiles", 0),
        "ptxas_runs": pretence.device.log.ptxas_runs,
        "kernels_loaded": len(pretence.device.log.kernels),
        "seconds": {"load": round(load, 2), "until_first_run": round(total, 2)},
        "stages": stages,
        "counters": {k: v for k, v in counters.items() if v},
        "inductor": dict(dynamo["inductor"]),
    }
    temporary = report.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    temporary.replace(report)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
