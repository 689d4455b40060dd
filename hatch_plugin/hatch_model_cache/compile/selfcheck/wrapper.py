"""Runs the wrapper that Inductor wrote for a region, on the CPU, every launch in Triton's interpreter.

Checked on torch 2.14.0.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hatch_model_cache.compile.pretend.patches import Patches

from .triton_interpreter import Bounds

CHECKED = "torch 2.14.0"


@dataclass(frozen=True)
class Config:
    """One configuration of a kernel that the wheel has a cubin of: block sizes, warps, stages."""

    values: tuple[tuple[str, int], ...]
    warps: int
    stages: int


@dataclass(frozen=True)
class Launch:
    """One launch of one configuration, as the interpreter did it.

    source: SHA-256 of the kernel's module; arguments: tensors and integers, without the block sizes; before, after: the
    bytes of every storage among them before and after the launch, by its address; run: the launch again, on whatever
    the arguments hold then.
    """

    source: str
    config: Config
    grid: tuple[int, int, int]
    arguments: Sequence[Any]
    before: Mapping[int, Any]
    after: Mapping[int, Any]
    run: Callable[[], None]


class Wrappers:
    """Loads and runs wrappers. Hears of every launch."""

    def __init__(self, patches: Patches, bounds: Bounds, configs: Mapping[str, Sequence[Config]]) -> None:
        """configs: source's SHA-256 → its configurations, the first of which the wrapper goes on with."""
        self._bounds = bounds
        self._configs = configs
        self.on_launch: Callable[[Launch], None] | None = None
        self._answer_for_the_device(patches)

    def load(self, text: str) -> Callable[[list[Any]], Sequence[Any]]:
        """The wrapper's function; it empties the list that it is given."""
        name = f"selfcheck_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        module = types.ModuleType(name)
        module.__file__ = f"{name}.py"
        sys.modules[name] = module
        exec(compile(text, module.__file__, "exec"), module.__dict__)  # noqa: S102 - the generated program is what is checked
        call: Callable[[list[Any]], Sequence[Any]] = module.call
        return call

    def _answer_for_the_device(self, patches: Patches) -> None:
        import torch
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        def empty(size: Any, stride: Any, dtype: Any) -> Any:
            return poisoned(torch.empty_strided(size, stride, dtype=dtype))

        def launch(autotuner: Any, *arguments: Any, stream: Any, benchmark_run: bool = False) -> None:
            self._launch(autotuner, arguments)

        why = "the wrapper's tensors are on the CPU"
        for owner, name, value in (
            (torch._C, "_cuda_getCurrentRawStream", lambda _=0: 0),
            (torch.cuda, "_DeviceGuard", lambda _: contextlib.nullcontext()),
            (torch.cuda, "set_device", lambda _: None),
            (torch._C._dynamo.guards, "_empty_strided_cuda", empty),
            (CachingAutotuner, "run", launch),
            (CachingAutotuner, "precompile", lambda *_, **__: None),
        ):
            patches.set(owner, name, value, why=why, checked=CHECKED)

    def _launch(self, autotuner: Any, arguments: Sequence[Any]) -> None:
        """Every configuration on the same data; what the first one leaves stays."""
        source = hashlib.sha256(Path(autotuner.fn.fn.__code__.co_filename).read_bytes()).hexdigest()
        before = storages(arguments)
        left = None
        for config in self._configs.get(source) or [_first_config(autotuner)]:
            restore(arguments, before)
            launch = self._interpret(autotuner, source, config, arguments, before)
            left = launch.after if left is None else left
            if self.on_launch is not None:
                self.on_launch(launch)
        restore(arguments, left or before)

    def _interpret(
        self, autotuner: Any, source: str, config: Config, arguments: Sequence[Any], before: Mapping[int, Any]
    ) -> Launch:
        import triton

        values = dict(config.values)
        chosen = triton.Config(values, num_warps=config.warps, num_stages=config.stages)
        passed, grid = autotuner._interpret_args_grid(tuple(arguments), chosen)

        def run() -> None:
            self._bounds.allow([(address, data.numel()) for address, data in storages(arguments).items()])
            autotuner.fn[grid](*passed, **values)

        run()
        x, y, z = (*map(int, grid), 1, 1)[:3]
        signature = autotuner.triton_meta["signature"]
        kinds = [kind for name, kind in signature.items() if name not in values]
        given = [value for value, kind in zip(passed, kinds, strict=True) if kind != "constexpr"]
        return Launch(source, config, (x, y, z), given, before, storages(arguments), run)


def _first_config(autotuner: Any) -> Config:
    """What Inductor would try first, of a kernel of which the wheel has no cubin with a lineage."""
    config = autotuner.configs[0]
    return Config(tuple(config.kwargs.items()), config.num_warps, config.num_stages)


def poisoned(tensor: Any) -> Any:
    """The tensor, filled with what shows when it is read before it is written."""
    import torch

    if tensor.dtype.is_floating_point:
        return tensor.fill_(float("nan"))
    return tensor.fill_(True if tensor.dtype == torch.bool else 77)


def storages(arguments: Sequence[Any]) -> dict[int, Any]:
    """A copy of every storage among the arguments, as bytes, by its address."""
    import torch

    found: dict[int, Any] = {}
    for value in arguments:
        if isinstance(value, torch.Tensor):
            address = value.untyped_storage().data_ptr()
            if address not in found:
                found[address] = as_bytes(value).clone()
    return found


def restore(arguments: Sequence[Any], contents: Mapping[int, Any]) -> None:
    """Put copies of storages back."""
    import torch

    for value in arguments:
        if isinstance(value, torch.Tensor):
            as_bytes(value).copy_(contents[value.untyped_storage().data_ptr()])


def as_bytes(tensor: Any) -> Any:
    """The whole storage of a tensor, as uint8."""
    import torch

    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
