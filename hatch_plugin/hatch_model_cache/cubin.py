"""What a cubin (an NVIDIA GPU ELF file) says of itself: architecture, registers, spills. Pure Python, no CUDA tools.

Two ELF layouts exist. ABI version 7 (assemblers up to CUDA 12, below sm_100) keeps the SM number in the low byte of
``e_flags`` and the architecture-specific suffix ``a`` in bit 0x800. ABI version 8 (CUDA 13, and CUDA 12 from sm_100 on)
keeps the SM number in bits 8-23; the suffix is EICOMPAT_ATTR_CUDA_ACCELERATOR_TARGET in section ``.nv.compat`` if that
attribute is there (CUDA 13), else bit 0x8 (CUDA 12). Checked against cuobjdump with the assemblers of CUDA 12.9, 13.0,
13.3, 13.4 and 13.5; tests/data/cubins holds the cubins.

Damaged bytes raise `CubinError` and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

ELF_MAGIC = b"\x7fELF\x02\x01"
EM_CUDA = 190
_HEADER_SIZE = 64
_SECTION_SIZE = 64
_SYMBOL_SIZE = 24
_SYMTAB = 2
_NOBITS = 8  # takes no room in the file
_EIATTR_REGCOUNT = 0x2F
_EIATTR_FRAME_SIZE = 0x11
_EICOMPAT_ACCELERATOR_TARGET = 0x9
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

    def content(self, data: bytes) -> bytes:
        return b"" if self.kind == _NOBITS else _slice(data, self.offset, self.size)


def architecture(data: bytes) -> str:
    """The SM architecture a cubin was assembled for, for example ``"sm_90a"``.

    A family-specific cubin (``sm_100f``) is ``"sm_100"``, as it is for cuobjdump: nothing outside the note with the
    assembler's command line tells them apart.

    Raises:
        CubinError: if ``data`` is no cubin.
    """
    _check(data)
    flags = _unpack("<I", data, 0x30)[0]
    if data[8] < _ABI_V8:
        return f"sm_{flags & 0xFF}{'a' if flags & 0x800 else ''}"
    accelerated = bool(flags & 0x8)
    for section in _sections(data):
        if section.name == ".nv.compat":
            for attribute, value in _attributes(section.content(data)):
                if attribute == _EICOMPAT_ACCELERATOR_TARGET:
                    accelerated = value[0] == 1
    return f"sm_{flags >> 8 & 0xFFFF}{'a' if accelerated else ''}"


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
        for attribute, value in _attributes(section.content(data)):
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


def kernel_name(data: bytes) -> str:
    """The name of the kernel in a cubin, of the first if there are several; Triton's hold one each.

    Raises:
        CubinError: if ``data`` is no cubin or holds no kernel.
    """
    names = (name.removeprefix(".text.") for name in sections(data) if name.startswith(".text."))
    name = next(names, None)
    if name is None:
        raise CubinError("no kernel in it")
    return name


def sections(data: bytes) -> dict[str, bytes]:
    """The sections of a cubin by name (``.text.<kernel>`` is a kernel's machine code); of equal names, the last.

    Raises:
        CubinError: if ``data`` is no cubin.
    """
    _check(data)
    return {section.name: section.content(data) for section in _sections(data)}


def embedded(data: bytes) -> Iterator[bytes]:
    """Every cubin that lies uncompressed inside ``data``, for example inside a pickled Triton bundle.

    The blob is only scanned, never unpickled. What starts like a cubin and is cut off or damaged is passed over.
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
    if _unpack("<H", data, 0x12)[0] != EM_CUDA:
        raise CubinError("an ELF file, but not for an NVIDIA GPU")


def _elf_size(data: bytes, at: int) -> int:
    """Length of the CUDA ELF that starts at ``at``, or 0 if none does. Header tables may lie before the sections."""
    room = len(data) - at
    if room < _HEADER_SIZE or _unpack("<H", data, at + 0x12)[0] != EM_CUDA:
        return 0
    program, table = _unpack("<QQ", data, at + 0x20)
    program_entry, program_count, entry, count = _unpack("<HHHH", data, at + 0x36)
    end: int = max(_HEADER_SIZE, table + entry * count, program + program_entry * program_count)
    if entry != _SECTION_SIZE or not count or end > room:
        return 0
    for i in range(count):
        kind, offset, size = _unpack("<4xI16xQQ", data, at + table + i * entry)
        if kind != _NOBITS:
            end = max(end, offset + size)
    return end if end <= room else 0


def _sections(data: bytes) -> list[_Section]:
    table = _unpack("<Q", data, 0x28)[0]
    entry, count, names_index = _unpack("<HHH", data, 0x3A)
    if entry != _SECTION_SIZE or names_index >= count:
        raise CubinError("damaged section table")
    raw = [_unpack("<II16xQQI", data, table + i * entry) for i in range(count)]
    names = raw[names_index][2]
    return [_Section(_string(data, names + name), kind, offset, size, link) for name, kind, offset, size, link in raw]


def _symbols(data: bytes, sections: list[_Section]) -> dict[int, str]:
    for section in sections:
        if section.kind == _SYMTAB:
            if section.link >= len(sections):
                raise CubinError("damaged symbol table")
            table, strings = section.content(data), sections[section.link].content(data)
            return {
                i: _string(strings, _unpack("<I", table, _SYMBOL_SIZE * i)[0])
                for i in range(len(table) // _SYMBOL_SIZE)
            }
    return {}


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The (attribute, value) pairs of an attribute section; format 4 carries a sized value, the others 16 bits."""
    at = 0
    while at + 4 <= len(data):
        form, attribute, size = _unpack("<BBH", data, at)
        at += 4
        if form == 4:
            yield attribute, _slice(data, at, size)
            at += size
        else:
            yield attribute, data[at - 2 : at]


def _unpack(form: str, data: bytes, at: int) -> tuple[int, ...]:
    if at + struct.calcsize(form) > len(data):
        raise CubinError("truncated")
    return struct.unpack_from(form, data, at)


def _slice(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise CubinError("truncated")
    return data[at : at + size]


def _string(data: bytes, at: int) -> str:
    end = data.find(b"\0", at) if at < len(data) else -1
    if end < 0:
        raise CubinError("damaged string table")
    return data[at:end].decode("utf-8", "replace")
