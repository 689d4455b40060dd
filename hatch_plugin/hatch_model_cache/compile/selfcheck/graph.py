"""Runs the graph that Inductor was given for a region on the CPU: as it is, or with float32 in place of narrow floats.

What no CPU can run (a library call of the engine's) is cut: its results are made up, the same ones for the graph and
for the wrapper, and what goes into it counts as an output. Checked on torch 2.14.0.
"""

from __future__ import annotations

import functools
import math
import re
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hatch_model_cache.compile.pretend.patches import Patches

from . import inputs
from .triton_interpreter import RefusedError
from .wrapper import poisoned


class Libraries:
    """Stands for the operators that are not torch's own, as ``torch.ops.<namespace>``."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._cuts: Cuts | None = None
        self._names: set[str] = set()

    def stand_for(self, calls: Sequence[Mapping[str, Any]]) -> None:
        """Have the operators of these calls; each is called as ``torch.ops.<namespace>.<name>.<overload>``."""
        import torch

        for call in calls:
            if call["operator"] in self._names:
                continue
            self._names.add(call["operator"])
            namespace, name, overload = call["operator"].split(".")
            owner = vars(torch.ops).get(namespace)
            if not isinstance(owner, types.SimpleNamespace):
                owner = types.SimpleNamespace()
                self._patches.set(torch.ops, namespace, owner, why="no CPU can run it", checked="torch 2.14.0")
            packet = vars(owner).setdefault(name, types.SimpleNamespace())
            setattr(packet, overload, functools.partial(self._call, call["operator"]))

    @contextmanager
    def cut(self, cuts: Cuts) -> Iterator[None]:
        """Let `cuts` answer, for one run."""
        self._cuts = cuts
        try:
            yield
        finally:
            self._cuts = None

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        if self._cuts is None:
            raise RefusedError(f"library call {name} outside of a run")
        return self._cuts.stand_in(name, arguments, options)


class Cuts:
    """The calls that were cut in one run: what went into them, in order."""

    def __init__(self, calls: Sequence[Mapping[str, Any]], tokens: int) -> None:
        """calls: those of the region, as recorded; tokens: what every varying size is."""
        self.names: list[str] = []
        self.inputs: list[Any] = []
        self._calls = calls
        self._tokens = tokens

    def stand_in(self, name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """What a call returns and writes: made up from its name, and its number among the calls of that name."""
        import torch

        number = self.names.count(name)
        recorded = [call for call in self._calls if call["operator"] == name]
        # the wrapper also writes options that the graph leaves at their defaults
        if any(isinstance(value, torch.Tensor) for value in options.values()) or number >= len(recorded):
            raise RefusedError(f"library call {name} in another way than recorded")
        self.names.append(name)
        call = recorded[number]
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {number}".encode()))
        self.inputs += [value.clone() for value in arguments if isinstance(value, torch.Tensor)]
        for place in call["writes"]:
            if place < len(arguments) and isinstance(arguments[place], torch.Tensor):
                target = arguments[place]
                target.copy_(inputs.ordinary(target.shape, target.dtype, generator))
        results = [inputs.tensor(result, self._tokens, generator) for result in call["results"]]
        return results[0] if len(results) == 1 else tuple(results) if results else None


def on_cpu(*, wide: bool = False) -> Any:
    """A mode in which torch's operators run on the CPU whatever device they name.

    wide: they make float32 where they are told to make a narrow float.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    narrow = (torch.bfloat16, torch.float16)

    def here(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return torch.float32 if wide and isinstance(value, torch.dtype) and value in narrow else value

    # where the type checker runs there is no torch, so its classes are of no known type
    class OnCpu(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            arguments, options = tree_map(here, (list(args), kwargs or {}))
            result = function(*arguments, **options)
            made = function.namespace == "aten" and function._schema.name.removeprefix("aten::").startswith("empty")
            return poisoned(result) if made else result

    return OnCpu()


def load(text: str) -> Callable[..., Any]:
    """The graph's function, from what ``GraphModule.print_readable`` wrote.

    Raises:
        RefusedError: if it needs tensors that are not among its inputs.
    """
    import torch

    namespace: dict[str, Any] = {"torch": torch, "device": torch.device, "inf": math.inf, "nan": math.nan}
    exec(compile(text, "<graph>", "exec"), namespace)  # noqa: S102 - the generated program is what is checked
    module = namespace["GraphModule"]()
    if re.search(r"^[^#\n]*\bself\.", text, re.M):
        raise RefusedError("the graph holds tensors of its own")
    forward: Callable[..., Any] = module.forward
    return forward
