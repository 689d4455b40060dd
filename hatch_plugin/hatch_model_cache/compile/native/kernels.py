"""Asker: Inductor, for a name of every kernel. It must be one that every environment gives."""

from __future__ import annotations

from model_cache.engine import kernel_names

from ..pretend.patches import Patches


def install(patches: Patches) -> None:
    """Name kernels without the paths of this environment, as the serving side does."""
    import torch._inductor.cpp_builder as cpp_builder

    patches.set(
        cpp_builder.CppBuilder,
        "get_command_line",
        kernel_names.named_neutrally(cpp_builder),
        why="a kernel's name holds the paths of the environment that compiled it",
        checked=kernel_names.CHECKED,
    )
