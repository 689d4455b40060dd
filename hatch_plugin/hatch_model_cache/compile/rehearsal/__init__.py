"""A rehearsal: an unmodified ``vllm serve``, under pretended GPUs, up to the point where it would run the model.

It shows on a machine without a GPU whether an installed wheel is found and loaded. It cannot show that the kernels are
right or fast: nothing runs.

The engine is started as always, in its own processes; ``site/sitecustomize.py`` on PYTHONPATH puts the pretence in
place while the engine is imported. Every process that reaches its model writes a report (`report`) and waits to be
ended: the engine core, or each of its workers when there are several ranks.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "MODEL_CACHE_REHEARSAL"
SITE = Path(__file__).parent / "site"


def environment(target: str, reports: Path, ranks: int) -> dict[str, str]:
    """What to add to the environment of ``vllm serve``.

    Args:
        target: name of the target to pretend.
        reports: directory that the reports are written to (JSON), absolute.
        ranks: how many GPUs to pretend, one for every rank.
    """
    return {
        VARIABLE: json.dumps({"target": target, "reports": str(reports), "ranks": ranks}),
        "PYTHONPATH": str(SITE),
        # worker processes of Inductor would not share the pretence; in no key
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }


def arm(setting: str) -> None:
    """Watch this process import vllm, and pretend in time. Costs nothing in a process that does not."""
    sys.meta_path.insert(0, _Watch(**json.loads(setting)))


class _Watch(importlib.abc.MetaPathFinder):
    """Acts when the engine is about to import certain modules; finds nothing itself."""

    def __init__(self, target: str, reports: str, ranks: int) -> None:
        self._target, self._reports, self._ranks = target, Path(reports), ranks
        self._pretence: Any = None
        self._waves = {
            "vllm.env_override": self._torch,  # imports torch, the first module of vllm to do so
            "vllm.platforms": self._platform,
            "vllm.v1.engine.core": self._wrap,
            "vllm.v1.executor.multiproc_executor": self._wrap,
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        act = self._waves.pop(name, None)
        return act(name) if act else None

    def _torch(self, _: str) -> None:
        from hatch_model_cache import targets
        from hatch_model_cache.compile.pretend import Pretence

        self._pretence = Pretence(targets.load_gpu(self._target), self._ranks)
        self._pretence.device.in_use = False  # until there is a worker: the engine asks before it starts one
        self._pretence.before_engine_import(Path(tempfile.mkdtemp(prefix="cuda-", dir=self._reports)))

    def _platform(self, _: str) -> None:
        self._pretence.before_platform()

    def _wrap(self, name: str) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_wrap(module: ModuleType) -> None:
            from . import report

            execute(module)
            report.WRAPPERS[name](module, report.Reporter(self._pretence, self._reports))

        spec.loader.exec_module = execute_and_wrap  # type: ignore[method-assign]
        return spec
