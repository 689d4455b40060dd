"""Does a wheel fit this host? The answer names every value that differs, on both sides."""

from __future__ import annotations

from dataclasses import dataclass

from model_cache.errors import MismatchError
from model_cache.host import Gpu, Host
from model_cache.manifest import Engine, GpuRecord, Manifest

GPU_FIELDS = ("device_name", "compute_capability", "sm_count")
"""What must be equal. The engine's key holds only the name; code depends on the other two as well."""


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
    """targets: names of the wheel's targets that this host's GPUs are; differences: empty when it fits."""

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
    if host.assumed is not None:
        targets, found = _assumed(manifest, host.assumed)
    else:
        targets, found = _visible(manifest, host)
    # One difference per distinct pair of values: eight equal GPUs say the same thing eight times.
    return Fit(() if differences + found else targets, tuple(dict.fromkeys(differences + found)))


def _version_differences(wheel: Engine, host: Host) -> list[Difference]:
    pairs = [
        ("engine", wheel.name, host.engine),
        (wheel.name, wheel.version, host.engine_version),
        ("torch", wheel.torch, host.torch),
        ("cuda", wheel.cuda, host.cuda),
        ("triton", wheel.triton, host.triton),
        ("python", wheel.python, host.python),
        ("platform", wheel.platform, host.platform),
    ]
    return [
        Difference(name, ours or "none", theirs or "not installed") for name, ours, theirs in pairs if ours != theirs
    ]


def _assumed(manifest: Manifest, name: str) -> tuple[tuple[str, ...], list[Difference]]:
    if manifest.target(name):
        return (name,), []
    return (), [Difference("target", ", ".join(target.name for target in manifest.targets), name)]


def _visible(manifest: Manifest, host: Host) -> tuple[tuple[str, ...], list[Difference]]:
    names = ", ".join(target.name for target in manifest.targets)
    if not host.gpus.gpus:
        return (), [Difference("GPU", names, f"not visible ({host.gpus.reason})")]
    targets: list[str] = []
    differences: list[Difference] = []
    for gpu in host.gpus.gpus:
        target, found = min(
            ((target, _gpu_differences(target, gpu)) for target in manifest.targets if isinstance(target, GpuRecord)),
            key=lambda pair: len(pair[1]),
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
