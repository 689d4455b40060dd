"""A program that uses torch.compile, or what a wheel of mode "standalone" holds instead: argv is the directory of the
factory's module, `module:function`, a wheel or -.

Real weights: what the factory's module loads (`load_weights`), else from a seed; real inputs. Prints one JSON object.
Sent to GPU hosts too (tests/gpu), so it needs nothing of the tests.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import time
from collections import Counter
from dataclasses import asdict
from typing import Any

import torch

DIRECTORY, FACTORY, WHEEL = sys.argv[1:]
SEED = 7


def main() -> None:
    """Run the module once compiled, after loading the wheel if there is one, and once as it is."""
    sys.path.insert(0, DIRECTORY)
    name, _, function = FACTORY.partition(":")
    program = importlib.import_module(name)
    torch.manual_seed(SEED)
    module, inputs = getattr(program, function)()
    if hasattr(program, "load_weights"):
        program.load_weights(module, inputs)
    else:
        _fill(module, inputs)
    answer: dict[str, object] = {}
    runs = _counted() if torch.version.cuda else Counter()
    loaded = None
    begun = time.monotonic()
    if WHEEL != "-":
        import model_cache.torch

        loaded = model_cache.torch.load(WHEEL)
        answer["target"], answer["parts"], answer["kernels"] = loaded.target, dict(loaded.parts), loaded.kernels
        answer["load_seconds"] = round(time.monotonic() - begun, 2)
    compiled = loaded.bind(module) if loaded and loaded.function else torch.compile(module)
    with torch.no_grad():
        result = compiled(*inputs).float().cpu()
    answer["seconds"] = round(time.monotonic() - begun, 2)
    if loaded:
        answer["use"] = asdict(loaded.use())
    else:
        answer["keys"] = _keys()
    answer["runs"] = dict(runs)
    answer["result"] = hashlib.sha256(result.numpy().tobytes()).hexdigest()
    with torch.no_grad():
        eager = module(*inputs).float().cpu()
    answer["error"] = float((result - eager).abs().max())
    answer["largest"] = float(eager.abs().max())
    begun = time.monotonic()
    with torch.no_grad():
        compiled(*inputs).cpu()
    answer["second_call_seconds"] = round(time.monotonic() - begun, 4)
    print(json.dumps(answer))


def _keys() -> dict[str, list[str]]:
    """The keys under which torch has cached what it compiled, by its name for their kind."""
    _, info = torch.compiler.save_cache_artifacts()
    return {kind: sorted(info.artifacts[kind]) for kind in ("aot_autograd", "inductor")}


def _fill(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.05 if parameter.numel() < 1 << 20 else 0.02)
    for tensor in inputs:  # in place, so that dimensions stay marked
        if tensor.is_floating_point():
            tensor.normal_()
        else:
            tensor.random_(0, 100)


def _counted() -> Counter[str]:
    """How often ptxas runs from now on, and how often Triton looks for a kernel and finds it or not."""
    import triton.backends.nvidia.compiler as nvidia
    from triton import knobs

    counts: Counter[str] = Counter(ptxas=0)
    make_cubin = nvidia.CUDABackend.make_cubin

    def counting(*args: Any, **kwargs: Any) -> Any:
        counts["ptxas"] += 1
        return make_cubin(*args, **kwargs)

    def looked(*_: Any, cache_hit: bool = False, **__: Any) -> None:
        counts["triton_hits" if cache_hit else "triton_misses"] += 1

    nvidia.CUDABackend.make_cubin = counting
    knobs.compilation.listener = looked
    return counts


if __name__ == "__main__":
    main()
