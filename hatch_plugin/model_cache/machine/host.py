"""Facts of this host that decide whether a wheel fits: GPUs or CPU, engine, torch, triton, Python."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

from model_cache.errors import UsageError
from model_cache.machine import cpu
from model_cache.machine.cpu import Compiler, Cpu

PROBE_SECONDS = 10.0
ASSUME_TARGET = "MODEL_CACHE_ASSUME_TARGET"

_TARGET_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
_ASSIGNMENT = r"^{name}\s*(?::[^=\n]*)?=\s*(?:[A-Za-z_]\w*\s*=\s*)*['\"]([^'\"\n]+)['\"]"


@dataclass(frozen=True)
class Gpu:
    """One visible GPU as the driver describes it: the fields of a target file. Bytes, and kHz for clocks."""

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


@dataclass(frozen=True)
class Gpus:
    """The visible GPUs in the driver's order.

    reason: why there are none, in words; failed: the driver could not be asked, so that may change any time.
    """

    gpus: tuple[Gpu, ...]
    reason: str | None
    failed: bool = False


class Hardware:
    """GPUs, CPU and C++ compiler of a host, each asked for when a wheel first depends on it, and once."""

    def __init__(self, gpus: Callable[[], Gpus], cpu: Callable[[], Cpu], compiler: Callable[[], Compiler]) -> None:
        self._gpus, self._cpu, self._compiler = gpus, cpu, compiler

    @cached_property
    def gpus(self) -> Gpus:
        """The visible GPUs."""
        return self._gpus()

    @cached_property
    def cpu(self) -> Cpu:
        """The CPU."""
        return self._cpu()

    @cached_property
    def compiler(self) -> Compiler:
        """The C++ compiler."""
        return self._compiler()

    @property
    def failed(self) -> bool:
        """Whether the GPUs were asked for and their driver could not be, which may change any time."""
        return "gpus" in vars(self) and self.gpus.failed


@dataclass(frozen=True)
class Host:
    """This host as a wheel meets it. A version is None when the package is not installed.

    assumed: the target that the user says this host will be; then neither GPUs nor CPU count.
    """

    engine: str
    engine_version: str | None
    torch: str | None
    cuda: str | None
    triton: str | None
    python: str
    platform: str
    hardware: Hardware
    assumed: str | None = None


def read_host(engine: str, assume_target: str | None = None, timeout: float | None = None) -> Host:
    """Look at this host. engine: the distribution whose version is wanted, e.g. "vllm".

    assume_target: name of the target to take this host for, instead of asking for GPUs or CPU.
    timeout: seconds that the GPU probe may take, at most PROBE_SECONDS.
    Raises UsageError for a target name that can be none.
    """
    if assume_target is not None and not _TARGET_NAME.fullmatch(assume_target):
        raise UsageError(f"{assume_target!r:.80} is not the name of a target; `model-cache targets` lists them")
    torch, cuda = torch_versions()
    return Host(
        engine=engine,
        # of torch the manifest has the public version here, and the whole one as `torch`
        engine_version=(torch or "").partition("+")[0] or None if engine == "torch" else _distribution_version(engine),
        torch=torch,
        cuda=cuda,
        triton=_distribution_version("triton"),
        python=platform.python_version(),
        platform=f"{sys.platform}_{os.uname().machine}",
        hardware=Hardware(lambda: probe_gpus(timeout), cpu.read, cpu.read_compiler),
        assumed=assume_target,
    )


def probe_gpus(timeout: float | None = None) -> Gpus:
    """The visible GPUs (CUDA_VISIBLE_DEVICES counts, as the driver reads it), asked in a process of its own.

    timeout: seconds, at most and by default PROBE_SECONDS. Never raises: whatever goes wrong is the reason.
    """
    program = str(Path(__file__).with_name("gpu_probe.py"))
    limit = PROBE_SECONDS if timeout is None else min(timeout, PROBE_SECONDS)
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", program],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Gpus((), f"the CUDA driver did not answer within {limit:g} s", failed=True)
    except OSError as error:
        return Gpus((), f"the GPU probe could not be started: {error}", failed=True)
    if done.returncode:
        return Gpus((), f"the GPU probe ended with status {done.returncode}", failed=True)
    try:
        answer = json.loads(done.stdout)
        names = [field.name for field in fields(Gpu)]
        gpus = tuple(Gpu(**{name: gpu[name] for name in names}) for gpu in answer["gpus"])
    except (ValueError, KeyError, TypeError):
        return Gpus((), "the GPU probe gave no usable answer", failed=True)
    return Gpus(gpus, answer.get("reason"), bool(answer.get("failed")))


def torch_versions() -> tuple[str | None, str | None]:
    """(torch.__version__, torch.version.cuda) without importing torch.

    The metadata of torch's CUDA wheels may say "2.14.0" where torch.__version__ is "2.14.0+cu130", so the
    text of torch/version.py is read instead (written by torch's setup.py, a list of assignments).
    """
    text = _module_text("torch", "version.py")
    if text is None:
        return _distribution_version("torch"), None
    return _assigned(text, "__version__"), _assigned(text, "cuda")


def _module_text(package: str, file: str) -> str | None:
    for entry in sys.path:
        path = Path(entry or ".", package, file)
        try:
            return path.read_text("utf-8", "replace")
        except OSError:
            continue
    return None


def _assigned(text: str, name: str) -> str | None:
    match = re.search(_ASSIGNMENT.format(name=name), text, re.MULTILINE)
    return match[1] if match else None


def _distribution_version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
