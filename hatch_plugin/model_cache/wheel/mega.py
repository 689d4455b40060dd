"""torch's "mega" cache, taken apart: what ``torch.compiler.save_cache_artifacts`` returns, read without torch.

The format (torch 2.13.0, torch/utils/_appending_byte_serializer.py and torch/compiler/_cache.py): a CRC-32, the number
of the format, then groups. A group is its kind, how many parts it has, and each part's key and bytes. Numbers have
eight bytes, big-endian; bytes come after their number; text is base64 of UTF-8.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator
from typing import NamedTuple

COMPONENT = "torch-mega"
"""Component of the entries that hold one."""

PIECE = "vllm-piecewise"
"""Component of the entries whose files hold one each, behind a header (`within`), or are pickles."""

INDEX = "vllm_compile_cache.py"
"""The one file of such an entry that is neither: a literal, which the engine only parses."""

HEADER = b"CacheCompiledArtifact"

VERSION = 1
MAX_PARTS = 100_000

_JSON = frozenset({"autotune"})
"""Kinds whose parts are JSON; the others are pickles."""


class Part(NamedTuple):
    """One part: "aot_autograd", "inductor", "autotune", "pgo" or "precompile", torch's key for it, its bytes."""

    kind: str
    key: str
    data: bytes

    @property
    def pickled(self) -> bool:
        """Whether torch unpickles it."""
        return self.kind not in _JSON


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 4

    def number(self) -> int:
        return int.from_bytes(self._take(8), "big")

    def content(self) -> bytes:
        return self._take(self.number())

    def text(self) -> str:
        return base64.b64decode(self.content(), validate=True).decode()

    def _take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise ValueError(f"ends at byte {len(self.data)} in the middle of a part")
        self.at += size
        return self.data[self.at - size : self.at]


def within(data: bytes) -> bytes:
    """The mega cache in an artifact of ``torch._inductor.standalone_compile`` (torch 2.14.0,
    `CacheCompiledArtifact._to_binary_bytes`): a CRC-32, `HEADER`, torch's hash of itself, the key of the graph, the
    cache. Raises ValueError, saying what is wrong, when it is none."""
    reader = _Reader(data)
    if data[:4] != zlib.crc32(memoryview(data)[4:]).to_bytes(4, "big"):
        raise ValueError("its checksum is wrong")
    if reader.content() != HEADER:
        raise ValueError(f"does not begin with {HEADER.decode()}")
    reader.content(), reader.content()
    found = reader.content()
    if reader.at != len(data):
        raise ValueError("goes on after its end")
    return found


def parts(data: bytes) -> Iterator[Part]:
    """Every part of a mega cache. Raises ValueError, saying what is wrong, when it is none."""
    reader = _Reader(data)
    if data[:4] != zlib.crc32(memoryview(data)[4:]).to_bytes(4, "big"):
        raise ValueError("its checksum is wrong")
    if (version := reader.number()) != VERSION:
        raise ValueError(f"has the format {version}, known is {VERSION}")
    count = 0
    while reader.at < len(data):
        try:
            kind = reader.text()
            for _ in range(reader.number()):
                count += 1
                if count > MAX_PARTS:
                    raise ValueError(f"has more than {MAX_PARTS} parts")
                yield Part(kind, reader.text(), reader.content())
        except (binascii.Error, UnicodeDecodeError):
            raise ValueError("holds a name that is no text") from None
