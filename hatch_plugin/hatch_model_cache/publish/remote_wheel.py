"""A wheel on a web server, looked into without downloading it: its directory, manifest and small files alone."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import IO, cast

from model_cache.errors import DamagedError
from model_cache.wheel.archive import WheelPayload

from .web import Web, shown

__all__ = ["MAX_BYTES", "RemoteWheel"]

MAX_BYTES = 96 * 1024 * 1024
"""What is downloaded of one wheel at most: its directory (64 MiB), its manifest (16 MiB) and the small files."""

_TAIL = 128 * 1024
_BLOCK = 128 * 1024


class RemoteWheel(WheelPayload):
    """A .whl file behind a URL. Its blobs can be listed, and are not read.

    Local headers are not compared with the directory: each would be a request. The whole file is checked, by the same
    class, when it has been downloaded; here it is only judged. Raises as WheelPayload and `web.NoPartsError`.
    """

    def __init__(self, name: str, url: str, web: Web) -> None:
        self._remote = _RangeFile(url, web)
        super().__init__(name, cast(IO[bytes], self._remote))

    @property
    def size(self) -> int:
        """Of the file, in bytes."""
        return self._remote.size

    def header_problems(self, infos: list[zipfile.ZipInfo], start: int) -> Iterator[str]:  # noqa: ARG002
        """None: they are not looked at."""
        return iter(())


class _RangeFile(io.RawIOBase):
    """A remote file that can be read from any place, in blocks that are kept."""

    def __init__(self, url: str, web: Web) -> None:
        self._url = url
        self._web = web
        self._at = 0
        self._blocks: dict[int, bytes] = {}
        self._left = MAX_BYTES
        first, self._tail, self.size = self._ask(f"-{_TAIL}", _TAIL)
        if first + len(self._tail) != self.size:
            raise DamagedError(f"{shown(url)}: the server does not send the end of the file")

    def _ask(self, wanted: str, limit: int) -> tuple[int, bytes, int]:
        self._left -= limit
        if self._left < 0:
            raise DamagedError(f"{shown(self._url)}: more than {MAX_BYTES} bytes are needed to look into it")
        return self._web.part(self._url, wanted, limit)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self.size if size < 0 else min(self.size, self._at + size)
        found = bytearray()
        while self._at < end:
            piece = self._piece(end)
            found += piece
            self._at += len(piece)
        return bytes(found)

    def _piece(self, end: int) -> bytes:
        """What is known from here on, up to `end`: at least one byte."""
        tail_start = self.size - len(self._tail)
        if self._at >= tail_start:
            return self._tail[self._at - tail_start : end - tail_start]
        number, offset = divmod(self._at, _BLOCK)
        if number not in self._blocks:
            first, last = number * _BLOCK, min((number + 1) * _BLOCK, self.size) - 1
            start, block, size = self._ask(f"{first}-{last}", _BLOCK)
            if (start, len(block), size) != (first, last - first + 1, self.size):
                raise DamagedError(f"{shown(self._url)}: was replaced while it was read")
            self._blocks[number] = block
        return self._blocks[number][offset : offset + end - self._at]
