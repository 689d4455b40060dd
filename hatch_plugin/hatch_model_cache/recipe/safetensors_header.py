"""The header of a safetensors file: names, dtypes and shapes of its tensors, read bounded, and judged.

The file is 8 bytes with the header's length, the header (JSON), and the tensors' bytes, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from model_cache.errors import DamagedError
from model_cache.wheel.names import counted, printable
from model_cache.wheel.strict_json import loads

MAX_BYTES = 32 << 20
"""Size that a header may have; that of the largest shards is about a megabyte."""

MAX_NAME = 512
"""Characters of a tensor's name."""

MAX_FILE_BYTES = 1 << 44
"""Size that a file may have: 16 TiB, what common file systems can hold."""

_SHOWN = 10
_LENGTH = 8
_METADATA = "__metadata__"

BITS = {
    "BOOL": 8,
    "F4": 4,
    "BF16": 16,
    "C64": 64,
    **{f"F6_{form}": 6 for form in ("E2M3", "E3M2")},
    **{f"F8_{form}": 8 for form in ("E4M3", "E5M2", "E8M0", "E4M3FNUZ", "E5M2FNUZ")},
    **{f"{kind}{bits}": bits for kind in "IU" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": bits for bits in (16, 32, 64)},
}
"""Every dtype that safetensors 0.8.0 names → bits of one number."""


class Readable(Protocol):
    """An open file, here or elsewhere."""

    def seek(self, offset: int, /) -> int: ...
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Tensor:
    """One tensor. begin, end: of its bytes in the file; count: of its numbers."""

    name: str
    begin: int
    end: int
    count: int


@dataclass(frozen=True)
class Header:
    """The beginning of a file: raw, as it is there; size: of the whole file in bytes; tensors: in the file's order."""

    raw: bytes
    size: int
    tensors: tuple[Tensor, ...]


def read(file: Readable, size: int, what: str) -> Header:
    """Read the header of a file of `size` bytes; nothing behind it is looked at.

    what: names the file in errors. Raises DamagedError.
    """
    if not _LENGTH < size <= MAX_FILE_BYTES:
        raise DamagedError(f"{what}: has {size} bytes, which no safetensors file has")
    file.seek(0)
    prefix = file.read(_LENGTH)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < _LENGTH or length > min(MAX_BYTES, size - _LENGTH):
        raise DamagedError(f"{what}: is no safetensors file: its header would have {length} bytes")
    text = file.read(length)
    if len(text) < length:
        raise DamagedError(f"{what}: ends within its header")
    document = loads(text, what, MAX_BYTES)
    if not isinstance(document, dict):
        raise DamagedError(f"{what}: its header is no JSON object")
    document.pop(_METADATA, None)
    problems: list[str] = []
    start = _LENGTH + length
    tensors = sorted(_tensors(document, start, problems), key=lambda tensor: (tensor.begin, tensor.end))
    problems += _gaps(tensors, start, size) if not problems else ()
    if problems:
        more = [f"and {len(problems) - _SHOWN} more"] if problems[_SHOWN:] else []
        raise DamagedError(f"{what}: its header is wrong", [*problems[:_SHOWN], *more])
    return Header(prefix + text, size, tuple(tensors))


def _tensors(document: dict[str, object], start: int, problems: list[str]) -> Iterator[Tensor]:
    for name, value in document.items():
        problem = _problem(name, value)
        if problem:
            problems.append(f"{printable(name)!r:.120} {problem}")
            continue
        assert isinstance(value, dict)
        begin, end = value["data_offsets"]
        count = math.prod(value["shape"])
        if (end - begin) * 8 != count * BITS[value["dtype"]]:
            problems.append(f"{name!r:.120} is {value['dtype']} {value['shape']!r:.80} in {end - begin} bytes")
        yield Tensor(name, start + begin, start + end, count)


def _problem(name: str, value: object) -> str | None:
    if not name or len(name) > MAX_NAME or printable(name) != name:
        return f"is no name of a tensor: empty, longer than {MAX_NAME} characters, or not printable"
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        return "must have dtype, shape and data_offsets, and nothing else"
    if not isinstance(value["dtype"], str) or value["dtype"] not in BITS:
        return f"has the dtype {value['dtype']!r:.40}, which safetensors has not"
    if not _numbers(value["shape"]) or len(value["shape"]) > 16:
        return "must have a shape of at most 16 numbers, none below 0"
    if not _numbers(value["data_offsets"]) or len(value["data_offsets"]) != 2:
        return "must have two data_offsets"
    return None


def _numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item <= MAX_FILE_BYTES for item in value)


def _gaps(tensors: list[Tensor], start: int, size: int) -> Iterator[str]:
    """Where the bytes of the tensors are not one after the other up to the end of the file."""
    at = start
    for tensor in tensors:
        if tensor.begin != at:
            how = "overlaps the tensor before it" if tensor.begin < at else "leaves a gap before it"
            yield f"{tensor.name!r:.120} {how}"
        at = max(at, tensor.end)
    if at != size:
        yield f"the file has {size} bytes, and its header describes {counted(at, 'byte')}"
