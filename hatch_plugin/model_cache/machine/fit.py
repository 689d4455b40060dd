"""Does a wheel fit this host? The answer names every value that differs, on both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from model_cache.errors import MismatchError
from model_cache.machine import cpu
from model_cache.machine.cpu import Compiler, Cpu
from model_cache.machine.host import Gpu, Gpus, Host
from model_cache.wheel.manifest import CpuRecord, Engine, GpuRecord, Manifest, Scalar

ANY_PATCH = frozenset({"torch"})
"""Engines whose wheels fit every patch of one minor version of Python: they hold pickles and sources, no bytecode."""

GPU_FIELDS = ("device_name", "compute_capability", "sm_count")
"""What must be equal. The engine's key holds only the name; code depends on the other two as well."""

PRODUCT = "matrix product"


@dataclass(frozen=True)
class Difference:
    """One value in which wheel and host differ, as text."""

    field: str
    wheel: str
    host: str

    def __str__(self) -> str:
        return f"{self.field} is {self.host}, the wheel was built for {self.wheel}"


@dataclass(frozen=True)
class Fit:
    """targets: names of the wheel's targets that this host is; differences: empty when it fits."""

    targets: tuple[str, ...]
    differences: tuple[Difference, ...]

    @property
    def fits(self) -> bool:
        return not self.differences


def outdated(engine: Engine, host: Host) -> list[Difference]:
    """Why a wheel for `engine` is stale: its engine, torch, CUDA, Triton or Python was replaced by what is here.

    Empty when there is no such engine here at all.
    """
    if not host.engine_version or engine.name != host.engine:
        return []
    return [difference for difference in _version_differences(engine, host) if difference.field != "platform"]


def compare(manifest: Manifest, host: Host) -> Fit:
    """Compare all that matters at once; nothing is read or asked for here."""
    differences = _version_differences(manifest.engine, host)
    cpus = [target for target in manifest.targets if isinstance(target, CpuRecord)]
    gpus = [target for target in manifest.targets if isinstance(target, GpuRecord)]
    if cpus:
        differences += _compiler_differences(manifest.unkeyed.get("compiler"), host.hardware.compiler)
    if host.assumed is not None:
        targets, found = _assumed(manifest, host.assumed)
    elif gpus:
        targets, found = _visible(gpus, host.hardware.gpus)
    else:
        targets, found = _this_cpu(cpus, manifest.unkeyed, host.hardware.cpu)
    # One difference per distinct pair of values: eight equal GPUs say the same thing eight times.
    return Fit(() if differences + found else targets, tuple(dict.fromkeys(differences + found)))


def cpu_differences(manifest: Manifest, here: Cpu, compiler: Compiler) -> list[Difference]:
    """What makes a CPU, or its compiler, another one than the build's; nothing for a wheel for GPUs."""
    records = [target for target in manifest.targets if isinstance(target, CpuRecord)]
    if not records:
        return []
    _, found = _this_cpu(records, manifest.unkeyed, here)
    return _compiler_differences(manifest.unkeyed.get("compiler"), compiler) + found


def _version_differences(wheel: Engine, host: Host) -> list[Difference]:
    pairs = [
        ("engine", wheel.name, host.engine),
        (wheel.name, wheel.version, host.engine_version),
        ("torch", wheel.torch, host.torch),
        ("cuda", wheel.cuda, host.cuda),
        ("triton", wheel.triton, host.triton),
        ("python", _python(wheel.name, wheel.python), _python(wheel.name, host.python)),
        ("platform", wheel.platform, host.platform),
    ]
    return [
        Difference(name, ours or "none", theirs or "not installed") for name, ours, theirs in pairs if ours != theirs
    ]


def _python(engine: str, version: str) -> str:
    return ".".join(version.split(".")[:2]) if engine in ANY_PATCH else version


def _assumed(manifest: Manifest, name: str) -> tuple[tuple[str, ...], list[Difference]]:
    if manifest.target(name):
        return (name,), []
    return (), [Difference("target", ", ".join(target.name for target in manifest.targets), name)]


def _visible(records: Sequence[GpuRecord], here: Gpus) -> tuple[tuple[str, ...], list[Difference]]:
    if not here.gpus:
        names = ", ".join(target.name for target in records)
        return (), [Difference("GPU", names, f"not visible ({here.reason})")]
    targets: list[str] = []
    differences: list[Difference] = []
    for gpu in here.gpus:
        target, found = min(
            ((target, _gpu_differences(target, gpu)) for target in records), key=lambda pair: len(pair[1])
        )
        differences += found
        if not found:
            targets.append(target.name)
    return tuple(dict.fromkeys(targets)), differences


def _gpu_differences(target: GpuRecord, gpu: Gpu) -> list[Difference]:
    return [
        Difference(
            field,
            repr(ours) if field == "device_name" else str(ours),
            repr(theirs) if field == "device_name" else str(theirs),
        )
        for field in GPU_FIELDS
        if (ours := getattr(target, field)) != (theirs := getattr(gpu, field))
    ]


def _this_cpu(
    records: Sequence[CpuRecord], unkeyed: Mapping[str, Scalar], here: Cpu
) -> tuple[tuple[str, ...], list[Difference]]:
    target, found = min(
        ((target, _cpu_differences(target, unkeyed, here)) for target in records), key=lambda pair: len(pair[1])
    )
    return (() if found else (target.name,)), found


def _cpu_differences(target: CpuRecord, unkeyed: Mapping[str, Scalar], here: Cpu) -> list[Difference]:
    """What makes this CPU another one than the build's.

    The kernels are compiled with -march=native, so each instruction set that was on then must be here; more may be.
    What torch vectorizes for must be equal: the loops were generated for that width, and a larger one gives wrong
    numbers as well as a smaller one. The CPU's model is not compared: two models with all this equal run the same
    code, and a cloud's instance type has several.
    """
    why = f" ({here.set_by})" if here.set_by else ""
    pairs: list[tuple[str, Scalar, Scalar]] = [
        ("machine", target.machine, here.machine),
        ("vec_isa", target.vec_isa, f"{here.vec_isa}{why}" if here.vec_isa != target.vec_isa else here.vec_isa),
        ("cpu_capability", target.cpu_capability, here.capability),
        ("AMX", unkeyed.get("cpu.amx"), here.amx),
        ("AVX512-BF16", unkeyed.get("cpu.bf16"), here.bf16),
    ]
    if dtype := unkeyed.get("model.dtype"):  # of an engine's model; other programs prepare no weights for oneDNN
        ours, theirs = _product(dtype, unkeyed.get("cpu.onednn")), _product(dtype, dtype in here.multiplied)
        pairs.append((PRODUCT, ours, f"{theirs}{why}" if ours != theirs else theirs))
    differences = [Difference(name, _words(ours), _words(theirs)) for name, ours, theirs in pairs if ours != theirs]
    instructions = str(unkeyed.get("cpu.instructions") or "").split()
    if not instructions:
        differences.append(Difference("cpu.instructions", "not recorded", "known"))
    if missing := sorted((cpu.flags_of(instructions) | set(target.flags)) - here.flags):
        differences.append(Difference("CPU flags", " ".join(missing), f"without {'them' if missing[1:] else 'it'}"))
    return differences


def _product(dtype: Scalar, onednn: Scalar) -> str | None:
    """Whose matrix product a model of this type is served with: the graph of one is not the other's."""
    return None if onednn is None else f"{dtype} by {'oneDNN' if onednn else 'torch'}"


def _words(value: Scalar) -> str:
    if value is None:
        return "not recorded"
    return ("supported" if value else "not supported") if isinstance(value, bool) else str(value)


def _compiler_differences(ours: Scalar, here: Compiler) -> list[Difference]:
    """An older compiler may not know the instruction set, and torch then silently picks a smaller one; without one vLLM
    ends with InvalidCxxCompiler even when there is nothing to compile, since torch 2.13.0 asks for its version."""
    if here.version is None:
        return [Difference("compiler", str(ours or "one"), f"not found ({here.command}; the engine would not start)")]
    theirs, wanted = cpu.major_version(here.version), cpu.major_version(str(ours or ""))
    if wanted is not None and (theirs is None or theirs < wanted):
        return [Difference("compiler", f"{ours} or newer", here.version)]
    return []


class DoesNotFit(MismatchError):  # noqa: N818
    """A wheel was refused; `fit` says why."""

    def __init__(self, label: str, fit: Fit) -> None:
        super().__init__(f"{label} does not fit this host", [str(difference) for difference in fit.differences])
        self.fit = fit


def require(manifest: Manifest, host: Host, label: str) -> tuple[str, ...]:
    """The wheel's targets that fit `host`. Raises DoesNotFit with every difference."""
    fit = compare(manifest, host)
    if not fit.fits:
        raise DoesNotFit(label, fit)
    return fit.targets
