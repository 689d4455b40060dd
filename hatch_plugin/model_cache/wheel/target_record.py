"""What a wheel was built for, as its manifest has it: a target file without its sources."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from model_cache.wheel.patterns import IDENTIFIER, SOME, WORD
from model_cache.wheel.strict_json import Fields

KINDS = frozenset({"cpu", "gpu"})

_CAPABILITY = re.compile(r"[0-9]{1,3}\.[0-9]{1,2}")


@dataclass(frozen=True)
class GpuRecord:
    """A GPU as the build saw it: a target file without its sources. Memory sizes in bytes, clocks in kHz."""

    name: str
    kind: str
    """"gpu"."""
    device_name: str
    vendor: str
    compute_capability: str
    sm_count: int
    total_memory: int
    l2_cache_size: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    registers_per_multiprocessor: int
    max_threads_per_multiprocessor: int
    max_threads_per_block: int
    warp_size: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    unverified: tuple[str, ...] = ()


@dataclass(frozen=True)
class CpuRecord:
    """A kind of CPU as the build saw it: a target file without its sources.

    Attributes:
        kind: "cpu".
        machine: as `os.uname` says it.
        vec_isa: the instruction set that Inductor vectorizes for, as torch's `pick_vec_isa` names it.
        cpu_capability: what torch's own operators use, as `torch.backends.cpu.get_cpu_capability` says it.
        flags: of /proc/cpuinfo, which every host must have.
    """

    name: str
    kind: str
    machine: str
    vec_isa: str
    cpu_capability: str
    flags: tuple[str, ...]


TargetRecord = GpuRecord | CpuRecord
"""What a wheel was built for; `kind` tells them apart."""


def target_record(f: Fields) -> TargetRecord:
    """Read one target; also used for records that do not come from a manifest."""
    if f.text("kind", choices=KINDS) == "cpu":
        return CpuRecord(
            name=f.text("name", WORD),
            kind="cpu",
            machine=f.text("machine", IDENTIFIER),
            vec_isa=f.text("vec_isa", SOME),
            cpu_capability=f.text("cpu_capability", IDENTIFIER),
            flags=f.texts("flags", IDENTIFIER, least=1),
        )
    values: dict[str, Any] = {
        "name": f.text("name", WORD),
        "device_name": f.text("device_name", SOME),
        "vendor": f.text("vendor", WORD),
        "compute_capability": f.text("compute_capability", _CAPABILITY),
    }
    values |= {field.name: f.integer(field.name) for field in fields(GpuRecord) if field.type == "int"}
    return GpuRecord(kind="gpu", **values, unverified=f.texts("unverified", IDENTIFIER))
