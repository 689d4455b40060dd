"""Values of tiny tensors, carried along beside the fake ones: what the engine computes of a checkpoint's scales, or of
numbers that it has written down itself, and asks of them, is then answered from those.

Unknown is what depends on anything larger, and what the engine makes on the GPU itself, until all of it is written over
with something known: kernels fill such tensors, which is not seen here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from .patches import Patches

CHECKED = "torch 2.13.0 and 2.14.0"

TINY = 64
"""Numbers that a tensor may have to be carried: the tiny ones of a checkpoint, stacked for the parts of a layer."""


def install(patches: Patches, fake: Any) -> Callable[[Any], None]:
    """Carry values through every operation in `fake`, a ``FakeTensorMode``, outside of traces.

    Returns:
        what forgets the value of a tensor, and of all that look at the same numbers.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    dispatch = FakeTensorMode.dispatch
    read = torch.ops.aten._local_scalar_dense.default
    repeat = torch.ops.aten.repeat_interleave.Tensor
    values = _Values()

    def carry(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self is not fake or self.shape_env is not None:
            return dispatch(self, func, types, args, kwargs)
        if func is read and (value := values.of(args[0])) is not None:
            with _for_real():
                return value.item()
        if func is repeat and (value := values.of(args[0])) is not None:  # else nobody knows the result's size
            with _for_real():
                kwargs = {**(kwargs or {}), "output_size": int(value.sum())}
        result = dispatch(self, func, types, args, kwargs)
        values.follow(func, args, kwargs or {}, result)
        return result

    patches.set(FakeTensorMode, "dispatch", carry, why="some tiny tensors have values", checked=CHECKED)
    return values.forget


def _for_real() -> Any:
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


@dataclass
class _Numbers:
    """Numbers that one storage holds, which several tensors may look at. known: whether all of them are."""

    known: bool


class _Values:
    """The value of each fake tensor that has one: a real tensor on the CPU, a view where the fake one is a view."""

    def __init__(self) -> None:
        from torch.utils.weak import WeakTensorKeyDictionary

        self._carried = WeakTensorKeyDictionary()  # fake tensor → value, its numbers

    def of(self, tensor: Any) -> Any:
        """The value of a tensor; None if it, or a part of it, is not known."""
        value, numbers = self._of(tensor)
        return value if numbers.known else None

    def forget(self, tensor: Any) -> None:
        """Something unknown is written over all of it."""
        _, numbers = self._of(tensor)
        numbers.known = False

    def _of(self, tensor: Any) -> tuple[Any, _Numbers]:
        from torch._subclasses.fake_tensor import FakeTensor

        if isinstance(tensor, FakeTensor):
            carried: tuple[Any, _Numbers] = self._carried.get(tensor, (None, _Numbers(known=False)))
            return carried
        small = tensor.device.type == "cpu" and tensor.numel() <= TINY
        return (tensor.detach(), _Numbers(known=True)) if small else (None, _Numbers(known=False))

    def follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Do to the values what `func` has just done to the fake tensors."""
        import torch
        from torch.utils._pytree import tree_leaves

        inputs = {id(leaf): self._of(leaf) for leaf in _tensors((args, kwargs))}
        outputs = _tensors(result)
        written = [inputs[id(leaf)] for leaf in _tensors(args[:1])] if func._schema.is_mutable else []
        made = None
        if (
            outputs
            and all(output.numel() <= TINY for output in outputs)
            and all(value is not None for value, _ in inputs.values())
            and func.namespace == "aten"
            and torch.Tag.nondeterministic_seeded not in func.tags
            and len(written) <= 1
        ):
            made = _repeated(func, args, kwargs, inputs)
        if made is None:
            for _, numbers in written:
                numbers.known = False
            return
        known = all(numbers.known for value, numbers in inputs.values() if not any(value is w for w, _ in written))
        for value, numbers in written:
            whole = value.numel() * value.element_size() == value.untyped_storage().nbytes()
            numbers.known = known and (numbers.known or whole)
        for output, value in zip(outputs, tree_leaves(made), strict=True):
            if id(output) not in inputs:
                shared = [n for source, n in inputs.values() if _same_storage(source, value)]
                fresh = _Numbers(known=known and not _makes(func, inputs))
                self._carried[output] = value, shared[0] if shared else fresh


def _repeated(func: Any, args: Any, kwargs: Any, inputs: Mapping[int, tuple[Any, _Numbers]]) -> Any:
    """What an operation makes of the values of its arguments; None if it cannot be run on them."""
    import torch
    from torch.utils._pytree import tree_map

    def real(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        return inputs[id(leaf)][0] if isinstance(leaf, torch.Tensor) else leaf

    try:
        with _for_real(), torch.no_grad():
            return func(*tree_map(real, args), **tree_map(real, kwargs))
    except (RuntimeError, NotImplementedError):  # of float8 the CPU has few operations
        return None


def _makes(func: Any, inputs: Collection[Any]) -> bool:
    """Whether an operation makes a tensor out of nothing, perhaps in the form of another: ``zeros``, ``empty_like``."""
    _, _, name = func._schema.name.rpartition("::")
    return not inputs or name.startswith("new_") or name.endswith("_like")


def _tensors(tree: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _same_storage(one: Any, other: Any) -> bool:
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)
