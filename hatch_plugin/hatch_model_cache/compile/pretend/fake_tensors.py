"""Asker: every tensor operation. Tensors on the pretended GPU are FakeTensors (shape, dtype and device, no storage);
tensors on the CPU stay real, since the engine reads its own index buffers."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from . import fake_kernels
from .device import Device
from .patches import Patches

CHECKED = "torch 2.13.0 and 2.14.0"


class MissingFakeKernelError(RuntimeError):
    """The engine ran an operator on the pretended GPU whose result's shape nobody has stated."""


def install(patches: Patches, device: Device) -> Any:
    """Prepare FakeTensorMode for a device that does not exist.

    Returns:
        a ``TorchDispatchMode``; inside it, whatever touches a cuda device is fake, of its ``FakeTensorMode`` `fake`.
    """
    import torch
    import torch._subclasses.fake_tensor as fake_tensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    nothing = lambda *_, **__: None  # noqa: E731
    patches.set(fake_tensor, "init_gpu_context", nothing, why="would create a context", checked=CHECKED)
    patches.set(
        fake_tensor.FakeTensorMode,
        "avoid_device_init",
        property(lambda self: True),
        why="would allocate on the device",
        checked=CHECKED,
    )
    # torch.tensor(x, device="cuda") then builds on the CPU and dispatches .to(), which the mode below sees
    torch._C._set_only_lift_cpu_tensors(True)
    patches.on_undo(torch._C._set_only_lift_cpu_tensors, False)
    mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    _decompose_moves(patches, fake_tensor)
    _answer_host_reads(patches, device, fake_tensor, mode)
    reassign_in_apply(patches)

    class CudaIsFake(TorchDispatchMode):  # type: ignore[misc]
        """Runs an operator in `mode` when a cuda device or a FakeTensor takes part, else for real."""

        fake = mode

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            if not any(_is_fake(x) for x in tree_leaves((args, kwargs))):
                return func(*args, **kwargs)
            if not func._schema.returns and not func.namespace.startswith(("aten", "prim")):
                # an out-variant kernel of the engine, run on weights: it fills a tensor that has no storage
                device.log.launches_skipped[str(func)] += 1
                return None
            with mode:
                return func(*args, **kwargs)

    def _is_fake(x: Any) -> bool:
        if isinstance(x, fake_tensor.FakeTensor):
            return True
        return isinstance(x, torch.device) and x.type == "cuda"

    return CudaIsFake()


def _decompose_moves(patches: Patches, fake_tensor: Any) -> None:
    """Under inference_mode aten.to.* reaches the mode whole, and would propagate a constant onto the missing device."""
    import torch

    dispatch = fake_tensor.FakeTensorMode._dispatch_impl
    to = torch.ops.aten.to
    moves = {to.dtype_layout, to.device, to.dtype, to.other}

    def decompose(self: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func in moves and any(isinstance(a, torch.device) and a.type == "cuda" for a in (*args, *kwargs.values())):
            with self:
                return func.decompose(*args, **kwargs)
        return dispatch(self, func, types, args, kwargs)

    patches.set(
        fake_tensor.FakeTensorMode, "_dispatch_impl", decompose, why="moves to the missing device", checked=CHECKED
    )


def _answer_host_reads(patches: Patches, device: Device, fake_tensor: Any, ours: Any) -> None:
    """Outside tracing, ``.item()`` and ``bool()`` of a tensor without storage answer 1 / 1.0 / True, and ``.numpy()``
    zeros where that is known to be enough; each is logged."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    dispatch = fake_tensor.FakeTensorMode._dispatch_impl
    read = torch.ops.aten._local_scalar_dense.default
    unanswered = (
        fake_tensor.UnsupportedOperatorException,
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.DataDependentOutputException,
    )

    def answer(self: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if self is not ours or self.shape_env is not None:
            return dispatch(self, func, types, args, kwargs)
        if func is read and args[0].constant is None:
            dtype = args[0].dtype
            value = True if dtype is torch.bool else (1.0 if dtype.is_floating_point else 1)
            device.log.stand_ins[(_site(), repr(value))] += 1
            return value
        stated = fake_kernels.WITHOUT_FAKE_KERNEL.get(func._schema.name)
        if stated is not None and _site().startswith(stated.asked_in):
            device.log.stand_ins[(_site(), f"result of {func._schema.name}")] += 1
            with self:
                return stated.answer(*args, **kwargs)
        try:
            return dispatch(self, func, types, args, kwargs)
        except unanswered as error:
            raise MissingFakeKernelError(
                f"operator {func._schema.name} has no fake kernel (asked at {_site()}); "
                f"state what it returns in {fake_kernels.__name__}.WITHOUT_FAKE_KERNEL"
            ) from error

    why = "values that only real weights hold"
    patches.set(fake_tensor.FakeTensorMode, "_dispatch_impl", answer, why=why, checked=CHECKED)

    def numbers(self: Any, *, force: bool = False) -> Any:
        if self.fake_mode is not ours:
            return torch._C.TensorBase.numpy(self, force=force)
        site = _site()
        if not site.startswith(fake_kernels.ARRAYS):
            raise MissingFakeKernelError(
                f"all values of a tensor without any are asked for at {site}; see {fake_kernels.__name__}.ARRAYS"
            )
        device.log.stand_ins[(site, "an array of zeros")] += 1
        with _disable_current_modes():
            return torch.zeros(tuple(self.shape), dtype=self.dtype).numpy()

    patches.set(fake_tensor.FakeTensor, "numpy", numbers, why=why, checked=CHECKED)


def reassign_in_apply(patches: Patches) -> None:
    """``Module._apply`` (``.to()``, ``.half()``) swaps tensors in place, which fake ones cannot; reassign instead.

    A parameter that several modules share is one afterwards too: how many a graph has is in its key.
    """
    import torch.nn as nn
    from torch._subclasses.fake_tensor import FakeTensor

    apply = nn.Module._apply
    converted: dict[tuple[int, int], tuple[Any, Any, Any]] = {}  # with what the ids are of, so that they stay its own

    def convert(old: Any, fn: Any) -> Any:
        new = nn.Parameter(fn(old), requires_grad=old.requires_grad)
        for key, value in vars(old).items():
            vars(new).setdefault(key, value)
        if isinstance(new, FakeTensor) and isinstance(old, FakeTensor) and type(old) is not FakeTensor:
            new.__class__ = type(old)
        return new

    def reassign(self: Any, fn: Any, recurse: bool = True) -> Any:
        if recurse:
            for child in self.children():
                child._apply(fn)
        tensors = [t for held in (self._parameters, self._buffers) for t in held.values()]
        if not any(isinstance(t, FakeTensor) for t in tensors):
            return apply(self, fn, recurse=False)
        for name, old in list(self._parameters.items()):
            if old is not None:
                known = id(old), id(fn)
                if known not in converted:
                    converted[known] = (convert(old, fn), old, fn)
                self._parameters[name] = converted[known][0]
        for name, old in list(self._buffers.items()):
            if old is not None:
                self._buffers[name] = fn(old)
        return self

    patches.set(nn.Module, "_apply", reassign, why="swap_tensors refuses tensors without storage", checked=CHECKED)


def _site() -> str:
    """The innermost line of the engine's own code on the stack, relative to its site-packages."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        # by module, not by path: "/vllm/" may be anywhere in the path of an environment
        if str(frame.f_globals.get("__name__")).partition(".")[0] == "vllm":
            return f"vllm/{frame.f_code.co_filename.rpartition('/vllm/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside the engine's code"
