"""Asker: vLLM's parameter classes. A weight must be of its own class (it carries the weight loader and the layout among
ranks) and a FakeTensor at once, until the moment before tracing, when Dynamo wants a plain FakeTensor."""

from __future__ import annotations

from typing import Any

from .patches import Patches

CHECKED = "torch 2.13.0 and 2.14.0, vllm 0.31.0 to 0.33.0"
DECLARED = "_declared_class"
"""The attribute that has a weight's own class: of what is both, and of a weight that was demoted."""

_FAKE_STATE = frozenset({"fake_mode", "fake_device", "constant", "real_tensor", "item_memo", "unique_id_memo"})


def install(patches: Patches) -> None:
    """Let ``Parameter`` and its subclasses hold FakeTensors."""
    import torch
    import vllm.model_executor.model_loader.reload.meta as reload_meta
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.nn.parameter import Parameter

    mixed: dict[type, type] = {}
    fake: type = FakeTensor

    def mix(cls: type) -> type:
        if issubclass(cls, FakeTensor):
            return cls
        if cls is Parameter or cls is torch.Tensor:
            return fake
        if cls not in mixed:
            mixed[cls] = type(
                cls.__name__,
                (cls, FakeTensor),
                {
                    "__torch_function__": torch._C._disabled_torch_function_impl,
                    "__torch_dispatch__": FakeTensor.__torch_dispatch__,
                    "__module__": cls.__module__,
                    "__repr__": lambda self: f"<fake {cls.__name__}>",
                    DECLARED: cls,
                },
            )
        return mixed[cls]

    new = Parameter.__new__

    def new_parameter(cls: type, data: Any = None, requires_grad: bool = True) -> Any:
        if not isinstance(data, FakeTensor):
            return new(cls, data, requires_grad)
        tensor = data.detach()
        if type(tensor) is not FakeTensor:
            tensor.__class__ = FakeTensor
        tensor.requires_grad_(requires_grad)
        tensor._is_param = True
        target = mix(cls)
        if target is not FakeTensor:
            tensor.__class__ = target
        return tensor

    why = "a weight is its own class and a FakeTensor at once"
    patches.set(Parameter, "__new__", staticmethod(new_parameter), why=why, checked=CHECKED)
    make = torch.Tensor._make_subclass

    def make_subclass(cls: type, data: Any, require_grad: bool = False, **kwargs: Any) -> Any:
        if isinstance(data, FakeTensor) and not kwargs:
            return new_parameter(getattr(cls, DECLARED, cls), data, require_grad)
        return make(cls, data, require_grad, **kwargs)

    patches.set(torch.Tensor, "_make_subclass", staticmethod(make_subclass), why=why, checked=CHECKED)

    def without_fake_state(tensor: Any) -> dict[str, Any]:
        return {k: v for k, v in vars(tensor).items() if k not in _FAKE_STATE}

    def to_meta(tensor: Any) -> Any:
        if isinstance(tensor, FakeTensor):
            meta = torch.empty_strided(tuple(tensor.size()), tuple(tensor.stride()), dtype=tensor.dtype, device="meta")
            default = Parameter if isinstance(tensor, Parameter) else torch.Tensor
            meta.__class__ = getattr(type(tensor), DECLARED, default)
            meta.__dict__ = without_fake_state(tensor)
        else:
            meta = tensor.data.to("meta")
            meta.__class__ = tensor.__class__
            meta.__dict__ = tensor.__dict__.copy()
        return meta

    def materialize(meta_tensor: Any) -> Any:
        meta = meta_tensor
        tensor = torch.empty_strided(size=tuple(meta.size()), stride=tuple(meta.stride()), dtype=meta.dtype)
        if not isinstance(tensor, FakeTensor):
            tensor.__class__ = meta.__class__
            tensor.__dict__ = meta.__dict__.copy()
            return tensor
        target = mix(type(meta))
        if target is not type(tensor):
            tensor.__class__ = target
        vars(tensor).update(without_fake_state(meta))
        if isinstance(meta, Parameter):
            tensor._is_param = True
        return tensor

    why = "weights are re-made around their processing (online quantization)"
    patches.set(reload_meta, "to_meta_tensor", to_meta, why=why, checked=CHECKED)
    patches.set(reload_meta, "materialize_meta_tensor", materialize, why=why, checked=CHECKED)
    patches.set(reload_meta, "_tensor_storage_ptr", lambda tensor: None, why="there is no storage", checked=CHECKED)


def demote(module: Any) -> None:
    """Make every fake parameter and buffer of a module a plain FakeTensor: what Dynamo can trace.

    Raises:
        RuntimeError: if a parameter is real; its values would be baked into the graph.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    real = []
    for name, owner in module.named_modules():
        for held in (owner._parameters, owner._buffers):
            for key, tensor in held.items():
                if tensor is None:
                    continue
                if not isinstance(tensor, FakeTensor):
                    if tensor.device.type == "cuda" or held is owner._parameters:
                        real.append(f"{name}.{key}")
                elif type(tensor) is not FakeTensor:
                    setattr(tensor, DECLARED, getattr(type(tensor), DECLARED, type(tensor)))
                    tensor.__class__ = FakeTensor
    if real:
        raise RuntimeError(f"these weights are real tensors, not pretended ones: {', '.join(real[:5])}")
