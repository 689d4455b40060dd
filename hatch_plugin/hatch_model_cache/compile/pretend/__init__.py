"""A pretended GPU: everything in torch, Triton, NVML and vLLM that asks a live device is answered from a target record.

One module per asker. Every replaced attribute carries its reason and the version it was checked on
(`Pretence.patches.done`), and `Pretence.close` puts all of it back. Three things stay: the stand-in of libcuda that the
process has loaded, torch's no-op device guard, and what modules imported meanwhile took for themselves (torch._dynamo's
``CudaInterface`` has the answers of its first pretence). So a process pretends one target.

The answers must be there before the questions, and vLLM's come in three waves, hence three methods of `Pretence`;
`pretend` calls the first two. A program without an engine asks in two: `before_program` is its second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hatch_model_cache.targets import Target

from ..engines.layout import PER_RANK
from . import (
    deep_gemm,
    distributed,
    fake_tensors,
    flashinfer,
    humming,
    inductor,
    libcuda,
    libcudart,
    model_loading,
    nvml,
    parameters,
    torch_cuda,
    triton_driver,
)
from .device import Device, Log
from .header_loader import Checkpoint
from .patches import Patches

__all__ = ["Device", "Pretence", "pretend"]


class Pretence:
    """`count` pretended GPUs of one target.

    Attributes:
        device: the pretended GPUs and the log of what was asked of them.
        patches: what was replaced.
        layout, checkpoint: as `surroundings.Surroundings` says.
        mode: the dispatch mode in which tensors on the GPU are fake; set by `before_engine_import`.
    """

    kind = "gpu"

    def __init__(self, target: Target, count: int = 1) -> None:
        self.device = Device(target, count)
        self.patches = Patches()
        self.mode: Any = None
        self.layout = PER_RANK
        self.checkpoint: Checkpoint | None = None
        self.packages: str | None = None

    @property
    def count(self) -> int:
        """How many GPUs there are."""
        return self.device.count

    @count.setter
    def count(self, count: int) -> None:
        self.device.count = count

    @property
    def log(self) -> Log:
        """What was asked of the GPUs."""
        return self.device.log

    def before_engine_import(self, scratch: Path) -> None:
        """Answer for torch. Call before vllm is imported.

        Args:
            scratch: a directory for the stand-in of libcuda.
        """
        libcuda.install(scratch)
        torch_cuda.install(self.patches, self.device)
        self.mode = fake_tensors.install(self.patches, self.device)

    def before_platform(self) -> None:
        """Answer for NVML, Triton, Inductor and the process group. Call before ``vllm.platforms`` is resolved."""
        triton_driver.install(self.patches, self.device)
        inductor.install(self.patches, self.device)
        nvml.install(self.patches, self.device)
        distributed.install(self.patches)

    def before_program(self) -> None:
        """Answer for Triton and Inductor to a plain module that is compiled without an engine around it."""
        libcudart.check()
        triton_driver.choose_ptxas(self.patches)
        triton_driver.install(self.patches, self.device)
        inductor.install(self.patches, self.device)

    def before_worker(self) -> None:
        """Answer for the model loader. Call when the engine's configuration is made and its worker is not."""
        parameters.install(self.patches)
        model_loading.install(self.patches, self.device, self.mode.fake, self.checkpoint)
        humming.install(self.patches, self.device)
        flashinfer.install(self.patches, self.device)
        deep_gemm.install(self.patches, self.device)
        if self.device.count > 1:
            distributed.install_communicators(self.patches)

    def before_trace(self, model: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Make a model's parameters what Dynamo can trace; its inputs are fake already. The arguments of its call."""
        parameters.demote(model)
        return args, kwargs

    def close(self) -> None:
        """Undo every patch."""
        self.patches.undo()


@contextmanager
def pretend(target: Target, *, scratch: Path, count: int = 1, engine: str = "vllm") -> Iterator[Pretence]:
    """Be `count` GPUs of `target` for torch, Triton, NVML and vLLM, until the block ends.

    engine: what will be imported; of ``"torch"`` nothing of vLLM is answered for.
    """
    pretence = Pretence(target, count)
    try:
        if engine == "torch":
            libcudart.install(scratch, target)
        pretence.before_engine_import(scratch)
        if engine != "torch":
            pretence.before_platform()
            model_loading.install_inspection(pretence.patches)
        yield pretence
    finally:
        pretence.close()
