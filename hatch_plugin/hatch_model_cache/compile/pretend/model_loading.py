"""Asker: vLLM's model loading and set-up. Weights get classes, shapes and processing, but no values and no file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from . import header_loader, small_values
from .device import Device
from .header_loader import Checkpoint
from .patches import Patches

CHECKED = "vllm 0.31.0 to 0.33.0"


def install_inspection(patches: Patches) -> None:
    """Inspect the model class in this process: here there is no CUDA context that vLLM's subprocess would protect."""
    import vllm.model_executor.models.registry as registry

    def in_process(fn: Callable[[], Any]) -> Any:
        return fn()

    patches.set(registry, "_run_in_subprocess", in_process, why="a subprocess sees no GPU", checked=CHECKED)


def install_loader(
    patches: Patches, mode: AbstractContextManager[Any], fake: Any, checkpoint: Checkpoint | None, *, checked: str
) -> None:
    """Replace the loader by one that reads no weights and makes the model inside `mode`.

    Args:
        fake: the ``FakeTensorMode`` of tensors without storage; in it tiny ones that the engine writes down, or a
            checkpoint has, carry their values.
        checkpoint: whose headers its model is loaded from; None, and for other models: nothing is loaded.
    """
    import vllm.model_executor.model_loader as loading
    import vllm.model_executor.model_loader.dummy_loader as dummy

    forget = small_values.install(patches, fake)

    def fill(param: Any, *_: Any, **__: Any) -> None:
        forget(param)  # what the engine has put there waits for a checkpoint's

    why = "there is no storage"
    patches.set_everywhere(dummy, "initialize_single_dummy_weight", fill, why=why, checked=checked)

    # where the type checker runs there is no vLLM, so its classes are of no known type
    class ShapesOnlyLoader(dummy.DummyModelLoader):  # type: ignore[misc]
        """vLLM's loader for random weights, for any load format, without the random values."""

        def __init__(self, load_config: Any) -> None:
            self.load_config = load_config

        def load_model(self, *args: Any, **kwargs: Any) -> Any:
            with mode:
                return super().load_model(*args, **kwargs)

    chosen: type = ShapesOnlyLoader
    if checkpoint is not None:
        chosen = header_loader.install(patches, mode, fake, checkpoint, ShapesOnlyLoader)
    patches.set_everywhere(loading, "get_model_loader", chosen, why="no weights are read", checked=checked)


def install(patches: Patches, device: Device, fake: Any, checkpoint: Checkpoint | None) -> None:
    """Replace the loader by one that reads no weights (see `install_loader`), and pinned-memory views by fake tensors.

    Must come after the engine's configuration is created (it imports the worker) and before the worker is made.
    """
    import torch
    import vllm.model_executor.layers.fused_moe.expert_map_manager as expert_map_manager
    import vllm.platforms.cuda
    import vllm.utils.torch_utils as torch_utils
    import vllm.v1.worker.gpu_worker  # not its model runners: which one is used, it decides

    # asked here only: what needs pinned memory is chosen by whether a GPU has it, and must be
    why = "pinning needs the driver"
    patches.set_everywhere(torch_utils, "PIN_MEMORY", False, why=why, checked=CHECKED)
    patches.set(torch_utils, "is_pin_memory_available", lambda: False, why=why, checked=CHECKED)

    def view(cpu_tensor: Any) -> Any:
        return torch.empty(cpu_tensor.shape, dtype=cpu_tensor.dtype, device=torch.device("cuda", device.current))

    patches.set_everywhere(
        torch_utils,
        "get_accelerator_view_from_cpu_tensor",
        view,
        why="maps host memory into the device",
        checked=CHECKED,
    )
    install_loader(patches, contextlib.nullcontext(), fake, checkpoint, checked=CHECKED)
    patches.set(
        vllm.platforms.cuda.CudaPlatformBase,
        "set_device",
        classmethod(lambda cls, device: torch.cuda.set_device(device)),
        why="forces a context by allocating, and in a thread of its own, where no mode is active",
        checked=CHECKED,
    )
    patches.set(
        expert_map_manager.ExpertMapManager,
        "get_compressed_map_string",
        lambda self: "not known",
        why="reads the map of experts to ranks for a line of the log",
        checked=CHECKED,
    )
    worker = vllm.v1.worker.gpu_worker.Worker
    patches.set(
        worker,
        "_maybe_get_memory_pool_context",
        lambda *_, **__: contextlib.nullcontext(),
        why="a pool of device memory (sleep mode) needs the driver",
        checked=CHECKED,
    )
