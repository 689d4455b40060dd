"""What a cubin (an NVIDIA GPU ELF file) says of itself: architecture, registers, spills. Pure Python, no CUDA tools.

Two ELF layouts exist. ABI version 7 (up to sm_90) keeps the SM number in the low byte of ``e_flags`` and the
architecture-specific suffix ``a`` in bit 0x800; ABI version 8 (from sm_100) keeps the SM number in bits 8-15 and the
suffix in bit 0x8. Checked against cuobjdump of triton 3.8.0 for sm_75, 80, 89, 90a, 100a, 103a and 120a.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

ELF_MAGIC = b"\x7fELF\x02\x01"
EM_CUDA = 190
_HEADER_SIZE = 64
_SYMTAB = 2
_EIATTR_REGCOUNT = 0x2F
_EIATTR_FRAME_SIZE = 0x11
_ABI_V8 = 8


class CubinError(ValueError):
    """The bytes are not a readable cubin."""


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int


def architecture(data: bytes) -> str:
    """The SM architecture a cubin was assembled for, for example ``"sm_90a"``.

    Raises:
        CubinError: if ``data`` is no cubin.
    """
    _check(data)
    flags = struct.unpack_from("<I", data, 0x30)[0]
    if data[8] >= _ABI_V8:
        return f"sm_{flags >> 8 & 0xFF}{'a' if flags & 0x8 else ''}"
    return f"sm_{flags & 0xFF}{'a' if flags & 0x800 else ''}"


def resources(data: bytes, kernel: str) -> tuple[int, int]:
    """Registers per thread and spilled 32-bit words of one kernel, as the driver would report them.

    Inductor picks configurations by the register count, so a wrong answer here makes the serving host compile again.

    Args:
        data: the cubin's bytes.
        kernel: the kernel's name (its ``.text.<kernel>`` section).

    Raises:
        CubinError: if ``data`` is no cubin or holds no such kernel.
    """
    _check(data)
    sections = _sections(data)
    symbols = _symbols(data, sections)
    registers = frame = None
    for section in sections:
        if section.name != ".nv.info":
            continue
        for attribute, value in _attributes(data, section):
            if attribute in (_EIATTR_REGCOUNT, _EIATTR_FRAME_SIZE) and len(value) == 8:
                symbol, count = struct.unpack("<II", value)
                if symbols.get(symbol) == kernel:
                    if attribute == _EIATTR_REGCOUNT:
                        registers = count
                    else:
                        frame = count
    if registers is None:
        raise CubinError(f"no register count for kernel {kernel!r}")
    return registers, (frame or 0) // 4


def embedded(data: bytes) -> Iterator[bytes]:
    """Every cubin that lies uncompressed inside ``data``, for example inside a pickled Triton bundle.

    The blob is only scanned, never unpickled.
    """
    at = data.find(ELF_MAGIC)
    while at >= 0:
        size = _elf_size(data, at)
        if size:
            yield data[at : at + size]
        at = data.find(ELF_MAGIC, at + (size or 1))


def _check(data: bytes) -> None:
    if len(data) < _HEADER_SIZE or not data.startswith(ELF_MAGIC):
        raise CubinError("not a 64-bit little-endian ELF file")
    if struct.unpack_from("<H", data, 0x12)[0] != EM_CUDA:
        raise CubinError("an ELF file, but not for an NVIDIA GPU")


def _elf_size(data: bytes, at: int) -> int:
    """Length of the CUDA ELF that starts at ``at``, or 0 if none does. Header tables may lie before the sections."""
    if at + _HEADER_SIZE > len(data) or struct.unpack_from("<H", data, at + 0x12)[0] != EM_CUDA:
        return 0
    program, table = struct.unpack_from("<QQ", data, at + 0x20)
    program_entry, program_count, entry, count = struct.unpack_from("<HHHH", data, at + 0x36)
    end = max(table + entry * count, program + program_entry * program_count)
    if entry != 64 or at + end > len(data):
        return 0
    for i in range(count):
        kind, offset, size = struct.unpack_from("<4xI16xQQ", data, at + table + i * entry)
        if kind != 8:  # SHT_NOBITS takes no room in the file
            end = max(end, offset + size)
    return int(end) if at + end <= len(data) else 0


def _sections(data: bytes) -> list[_Section]:
    table = struct.unpack_from("<Q", data, 0x28)[0]
    entry, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    try:
        raw = [struct.unpack_from("<II16xQQI", data, table + i * entry) for i in range(count)]
        names = raw[names_index][2]
        return [_Section(_string(data, names + n), kind, offset, size, link) for n, kind, offset, size, link in raw]
    except (struct.error, IndexError, ValueError) as error:
        raise CubinError(f"damaged section table: {error}") from error


def _symbols(data: bytes, sections: list[_Section]) -> dict[int, str]:
    for section in sections:
        if section.kind == _SYMTAB:
            strings = sections[section.link].offset
            return {
                i: _string(data, strings + struct.unpack_from("<I", data, section.offset + 24 * i)[0])
                for i in range(section.size // 24)
            }
    return {}


def _attributes(data: bytes, section: _Section) -> Iterator[tuple[int, bytes]]:
    """The (attribute, value) pairs of a ``.nv.info`` section; format 4 carries a sized value, the others 16 bits."""
    at, end = section.offset, section.offset + section.size
    while at + 4 <= end:
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == 4:
            yield attribute, data[at : at + size]
            at += size


def _string(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode("utf-8", "replace")
