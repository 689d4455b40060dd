"""How the plug-in knows, without a hash and without asking for a GPU, that nothing has changed since it last looked.

A stamp is a small text file below `.model-cache/stamps/`, one for each kind of host that shares the cache root. It
lists size and mtime of every installed manifest and every deployed file, and what the plug-in has to say each time.
This module is on the plug-in's fast path: it imports nothing that an interpreter has not loaded already.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from stat import S_ISREG
from typing import NamedTuple
from zlib import crc32

from model_cache import __version__
from model_cache.wheel.discovery import Installed

FORMAT = "model-cache stamp 1"
MAX_BYTES = 4 * 1024 * 1024
"""A larger stamp is none of ours."""
DIRECTORY = ".model-cache/stamps"
SYSTEM_KEYS = "/etc/model-cache/trusted.d"
KEEP = 16

_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MODEL_CACHE_ASSUME_TARGET",
    "MODEL_CACHE_POLICY",
    "MODEL_CACHE_TRUST",
    "NVIDIA_VISIBLE_DEVICES",
    "TORCHINDUCTOR_VEC_ISA_OK",
)


class Stamp(NamedTuple):
    """lines: what has to be as it was; messages: what has to be said again."""

    lines: tuple[str, ...]
    messages: tuple[str, ...]


def identity(others: Iterable[str], environ: Mapping[str, str] = os.environ) -> str:
    """One line that is another one when this host could be: other GPUs, compiler, engine, torch, triton or Python.

    others: the dist-info directories of engine, torch and triton. The boot id stands for the hardware, so GPUs
    and CPU are asked again after each boot.
    """
    parts = [__version__, sys.version, sys.prefix, *os.uname()[3:], _boot_id()]
    parts += [f"{name}={environ.get(name)}" for name in _VARIABLES]
    parts += [*_devices(), *_compiler(environ)]
    parts += _keys(environ)
    for path in others:
        site = path.rpartition("/")[0]
        parts += [path, _times(path), _times(f"{site}/torch/version.py")]
    return " ".join(repr(part) for part in parts)


def file_name(identity: str) -> str:
    """The stamp's file for hosts of one identity; the identity itself is compared inside."""
    return f"{crc32(identity.encode('utf-8', 'replace')):08x}"


def read(root: str, identity: str, wheels: Sequence[Installed]) -> tuple[str, ...] | None:
    """The messages of the stamp when everything is as it was, None when somebody has to look closer."""
    try:
        head, who, *lines = _read(f"{root}/{DIRECTORY}/{file_name(identity)}").split("\n")[:-1]
    except (OSError, ValueError):
        return None
    if head != FORMAT or who != identity:
        return None
    messages = tuple(line[2:] for line in lines if line.startswith("! "))
    deployed = [line for line in lines if line[:2] in ("f ", "d ")]
    manifests = [line for line in lines if line.startswith("m ")]
    if manifests != manifest_lines(wheels) or not all(_is_same(root, line) for line in deployed):
        return None
    return messages


def _read(path: str) -> str:
    """The text of a small regular file. What else may lie there (a FIFO, a device, a link) must not hold a start up."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise ValueError
        return os.read(descriptor, MAX_BYTES).decode(errors="surrogateescape")
    finally:
        os.close(descriptor)


def manifest_lines(wheels: Iterable[Installed]) -> list[str]:
    """One line for each installed wheel: another installation, or another signature, gives another line."""
    found = []
    for wheel in wheels:
        signed = _times(f"{wheel.manifest_path.removesuffix('.json')}.sig")
        found.append(f"m {_times(wheel.manifest_path)}/{signed} {wheel.version} {wheel.manifest_path}")
    return sorted(found)


def file_line(path: str, size: int, mtime_ns: int) -> str:
    """A deployed file, path relative to the root."""
    return f"f {size} {mtime_ns} {path}"


def directory_line(path: str) -> str:
    """A directory that only has to be there, relative to the root."""
    return f"d 0 0 {path}"


def text(identity: str, lines: Iterable[str], messages: Iterable[str]) -> str | None:
    """A stamp file's content; None when something in it cannot be written as a line."""
    found = [FORMAT, identity, *lines, *(f"! {message}" for message in messages)]
    return None if any("\n" in line for line in found) else "".join(f"{line}\n" for line in found)


def _is_same(root: str, line: str) -> bool:
    try:
        kind, size, mtime_ns, path = line.split(" ", 3)
        status = os.lstat(f"{root}/{path}")
    except (OSError, ValueError):
        return False
    return kind == "d" or (str(status.st_size), str(status.st_mtime_ns)) == (size, mtime_ns)


def _times(path: str) -> str:
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return "-"
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return os.uname().nodename


def _keys(environ: Mapping[str, str]) -> list[str]:
    """Where trusted keys and revocations lie (as in `keyring.places`), and when each file was changed."""
    base = environ.get("XDG_CONFIG_HOME", "")
    user = base if base.startswith("/") else f"{os.path.expanduser('~')}/.config"  # noqa: PTH111
    found = []
    for place in (SYSTEM_KEYS, f"{user}/model-cache/trusted.d", *environ.get("MODEL_CACHE_TRUST", "").split(":")):
        if place and (times := _times(place)) != "-":
            found += [place, times, *(f"{name} {_times(f'{place}/{name}')}" for name in _names(place))]
    return found


def _devices() -> list[str]:
    return [name for name in _names("/dev") if name.startswith("nvidia")]


def _compiler(environ: Mapping[str, str]) -> list[str]:
    """Where the C++ compiler is that torch would call (as in `cpu.read_compiler`), and which file that is."""
    name = environ.get("CXX") or "g++"
    folders = [""] if "/" in name else environ.get("PATH", "").split(":")
    found = ((path, _times(path)) for folder in folders if (path := f"{folder}/{name}" if folder else name))
    return [*next((one for one in found if one[1] != "-"), ("-", name))]


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
