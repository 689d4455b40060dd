"""The real CPU that is here: nothing is pretended but the weights, and the other ranks if there are any.

Inductor compiles for this machine (``-march=native``), so torch, the engine's worker and its own buffers stay real, and
operators run. Weights and the inputs of the traced call are FakeTensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from ..engines.layout import PER_RANK
from ..pretend import fake_tensors, inductor, parameters
from ..pretend.device import Log
from ..pretend.header_loader import Checkpoint
from ..pretend.model_loading import install_inspection
from ..pretend.patches import Patches
from . import kernels, ranks, weights

__all__ = ["Native", "native"]


class Native:
    """One CPU.

    Attributes:
        kind, patches, log, count, layout, checkpoint, mode: as `surroundings.Surroundings` says; the engine is in no
            mode of ours.
    """

    kind = "cpu"

    def __init__(self) -> None:
        self.patches = Patches()
        self.log = Log()
        self.count = 1
        self.layout = PER_RANK
        self.checkpoint: Checkpoint | None = None
        self.packages: str | None = None
        self.mode = nullcontext()
        self._weights: Any = None

    def before_program(self) -> None:
        """Name kernels neutrally; leave out what differs between processes; let weights be converted that are none."""
        kernels.install(self.patches)
        inductor.same_in_every_process(self.patches)
        fake_tensors.reassign_in_apply(self.patches)

    def before_worker(self) -> None:
        """Let the engine load weights that have no values, and name kernels neutrally."""
        kernels.install(self.patches)
        parameters.install(self.patches)
        fake_tensors.reassign_in_apply(self.patches)
        if self.count > 1:
            ranks.install(self.patches)
        self._weights = weights.install(self.patches, self.log, self.checkpoint)

    def before_trace(self, model: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Plain FakeTensors for Dynamo, in the place of weights and inputs."""
        parameters.demote(model)
        fake: tuple[Any, Any] = weights.fake_inputs(self._weights, (args, kwargs))
        return fake


@contextmanager
def native(engine: str) -> Iterator[Native]:
    """The CPU, as surroundings of a compile by `engine`."""
    surroundings = Native()
    if engine != "torch":  # the others import vllm
        install_inspection(surroundings.patches)
    try:
        yield surroundings
    finally:
        surroundings.patches.undo()
