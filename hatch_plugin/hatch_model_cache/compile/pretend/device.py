"""The pretended GPU itself: its target record, how many of it, and what was asked of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hatch_model_cache import cubin
from hatch_model_cache.targets import Target

RESERVED_BYTES = 600 << 20
"""What a CUDA context, cuBLAS and the like take from an idle GPU; the free memory reported is this much below total."""


@dataclass(frozen=True)
class Kernel:
    """One loaded GPU kernel: its name, the SHA-256 of its cubin, and the resources the driver would report."""

    name: str
    sha256: str
    arch: str
    registers: int
    spills: int
    shared: int


@dataclass
class Log:
    """What was asked of the pretended GPU. Everything that was answered by a made-up value is in `stand_ins`."""

    kernels: dict[str, Kernel] = field(default_factory=dict)
    ptxas_runs: int = 0
    launches_skipped: Counter[str] = field(default_factory=Counter)
    stand_ins: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(site, answer) → count: host reads of values that only real weights or a real GPU know."""
    on_kernel: Callable[[Kernel], None] | None = None


@dataclass
class Device:
    """`count` GPUs of one target, numbered from 0; `current` is the selected one.

    in_use: whether this process has a context on them; one that has cannot be forked.
    """

    target: Target
    count: int = 1
    current: int = 0
    in_use: bool = True
    log: Log = field(default_factory=Log)

    def index(self, device: Any = None) -> int:
        """The number a device argument means: None, an int, "cuda:1", a torch.device, a tensor."""
        import torch

        if device is None:
            return self.current
        if isinstance(device, int):
            return device if device >= 0 else self.current
        if isinstance(device, str):
            device = torch.device(device)
        if isinstance(device, torch.device):
            return self.current if device.index is None else device.index
        return self.index(device.device) if hasattr(device, "device") else self.current

    def select(self, device: Any) -> None:
        """Make a GPU the current one."""
        self.current = self.index(device)

    def free_and_total(self) -> tuple[int, int]:
        """Free and total memory in bytes of an idle GPU."""
        return self.target.total_memory - RESERVED_BYTES, self.target.total_memory

    def load(self, data: bytes, name: str, shared: int) -> tuple[int, int]:
        """Note a kernel as loaded; answer its registers per thread and spilled words, as the driver would.

        Raises:
            RuntimeError: as the driver does if the kernel is for another architecture or wants too much shared memory.
            CubinError: if the bytes are no cubin of that kernel.
        """
        import hashlib

        arch = cubin.architecture(data)
        if not _runs(arch, self.target.capability):
            raise RuntimeError(f"no kernel image is available for execution on the device: {name} is for {arch}")
        limit = self.target.shared_memory_per_block_optin
        if shared > limit:
            raise RuntimeError(f"out of resource: shared memory, required {shared}, limit {limit} bytes")
        registers, spills = cubin.resources(data, name)
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self.log.kernels:
            kernel = Kernel(name, digest, arch, registers, spills, shared)
            self.log.kernels[digest] = kernel
            if self.log.on_kernel:
                self.log.on_kernel(kernel)
        return registers, spills


def _runs(arch: str, capability: tuple[int, int]) -> bool:
    """Whether the driver takes a cubin: for the same major and no later minor version, or with ``a`` for just that."""
    number = int(arch.removeprefix("sm_").removesuffix("a"))
    major, minor = divmod(number, 10)
    return (major, minor) == capability if arch.endswith("a") else major == capability[0] and minor <= capability[1]


class Properties:
    """What ``torch.cuda.get_device_properties`` returns, filled from a target."""

    def __init__(self, target: Target, index: int) -> None:
        self.name = target.device_name
        self.major, self.minor = target.capability
        self.total_memory = target.total_memory
        self.multi_processor_count = target.sm_count
        self.regs_per_multiprocessor = target.registers_per_multiprocessor
        self.max_threads_per_multi_processor = target.max_threads_per_multiprocessor
        self.max_threads_per_block = target.max_threads_per_block
        self.warp_size = target.warp_size
        self.shared_memory_per_block = target.shared_memory_per_block
        self.shared_memory_per_block_optin = target.shared_memory_per_block_optin
        self.shared_memory_per_multiprocessor = target.shared_memory_per_multiprocessor
        self.L2_cache_size = target.l2_cache_size
        self.clock_rate = target.clock_rate
        self.memory_clock_rate = target.memory_clock_rate
        self.memory_bus_width = target.memory_bus_width
        self.is_integrated = 0
        self.is_multi_gpu_board = 0
        self.gcnArchName = ""
        self.uuid = f"00000000-0000-0000-0000-{index:012d}"
        self.pci_bus_id = index + 1
        self.pci_device_id = 0
        self.pci_domain_id = 0
