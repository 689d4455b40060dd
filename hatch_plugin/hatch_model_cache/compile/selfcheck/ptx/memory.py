"""Global memory with guards around every buffer; shared memory that knows who has touched it since the last barrier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import FaultError
from .numbers import Array

_BASE = 0x7F00_0000_0000
_ALIGNMENT = 256
_NOBODY, _SEVERAL = -1, -2


class GlobalMemory:
    """Buffers at made-up addresses, far apart. An access that is not inside one buffer, or not aligned, is a fault."""

    def __init__(self, buffers: Sequence[Array]) -> None:
        """buffers: arrays of bytes, copied."""
        self.addresses: list[int] = []
        self._places: list[int] = []
        self._sizes = [buffer.size for buffer in buffers]
        offset = _ALIGNMENT
        for size in self._sizes:
            self._places.append(offset)
            self.addresses.append(_BASE + offset)
            offset += (size + 2 * _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        self._bytes = np.zeros(offset, np.uint8)
        self._inside = np.zeros(offset, np.int32)  # number of the buffer, counted from 1
        for number, (place, buffer) in enumerate(zip(self._places, buffers, strict=True)):
            self._bytes[place : place + buffer.size] = buffer
            self._inside[place : place + buffer.size] = number + 1

    def buffer(self, number: int) -> Array:
        """The bytes of one buffer, as they are now."""
        place = self._places[number]
        return self._bytes[place : place + self._sizes[number]].copy()

    def load(self, addresses: Array, size: int) -> Array:
        """`size` bytes from each address, as rows."""
        found: Array = self._bytes[self._indices(addresses, size)]
        return found

    def store(self, addresses: Array, values: Array) -> None:
        """Rows of bytes to each address. Threads may store to one place, if they store the same."""
        indices = self._indices(addresses, values.shape[1])
        self._bytes[indices] = values
        if not np.array_equal(self._bytes[indices], values):
            raise FaultError("threads store different values to one address")

    def _indices(self, addresses: Array, size: int) -> Array:
        if (addresses % np.uint64(size)).any():
            raise FaultError(f"misaligned access of {size} bytes")
        offsets = (addresses - np.uint64(_BASE)).astype(np.int64)
        if (offsets < 0).any() or (offsets + size > self._bytes.size).any():
            raise FaultError("access out of bounds")
        first, last = self._inside[offsets], self._inside[offsets + size - 1]
        if (first == 0).any() or (first != last).any():
            raise FaultError("access out of bounds")
        return offsets[:, None] + np.arange(size)


class SharedMemory:
    """One piece of `size` bytes for each of `blocks` blocks.

    Between two barriers a byte that one warp has written may be touched by no other warp, nor may a byte be written
    that another warp has read: on a GPU either could come first.
    """

    def __init__(self, blocks: int, size: int) -> None:
        self._size = size
        self._bytes = np.zeros(blocks * size, np.uint8)
        self._writer = np.full(blocks * size, _NOBODY)
        self._reader = np.full(blocks * size, _NOBODY)

    def barrier(self, blocks: Array) -> None:
        """All threads of `blocks` have met: what was touched before is safe."""
        if self._size:
            for touched in (self._writer, self._reader):
                touched.reshape(-1, self._size)[blocks] = _NOBODY

    def load(self, blocks: Array, warps: Array, addresses: Array, size: int) -> Array:
        """`size` bytes from each address of the thread's block, as rows. warps: numbers that no two warps share."""
        indices = self._indices(blocks, addresses, size)
        who = np.broadcast_to(warps[:, None], indices.shape)
        if ((self._writer[indices] != _NOBODY) & (self._writer[indices] != who)).any():
            raise FaultError("race in shared memory: read without a barrier after another warp's write")
        before = self._reader[indices]
        self._reader[indices] = who
        others = (self._reader[indices] != who) | ((before != _NOBODY) & (before != who))
        self._reader[indices[others]] = _SEVERAL
        found: Array = self._bytes[indices]
        return found

    def store(self, blocks: Array, warps: Array, addresses: Array, values: Array) -> None:
        """Rows of bytes to each address of the thread's block."""
        indices = self._indices(blocks, addresses, values.shape[1])
        who = np.broadcast_to(warps[:, None], indices.shape)
        for touched in (self._writer, self._reader):
            if ((touched[indices] != _NOBODY) & (touched[indices] != who)).any():
                raise FaultError("race in shared memory: write without a barrier after another warp's access")
        self._writer[indices] = who
        self._bytes[indices] = values
        if (self._writer[indices] != who).any() or not np.array_equal(self._bytes[indices], values):
            raise FaultError("race in shared memory: threads store to one address")

    def _indices(self, blocks: Array, addresses: Array, size: int) -> Array:
        if (addresses % np.uint64(size)).any():
            raise FaultError(f"misaligned access of {size} bytes to shared memory")
        if (addresses + np.uint64(size) > np.uint64(self._size)).any():
            raise FaultError("access out of bounds of shared memory")
        return (blocks * self._size + addresses.astype(np.int64))[:, None] + np.arange(size)
