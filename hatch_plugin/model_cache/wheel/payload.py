"""Where a wheel's bytes come from: an installed distribution or a .whl file, behind one interface.

Nothing is imported, unpickled or followed: names are checked first, and files are opened by descriptor,
directory by directory, without following links.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Self

from model_cache.errors import DamagedError, ModelCacheError
from model_cache.wheel.discovery import Installed
from model_cache.wheel.names import data_package, folded, normalize, printable, unsafe_path

MAX_MEMBERS = 200_000
MAX_METADATA_BYTES = 1024 * 1024
GROUP = "model_cache"


class Payload(ABC):
    """A wheel to read from. label: how messages name it; name: distribution name in PEP 503 form."""

    label: str
    name: str
    version: str
    partial = False
    """Whether listed blobs may be missing: what is kept of a version is what this host had deployed of it."""
    direct = False
    """Whether it was laid out for one deploy, and is no wheel that anybody has installed."""

    @property
    def package(self) -> str:
        """Name of the directory that holds manifest.json and the blobs."""
        return data_package(self.name)

    @abstractmethod
    def files(self) -> dict[str, int]:
        """Path relative to the data package → size in bytes, of every file in there.

        Raises DamagedError with every name or member that may not be there (links, bad names, duplicates …).
        """

    @abstractmethod
    def open(self, path: str) -> IO[bytes]:
        """Open a file of the data package for reading. Raises DamagedError if it is a link or not there."""

    @abstractmethod
    def metadata(self, name: str) -> bytes:
        """The bytes of dist-info file `name` (at most 1 MiB). Raises DamagedError if it is missing."""

    def dist_info_files(self) -> list[str] | None:
        """Names in the dist-info directory, sorted; None where an installer has added its own."""
        return None

    def digests(self) -> dict[str, str] | None:
        """Path in the wheel → sha256 that the wheel's RECORD claims; None when it has no RECORD of its own.

        Installers rewrite RECORD, so only an archive has one.
        """
        return None

    def read(self, path: str, limit: int) -> bytes:
        """All bytes of a file of the data package. Raises DamagedError when there are more than `limit`."""
        with self.open(path) as file:
            return self._bounded(file, path, limit)

    def _bounded(self, file: IO[bytes], path: str, limit: int) -> bytes:
        # In pieces: reading `limit` bytes at once would allocate them at once.
        data = bytearray()
        while len(data) <= limit and (piece := file.read(min(limit + 1 - len(data), 256 * 1024))):
            data += piece
        if len(data) > limit:
            raise DamagedError(f"{self.label}: {path} is larger than {limit} bytes")
        return bytes(data)

    @abstractmethod
    def close(self) -> None:
        """Release what is open. The payload cannot be used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def name_problems(paths: list[str]) -> list[str]:
    """What is wrong with a list of relative paths that are to be files side by side."""
    problems = []
    seen: dict[str, str] = {}
    for path in paths:
        if reason := unsafe_path(path):
            problems.append(f"name {printable(repr(path)[:120])} {reason}")
        elif (other := seen.setdefault(folded(path), path)) != path:
            problems.append(f"names {other!r} and {path!r} are one when letter case is ignored")
    return problems


class InstalledPayload(Payload):
    """An installed distribution."""

    def __init__(self, installed: Installed) -> None:
        self.installed = installed
        self.name = installed.name
        self.version = installed.version
        self.label = f"{installed.name} {installed.version}"
        self._site = _open_directory(installed.site, self.label, follow=True)

    def close(self) -> None:
        if self._site >= 0:
            os.close(self._site)
            self._site = -1

    def files(self) -> dict[str, int]:
        found: dict[str, int] = {}
        problems: list[str] = []
        with self._directory(self.package) as top:
            self._walk(top, "", found, problems)
        problems += name_problems(list(found))
        if problems:
            raise DamagedError(f"{self.label}: the data package {self.package} is not as it was built", problems)
        return found

    def _walk(self, directory: int, prefix: str, found: dict[str, int], problems: list[str]) -> None:
        for name in sorted(os.listdir(directory)):
            path = prefix + name
            shown = printable(path)
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                found[path] = status.st_size
            elif not stat.S_ISDIR(status.st_mode):
                problems.append(f"{shown} is {_kind(status.st_mode)}")
            elif path.count("/") > 8:
                problems.append(f"{shown} is nested too deep")
            else:
                with _opened(name, directory) as inner:
                    self._walk(inner, f"{path}/", found, problems)
            if len(found) > MAX_MEMBERS:
                raise DamagedError(f"{self.label}: the data package holds more than {MAX_MEMBERS} files")

    def open(self, path: str) -> IO[bytes]:
        return self._open(f"{self.package}/{path}")

    def metadata(self, name: str) -> bytes:
        with self._open(f"{self.installed.dist_info}/{name}") as file:
            return self._bounded(file, name, MAX_METADATA_BYTES)

    def _open(self, path: str) -> IO[bytes]:
        folder, _, name = path.rpartition("/")
        with self._directory(folder) as directory:
            try:
                # O_NONBLOCK: opening a FIFO must not wait for a writer.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
                descriptor = os.open(name, flags, dir_fd=directory)
            except OSError as error:
                raise _cannot_open(self.label, path, error) from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise DamagedError(f"{self.label}: {printable(path)} is not a regular file")
        return os.fdopen(descriptor, "rb", buffering=0)

    @contextmanager
    def _directory(self, path: str) -> Iterator[int]:
        directory = os.dup(self._site)
        try:
            for part in path.split("/"):
                try:
                    inner = os.open(part, _DIRECTORY, dir_fd=directory)
                except OSError as error:
                    raise _cannot_open(self.label, path, error) from None
                os.close(directory)
                directory = inner
            yield directory
        finally:
            os.close(directory)


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def _opened(name: str, directory: int) -> Iterator[int]:
    descriptor = os.open(name, _DIRECTORY, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_directory(path: str, label: str, *, follow: bool) -> int:
    try:
        return os.open(path, _DIRECTORY & ~os.O_NOFOLLOW if follow else _DIRECTORY)
    except OSError as error:
        raise _cannot_open(label, path, error) from None


def _cannot_open(label: str, path: str, error: OSError) -> ModelCacheError:
    import errno

    shown = printable(path)
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return DamagedError(f"{label}: {shown} is a link or leads through one; install the wheel with real files")
    if error.errno == errno.ENOENT:
        return DamagedError(f"{label}: {shown} is missing")
    return ModelCacheError(f"{label}: cannot read {shown}: {error.strerror}")


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a link"
    return "not a regular file"


def entry_point(payload: Payload) -> str:
    """The data package that entry_points.txt names in group `model_cache` for this distribution.

    Raises DamagedError when the group does not hold exactly this one entry.
    """
    from configparser import ConfigParser, Error

    parser = ConfigParser(delimiters=("=",), interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(payload.metadata("entry_points.txt").decode("utf-8"))
        entries = dict(parser[GROUP]) if parser.has_section(GROUP) else {}
    except (Error, UnicodeDecodeError) as error:
        raise DamagedError(f"{payload.label}: entry_points.txt is not valid: {str(error).splitlines()[0]}") from None
    if [normalize(name) for name in entries] != [payload.name]:
        raise DamagedError(f"{payload.label}: entry point group {GROUP!r} must name {payload.name} alone")
    return next(iter(entries.values()))
