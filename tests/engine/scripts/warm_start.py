"""A start of vLLM on a pretended GPU up to the end of its warm-up, where every kernel that it would launch is compiled;
prints one JSON object, with the seconds that the warm-up took.

argv: target, scratch directory, then what follows ``vllm serve``. VLLM_CACHE_ROOT is as the host has it, this project
on PYTHONPATH. Unlike a rehearsal it goes on behind the first call of the model, whose operators run on fake tensors.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatch_model_cache import targets
from hatch_model_cache.compile.engines import vllm, vllm_rank, vllm_stops, vllm_warmup
from hatch_model_cache.compile.pretend import pretend

TARGET, SCRATCH, *ARGUMENTS = sys.argv[1:]
answer: dict[str, Any] = {"loaded": 0}
with pretend(targets.load_gpu(TARGET), scratch=Path(SCRATCH)) as pretence:
    config = vllm.create_config(vllm.parse(ARGUMENTS))
    import vllm.compilation.decorators as decorators
    from triton import knobs
    from vllm.v1.engine.core import EngineCore

    look_up = decorators._try_load_aot_compiled_fn

    class Real:
        """The engine's own look-ups."""

        def look_up(self, model: Any, path: str) -> Any:
            """See `vllm_stops.Moments`."""
            found = look_up(model, path)
            answer["loaded"] += found is not None
            return found

        def traced(self, traced: Any) -> bool:
            """See `vllm_stops.Moments`."""
            return True

        def saved(self, traced: Any) -> None:
            """See `vllm_stops.Moments`."""

    pretence.before_worker()
    vllm_stops.stop_at_first_call(pretence, Real(), lambda _: None)
    begun: list[float] = []
    kernels = vllm_warmup.go_on(pretence, lambda _: begun.append(time.monotonic()))
    found: dict[str, bool] = {}
    note = kernels.note

    def noted(*, src: Any, metadata: Mapping[str, Any], cache_hit: bool, **rest: Any) -> None:
        """As Triton's listener, and whether the kernel was found."""
        found.setdefault(f"{src.name} {metadata['hash']}", cache_hit)
        note(**rest)

    kernels.note = noted  # type: ignore[assignment]
    try:
        with pretence.mode:
            EngineCore(config, vllm_rank.executor(config, 0, pretence.layout), log_stats=False)
    except vllm_stops.CompilationDone:
        pass
    answer["seconds"] = round(time.monotonic() - begun[-1], 2)
    answer |= {"ptxas_runs": pretence.log.ptxas_runs, "kernels": found, "place": knobs.cache.dir}
print(json.dumps(answer))
sys.stdout.flush()
os._exit(0)
