"""Whether a checkpoint fits the model: what the engine refuses, what it would convert into something else, and what it
leaves unfilled."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

_Region = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Which part of a storage a view shows: offset, shape, strides."""

MOST_SHOWN = 30
"""Problems that one error names."""

_CONFIG_BUILT = ("input_scale_ub",)
"""Parameters that come from the configuration (vllm 0.33.0, default_loader._CONFIG_BUILT_PARAMS)."""


class CheckpointError(RuntimeError):
    """The tensors of a checkpoint do not fit the model.

    Attributes:
        problems: one line for each.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("the checkpoint does not fit the model")
        more = len(problems) - MOST_SHOWN
        self.problems = [*problems[:MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])]


def dtype(kind: str, name: str) -> Any:
    """The ``torch.dtype`` that safetensors calls `kind`. Raises CheckpointError for one that torch has not."""
    import torch

    floats = ("E4M3FNUZ", "E5M2", "E5M2FNUZ")
    words = {
        "BOOL": "bool",
        "BF16": "bfloat16",
        "C64": "complex64",
        "F4": "float4_e2m1fn_x2",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E8M0": "float8_e8m0fnu",
        **{f"{sign}{bits}": f"{'u' * (sign == 'U')}int{bits}" for sign in "IU" for bits in (8, 16, 32, 64)},
        **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
        **{f"F8_{form}": f"float8_{form.lower()}" for form in floats},
    }
    found = getattr(torch, words.get(kind, ""), None)
    if found is None:
        raise CheckpointError([f"{name} is {kind}, a dtype that this engine does not load"])
    return found


def keeps_meaning(source: Any, wanted: Any) -> bool:
    """Whether a copy from one ``torch.dtype`` into another keeps what the numbers mean.

    Bits that are packed, or quantized and of use with a scale only, mean nothing as a number of another kind. The
    engine's copies convert everything.
    """
    import torch

    if source is wanted:
        return True
    wide = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    if source.is_floating_point and wanted.is_floating_point:
        # powers of two, which are scales
        return wanted in wide and (source in wide or source is getattr(torch, "float8_e8m0fnu", None))
    return not (source.is_floating_point or wanted.is_floating_point or torch.bool in (source, wanted))


def tensors_on_stack(error: BaseException) -> Iterator[Any]:
    """Tensors that the functions worked on which an exception came through, the innermost function first."""
    import torch

    frames = []
    at = error.__traceback__
    while at is not None:
        frames.append(at.tb_frame)
        at = at.tb_next
    for frame in reversed(frames):
        yield from (value for value in list(frame.f_locals.values()) if isinstance(value, torch.Tensor))


def refusal(name: str, header: str, error: BaseException, model: Any) -> tuple[str, str]:
    """Why the engine does not take a tensor, in one line, and the parameter that was to be filled; "" if none was."""
    named = {id(parameter): known for known, parameter in model.named_parameters()}
    for tensor in tensors_on_stack(error):
        if id(tensor) in named:
            parameter = named[id(tensor)]
            wanted = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            return f"{name} is {header} in the checkpoint, which does not fit into {parameter}, {wanted}", parameter
    words, _, _ = " ".join(str(error).split()).partition(". ")  # vLLM goes on with all the names that there are
    return f"{name}, {header} in the checkpoint, is not taken: {words or type(error).__name__:.150}", ""


class Writes:
    """A context in which every write into the model's parameters is noted.

    Attributes:
        misfits: name of a tensor → why its dtype is none for its place.
    """

    def __init__(self, model: Any, name_of: Callable[[Any], str | None]) -> None:
        from torch._subclasses.fake_tensor import FakeTensor
        from torch.utils._python_dispatch import TorchDispatchMode

        self.misfits: dict[str, str] = {}
        self._model = model
        self._parameters = {storage(parameter): known for known, parameter in model.named_parameters()}
        self._regions: dict[Any, set[_Region]] = {}
        self._taken: dict[str, set[_Region]] = {}
        note = self._note

        # torch has no types where the type checker runs
        class Watch(TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if func._schema.is_mutable and args and isinstance(args[0], FakeTensor):
                    note(args[0], args[1] if len(args) > 1 else None)
                return func(*args, **(kwargs or {}))

        self._watch = Watch()
        self._name_of = name_of

    def __enter__(self) -> Writes:
        self._watch.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._watch.__exit__(*error)

    def _note(self, written: Any, source: Any) -> None:
        import torch

        place = storage(written)
        self._regions.setdefault(place, set()).add(_region(written))
        name = self._name_of(source) if isinstance(source, torch.Tensor) else None
        if name is None:
            return
        self._taken.setdefault(name, set()).add(_region(source))
        if not keeps_meaning(source.dtype, written.dtype):
            found, wanted = (str(one.dtype).removeprefix("torch.") for one in (source, written))
            parameter = self._parameters.get(place, "its place in the model")
            self.misfits[name] = (
                f"{name} is {found} in the checkpoint, and {parameter} is {wanted}: it would be converted"
            )

    def unfilled(self, but: Collection[str]) -> Iterator[str]:
        """Parameters that no tensor has filled, or only in part; `but`: those that are known to lack something."""
        exempt = set(_exempt(self._model))
        for known, parameter in self._model.named_parameters():
            place = storage(parameter)
            if known in but or known in exempt or not parameter.numel() or self._parameters.get(place) != known:
                continue  # with another storage than before, it was given a tensor whole
            filled = _numbers(self._regions.get(place, ()))
            shown = f"{known}, {str(parameter.dtype).removeprefix('torch.')} {list(parameter.shape)}"
            if not filled:
                yield f"nothing in the checkpoint fills {shown}"
            elif filled < parameter.numel() and _has_no_padding(self._model, known):
                yield f"the checkpoint fills {filled} of the {parameter.numel()} numbers of {shown}"

    def unused(self, headers: Mapping[str, tuple[str, int]]) -> Iterator[str]:
        """Tensors of which the engine took a part only, because its place is smaller; `headers`: in words, and how many
        numbers each has. Of several ranks each takes its part, so that nothing can be said."""
        from vllm.distributed import get_tensor_model_parallel_world_size

        if get_tensor_model_parallel_world_size() > 1:
            return
        for name, regions in self._taken.items():
            header, count = headers[name]
            if (taken := _numbers(regions)) < count:
                yield f"{name} is {header} in the checkpoint, and the model takes {taken} of its {count} numbers"


def _region(tensor: Any) -> _Region:
    return tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())


def _numbers(regions: Collection[_Region]) -> int:
    return sum(math.prod(shape) for _, shape, _ in regions)


def storage(tensor: Any) -> Any:
    """What views of one tensor have in common: a weak reference, so that no later storage is taken for this one."""
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(tensor.untyped_storage())


def _exempt(model: Any) -> Iterator[str]:
    """Parameters that no checkpoint has to hold (vllm 0.33.0, DefaultModelLoader.track_weights_loading): made while
    loading (online quantization), scales of the cache, which have defaults, and what the configuration says."""
    from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod

    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        whole = getattr(method, "uses_meta_device", False) or isinstance(method, BaseKVCacheMethod)
        for own, _ in module.named_parameters():
            if whole or own.rpartition(".")[2] in _CONFIG_BUILT:
                yield f"{name}.{own}".lstrip(".")


def _has_no_padding(model: Any, parameter: str) -> bool:
    """Whether a parameter is filled to its last number: a weight of a linear layer. What belongs to experts may be
    padded, and of the scales of fused layers a checkpoint with fused ones fills the first."""
    from vllm.model_executor.layers.linear import LinearBase

    owner, _, own = parameter.rpartition(".")
    return own in ("weight", "weight_packed", "qweight") and isinstance(model.get_submodule(owner), LinearBase)
