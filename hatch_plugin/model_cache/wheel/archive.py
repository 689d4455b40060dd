"""A .whl file as a payload: a zip reader that accepts only what every zip reader understands alike.

zipfile reads the central directory alone. Installers may read the local headers, so an archive in which the
two disagree, that hides bytes between members, before the first or after the last, or that names a file
twice, shows different content to different programs; each of these is refused.
"""

from __future__ import annotations

import base64
import csv
import io
import os
import re
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from typing import IO, cast

from model_cache.errors import DamagedError, ModelCacheError
from model_cache.wheel.names import PREFIX, normalize, printable
from model_cache.wheel.payload import MAX_MEMBERS, MAX_METADATA_BYTES, Payload, name_problems

_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_LOCAL = struct.Struct("<4s5H3L2H")
_MAX_DIRECTORY_BYTES = 64 * 1024 * 1024
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    struct.error,
)
_UTF8 = 0x800
_DESCRIPTOR = 0x8
_ENCRYPTED = 0x2041  # bits 0, 6 and 13: the three ways of encrypting something
_FILE_NAME = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)(-[0-9][^-]*)?-[^-]+-[^-]+-[^-]+(-sm[0-9]+)?\.whl")
"""With the label of a wheel variant (PEP 825, a draft) at its end."""


class WheelPayload(Payload):
    """A .whl file. Its structure is checked on opening; raises DamagedError with all structural problems."""

    def __init__(self, path: str, file: IO[bytes] | None = None) -> None:
        """file: the wheel's bytes, which can be read from any place, instead of those at `path`; closed with this."""
        file_name = PurePath(path).name
        self.label = printable(file_name)
        match = _FILE_NAME.fullmatch(file_name)
        self.name = normalize(match["name"]) if match else ""
        self.version = match["version"] if match else ""
        if not self.name.startswith(PREFIX):
            raise DamagedError(f"{self.label}: is not the file name of a model cache wheel")
        try:
            self._file = file or open(path, "rb")  # noqa: SIM115
        except OSError as error:
            raise ModelCacheError(f"{path}: cannot be read: {error.strerror}") from None
        try:
            self._members = self._read_structure()
        except _BROKEN as error:
            self.close()
            raise DamagedError(f"{self.label}: is not a valid zip archive: {error}") from None
        except OSError as error:
            self.close()
            raise ModelCacheError(f"{path}: cannot be read: {error.strerror}") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def files(self) -> dict[str, int]:
        prefix = f"{self.package}/"
        return {
            name.removeprefix(prefix): info.file_size for name, info in self._members.items() if name.startswith(prefix)
        }

    def open(self, path: str) -> IO[bytes]:
        return self._open(f"{self.package}/{path}")

    def _open(self, path: str) -> IO[bytes]:
        info = self._members.get(path)
        if info is None:
            raise DamagedError(f"{self.label}: {printable(path)} is missing")
        try:
            member = _Member(self._archive.open(info), f"{self.label}: {printable(path)}")
            return cast(IO[bytes], member)
        except _BROKEN as error:
            raise DamagedError(f"{self.label}: {printable(path)} cannot be read: {error}") from None

    def metadata(self, name: str) -> bytes:
        with self._open(f"{self._dist_info}/{name}") as file:
            return self._bounded(file, name, MAX_METADATA_BYTES)

    def dist_info_files(self) -> list[str]:
        prefix = f"{self._dist_info}/"
        return sorted(name.removeprefix(prefix) for name in self._members if name.startswith(prefix))

    def digests(self) -> dict[str, str]:
        """What RECORD claims. Raises DamagedError when RECORD does not list exactly the archive's members."""
        problems: list[str] = []
        found: dict[str, str] = {}
        record = f"{self._dist_info}/RECORD"
        try:
            with self._open(record) as file:
                text = self._bounded(file, "RECORD", _MAX_DIRECTORY_BYTES).decode("utf-8")
            rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
        except (csv.Error, UnicodeDecodeError) as error:
            raise DamagedError(f"{self.label}: RECORD is not valid: {error}") from None
        names = [row[0] for row in rows]
        if len(set(names)) != len(names):
            problems.append("it lists a file twice")
        problems += [f"it does not list {printable(n)}" for n in sorted(self._members.keys() - set(names))]
        problems += [f"it lists {printable(n)}, which is missing" for n in sorted(set(names) - self._members.keys())]
        for row in rows:
            if row[0] == record:
                continue
            algorithm, _, value = row[1].partition("=") if len(row) == 3 else ("", "", "")
            digest = _digest(value) if algorithm == "sha256" else ""
            if len(digest) != 64:
                problems.append(f"it has no sha256 for {printable(row[0])}")
            found[row[0]] = digest
        if problems:
            raise DamagedError(f"{self.label}: RECORD does not agree with the archive", problems)
        return found

    def _read_structure(self) -> dict[str, zipfile.ZipInfo]:
        start = self._check_end()
        self._archive = zipfile.ZipFile(self._file)
        infos = self._archive.infolist()
        if len(infos) > MAX_MEMBERS:
            raise DamagedError(f"{self.label}: holds more than {MAX_MEMBERS} files")
        problems = list(self._member_problems(infos))
        if not problems:
            problems = list(self.header_problems(infos, start))
        if problems:
            raise DamagedError(f"{self.label}: is not an acceptable wheel", problems[:50])
        return {info.filename: info for info in infos}

    def _check_end(self) -> int:
        """Check the records at the archive's end; return where the central directory starts."""
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, size - _END.size))
        tail = self._file.read()
        if len(tail) != _END.size or tail[:4] != b"PK\x05\x06":
            raise DamagedError(f"{self.label}: is no zip archive, is cut short, or has trailing data or a comment")
        _, disk, first_disk, here, total, length, start, _ = _END.unpack(tail)
        end = size - _END.size
        if 0xFFFFFFFF in (length, start) or total == 0xFFFF:
            disk, first_disk, here, total, length, start, end = self._check_end64(end)
        if disk or first_disk or here != total:
            raise DamagedError(f"{self.label}: is one part of a split archive")
        if length > _MAX_DIRECTORY_BYTES or total > MAX_MEMBERS:
            raise DamagedError(f"{self.label}: holds more than {MAX_MEMBERS} files")
        if start + length != end:
            raise DamagedError(f"{self.label}: its directory does not end where the archive's end record starts")
        return int(start)

    def _check_end64(self, end: int) -> tuple[int, ...]:
        record = struct.Struct("<4sQ2H2L4Q")
        at = end - _END64_LOCATOR.size
        self._file.seek(max(0, at - record.size))
        data = self._file.read(record.size + _END64_LOCATOR.size)
        if len(data) != record.size + _END64_LOCATOR.size:
            raise DamagedError(f"{self.label}: is cut short")
        signature, first, offset, disks = _END64_LOCATOR.unpack(data[record.size :])
        if signature != b"PK\x06\x07" or first or disks > 1 or offset != at - record.size or data[:4] != b"PK\x06\x06":
            raise DamagedError(f"{self.label}: its zip64 end record is not where it must be")
        _, _, _, _, disk, first_disk, here, total, length, start = record.unpack(data[: record.size])
        return disk, first_disk, here, total, length, start, offset

    def _member_problems(self, infos: list[zipfile.ZipInfo]) -> Iterator[str]:
        # orig_filename: zipfile cuts `filename` at a NUL.
        names = [info.orig_filename for info in infos]
        yield from name_problems(names)
        yield from (f"name {name!r} comes twice" for name, count in sorted(Counter(names).items()) if count > 1)
        folders = sorted({name.partition("/")[0] for name in names})
        dist_infos = [folder for folder in folders if folder.endswith(".dist-info")]
        expected = f"{self.package}-{self.version}.dist-info"
        self._dist_info = dist_infos[0] if dist_infos else expected
        if len(dist_infos) != 1 or not _same_dist_info(dist_infos[0], expected):
            found = ", ".join(map(printable, dist_infos)) or "none"
            yield f"it must hold one dist-info directory, {expected}, not {found}"
        yield from (
            f"{printable(name)} lies outside {self.package}/ and the dist-info directory"
            for name in names
            if name.partition("/")[0] not in (self.package, self._dist_info)
        )
        for info in infos:
            yield from _attribute_problems(info)

    def header_problems(self, infos: list[zipfile.ZipInfo], start: int) -> Iterator[str]:
        """Local headers that differ from the central directory, and bytes that belong to no member."""
        position = 0
        for info in sorted(infos, key=lambda info: info.header_offset):
            shown = printable(info.filename)
            if info.header_offset != position:
                yield f"{shown} does not start where the member before it ends"
                return
            self._file.seek(position)
            header = self._file.read(_LOCAL.size)
            if len(header) != _LOCAL.size or header[:4] != b"PK\x03\x04":
                yield f"{shown} has no local header"
                return
            _, _, flags, method, _, _, crc, packed, size, name_length, extra_length = _LOCAL.unpack(header)
            name = self._file.read(name_length)
            extra = self._file.read(extra_length)
            if 0xFFFFFFFF in (packed, size):
                size, packed = _sizes64(extra, size, packed)
            raw = info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437", "replace")
            here = (name, flags, method, crc, packed, size)
            if here != (
                raw,
                info.flag_bits,
                info.compress_type,
                info.CRC,
                info.compress_size,
                info.file_size,
            ):
                yield f"{shown} has a local header that disagrees with the central directory"
            position += _LOCAL.size + name_length + extra_length + info.compress_size
        if position != start:
            yield "there is data between the last member and the central directory"


def _same_dist_info(folder: str, expected: str) -> bool:
    """Compare two `<name>-<version>.dist-info`, the names normalised: some builders keep a name's dots."""
    name, _, rest = folder.partition("-")
    expected_name, _, expected_rest = expected.partition("-")
    return normalize(name) == normalize(expected_name) and rest == expected_rest


def _attribute_problems(info: zipfile.ZipInfo) -> Iterator[str]:
    shown = printable(info.orig_filename)
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        yield f"{shown} is a link or another special file"
    if info.flag_bits & _ENCRYPTED:
        yield f"{shown} is encrypted"
    if info.flag_bits & _DESCRIPTOR:
        yield f"{shown} has its sizes after its data (a data descriptor), so its header cannot be checked"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        yield f"{shown} is packed with method {info.compress_type}; only stored and deflate are allowed"
    elif info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        yield f"{shown} is stored with two sizes"


def _sizes64(extra: bytes, size: int, packed: int) -> tuple[int, int]:
    """The sizes in a local header's zip64 field, (unpacked, packed)."""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<HH", extra)
        if kind == 1:
            values = iter(struct.unpack_from(f"<{length // 8}Q", extra, 4))
            size = next(values, -1) if size == 0xFFFFFFFF else size
            packed = next(values, -1) if packed == 0xFFFFFFFF else packed
            return size, packed
        extra = extra[4 + length :]
    return -1, -1


def _digest(value: str) -> str:
    try:
        return base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True).hex()
    except ValueError:
        return ""


class _Member(io.RawIOBase):
    """A member being read: whatever zipfile raises for hostile bytes becomes a DamagedError."""

    def __init__(self, inner: IO[bytes], label: str) -> None:
        self._inner = inner
        self._label = label

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            return self._inner.read(size)
        except _BROKEN as error:
            raise DamagedError(f"{self._label} cannot be read: {error}") from None

    def close(self) -> None:
        self._inner.close()
        super().close()
