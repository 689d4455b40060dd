"""This host's GPUs as targets, and how they differ from the shipped ones; which kind of CPU it has."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hatch_model_cache.targets import DATA_FIELDS, AnyTarget, CpuTarget, Target, gpu, load_all, load_gpus
from model_cache.errors import NotFoundError

if TYPE_CHECKING:
    from model_cache.machine.cpu import Cpu
    from model_cache.machine.host import Gpu

__all__ = ["cpu_target", "differences", "name_for", "probe_host", "shipped_like", "to_toml"]


def probe_host() -> list[Target]:
    """Return this host's GPUs in the driver's order, one Target for each.

    The driver is asked in a subprocess (``model_cache.machine.host``), so this process gets no CUDA context.

    Raises:
        NotFoundError: this host has no visible GPU, or no driver that answers.
        TargetFileError: the driver's answer is no possible target.
    """
    from model_cache.machine import host

    found = host.probe_gpus()
    if not found.gpus:
        raise NotFoundError(
            f"No GPU to probe on this host: {found.reason or 'the driver lists none'}. "
            "Run this on a host of the kind to describe; `model-cache targets list` shows the shipped ones."
        )
    return [_target(gpu) for gpu in found.gpus]


def cpu_target(environment: Mapping[str, str] = os.environ, here: Cpu | None = None) -> CpuTarget | None:
    """Return the shipped target that this host's CPU is, to torch and to the kernel; None if it is none.

    Args:
        environment: what the engine will be started with; ``ATEN_CPU_CAPABILITY`` in it counts.
        here: the CPU; this one by default.
    """
    from model_cache.machine import cpu

    here = cpu.read(environment) if here is None else here
    found = (here.machine, here.vec_isa, here.capability)
    for target in load_all().values():
        if isinstance(target, CpuTarget) and (target.machine, target.vec_isa, target.cpu_capability) == found:
            return target if here.flags.issuperset(target.flags) else None
    return None


def differences(probed: Target, shipped: Target) -> list[tuple[str, Any, Any]]:
    """Return ``(field, shipped value, probed value)`` for each field of the device that differs."""
    return [
        (name, getattr(shipped, name), getattr(probed, name))
        for name in DATA_FIELDS
        if getattr(shipped, name) != getattr(probed, name)
    ]


def shipped_like(device_name: str) -> Target | None:
    """Return the shipped target with this device name, if there is one."""
    return next((target for target in load_gpus().values() if target.device_name == device_name), None)


def to_toml(target: AnyTarget) -> str:
    """Return ``target`` as the text of a target file; reading it back gives an equal target."""
    data = target.as_dict()
    lines = [f"{key} = {_toml(value)}" for key, value in data.items()]
    lines += ["", "[sources]"]
    groups: dict[str, list[str]] = {}
    for key, text in target.sources.items():
        groups.setdefault(text, []).append(key)
    for text, keys in groups.items():
        key = keys[0] if len(keys) == 1 else _toml(" ".join(keys))
        lines.append(f"{key} = {_toml(text)}")
    return "\n".join(lines) + "\n"


def name_for(device_name: str) -> str:
    """Return a target name made from a device name: ``NVIDIA H100 PCIe`` gives ``h100-pcie``."""
    words = re.findall(r"[a-z0-9]+", device_name.lower())
    kept = [word for word in words if word not in ("nvidia", "geforce", "tesla")]
    return "-".join(kept or words or ["gpu"])


def _toml(value: Any) -> str:
    # JSON's strings, integers and lists of strings are TOML's too, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _target(found: Gpu) -> Target:
    """The fields of ``Gpu`` are those of a target file but for name, kind and sources."""
    shipped = shipped_like(found.device_name)
    return gpu.from_mapping(
        {
            "name": shipped.name if shipped else name_for(found.device_name),
            "kind": "gpu",
            **dataclasses.asdict(found),
            "sources": {" ".join(DATA_FIELDS): "cuDeviceGetAttribute on one host"},
        },
        where="of this host",
    )
