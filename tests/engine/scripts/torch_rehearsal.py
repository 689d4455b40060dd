"""A program that uses torch.compile on a pretended GPU, up to the point where it would run; prints one JSON object.

argv: target, scratch directory, directory of the factory's module, `module:function`, a wheel or -. This project is on
PYTHONPATH.

Nothing of the build's files is used: caches are empty, and torch looks for what the wheel has given it.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from hatch_model_cache import targets
from hatch_model_cache.compile.engines import torch_keys
from hatch_model_cache.compile.pretend import pretend

TARGET, SCRATCH, DIRECTORY, FACTORY, WHEEL = sys.argv[1:]
sys.path.insert(0, DIRECTORY)
answer: dict[str, object] = {}
with pretend(targets.load_gpu(TARGET), scratch=Path(SCRATCH), engine="torch") as pretence:
    import torch
    from torch._dynamo.utils import counters

    import model_cache.torch
    from model_cache.engine import program

    pretence.before_program()
    mode = torch_keys.install(pretence.patches)
    name, _, function = FACTORY.partition(":")
    with mode:
        module, inputs = getattr(importlib.import_module(name), function)()
    begun = time.monotonic()
    loaded = None if WHEEL == "-" else model_cache.torch.load(WHEEL)
    if loaded:
        answer["target"], answer["parts"] = loaded.target, dict(loaded.parts)
    reached = False
    try:
        with mode, torch.no_grad():
            if loaded and loaded.function:  # bound to real tensors only, which are not here
                every = dict(program.tensors(module))
                tensors = [every[one.name] for one in loaded.function.record.tensors]
                model_cache.torch._function(loaded.function.data)(*tensors, *inputs)
            else:
                torch.compile(module)(*inputs)
    except torch_keys.CompiledDone:
        reached = True
    answer["reached"] = reached
    answer["seconds"] = round(time.monotonic() - begun, 2)
    if loaded and not loaded.function:
        answer["use"] = asdict(loaded.use())
    answer["ptxas_runs"] = pretence.log.ptxas_runs
    answer["kernels_loaded"] = len(pretence.log.kernels)
    answer["architectures"] = sorted({kernel.arch for kernel in pretence.log.kernels.values()})
    answer["inductor"] = {key: count for key, count in counters["inductor"].items() if "cache" in key}
print(json.dumps(answer))
