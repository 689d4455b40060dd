"""The engine's piecewise path, watched: whether every piece of a model was loaded, told and recorded.

On this path (``VLLM_USE_AOT_COMPILE=0``) vLLM looks up one piece of a traced model after the other (vllm 0.33.0,
`VllmBackend.__call__` in vllm/compilation/backends.py), and compiles what it does not find. The wrapper returns what
the backend returns and raises what it raises. Nothing is adopted here: the key is known only when the model is traced.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from model_cache.engine import watch
from model_cache.engine.nearest import Nearest
from model_cache.engine.watch import Say

MODULE = "vllm.compilation.backends"

CLASS = "VllmBackend"


def wrap(module: ModuleType, root_path: str, say: Say) -> None:
    """Watch every model that the backend in `module` will compile on this path, in the cache root at `root_path`."""
    backend: Any = getattr(module, CLASS, None)
    original = getattr(backend, "__call__", None)  # noqa: B004 - the function that is replaced
    if original is None or getattr(original, "_recorded", False):
        return

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun, before = time.monotonic(), (0, 0)
        with suppress(Exception):
            before = _counted()
        made = original(self, *args, **kwargs)
        # whatever goes wrong here, the engine gets what its own function gave
        with suppress(Exception):
            if not sys.modules["vllm.envs"].VLLM_USE_AOT_COMPILE:  # else it compiles for an AOT artifact
                _noted(self, before, time.monotonic() - begun, root_path, say)
        return made

    vars(recorded)["_recorded"] = True
    backend.__call__ = recorded


def _counted() -> tuple[int, int]:
    """Pieces that the engine has loaded in this process, and graphs that it has compiled, by its own counters."""
    counter = sys.modules["vllm.compilation.counter"].compilation_counter
    return counter.num_compiled_artifacts_loaded, counter.num_inductor_compiles


def _noted(backend: Any, before: tuple[int, int], seconds: float, root_path: str, say: Say) -> None:
    directory = Path(backend.compilation_config.local_cache_dir)
    loaded, compiled = (now - then for now, then in zip(_counted(), before, strict=True))
    where = watch.Where(directory.name, directory.parent.name.removeprefix("rank_"), directory.parent.parent.name)
    parts = loaded if not compiled else 0
    watch.note(root_path, backend, where, Nearest(), parts > 0, parts, seconds, say)
