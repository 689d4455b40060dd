"""Who is changing a cache root, as a file: for file systems on which flock does nothing or does not exist.

A file that only one can make says who it was. Where flock works, whoever holds the lock is alone on this system, and
nobody of it is waited for. Else what a killed process has left is recognised by its process id, and where that says
nothing (another host, another container), by its age.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path

from model_cache.errors import ModelCacheError
from model_cache.store import files
from model_cache.wheel.verify import Deadline

OWNER = "owner"
STALE_SECONDS = 600.0
"""How long somebody whose process cannot be looked up is waited for."""

RELEASE_ATTEMPTS = 5
MAX_BYTES = 512

Opener = Callable[..., AbstractContextManager[int]]
"""Opens the directory that holds the file; with `create=True` it is made when it is missing."""


@contextmanager
def held(opened: Opener, temporary: Callable[[], str], deadline: Deadline, *, locked: bool) -> Iterator[None]:
    """Be the one owner. temporary: makes names; locked: whether a lock keeps everybody else of this system out.

    Raises DeadlineError when it takes too long, OSError.
    """
    mine = identity()
    try:
        while not _claim(opened, temporary, mine, locked=locked):
            deadline.check()
            time.sleep(0.02)
    except OSError as error:
        if error.errno not in files.FULL:  # whoever wants to remove something must be able to
            raise
    try:
        yield
    finally:
        _release(opened, mine)


def _release(opened: Opener, mine: str) -> None:
    for _ in range(RELEASE_ATTEMPTS):  # this process may live for days, and everybody would wait for it
        with suppress(OSError, ModelCacheError), opened() as directory:
            if _read(directory) == mine:
                os.unlink(OWNER, dir_fd=directory)
            return


def identity() -> str:
    """This process: system, process id's namespace, process id, and a number of its own."""
    return f"{_system()} {os.getpid()} {os.urandom(6).hex()}"


@cache
def _system() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{os.uname().nodename} unknown"


def _claim(opened: Opener, temporary: Callable[[], str], mine: str, *, locked: bool) -> bool:
    name = temporary()
    with suppress(FileNotFoundError), opened(create=True) as directory:
        descriptor = os.open(name, files.CREATE, files.FILE_MODE, dir_fd=directory)
        try:
            os.write(descriptor, mine.encode())
            if _make(directory, name):
                return True
            found = _read(directory)
            if found is not None and _is_stale(directory, found, locked=locked):
                _evict(directory, temporary(), found)
        finally:
            os.close(descriptor)
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
    return False


def _make(directory: int, name: str) -> bool:
    try:
        os.link(name, OWNER, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in files.NO_LINKS:
            raise
        # Where there are no hard links a reader may see it empty, and takes that for somebody at work.
        try:
            descriptor = os.open(OWNER, files.CREATE, files.FILE_MODE, dir_fd=directory)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "wb") as file, os.fdopen(files.open_regular(directory, name), "rb") as source:
            file.write(source.read())
    return True


def _read(directory: int) -> str | None:
    try:
        with os.fdopen(files.open_regular(directory, OWNER), "rb") as file:
            return file.read(MAX_BYTES).decode("ascii", "replace")
    except FileNotFoundError:
        return None


def _is_stale(directory: int, found: str, *, locked: bool) -> bool:
    boot, _, rest = found.partition(" ")
    if locked and boot == _system().partition(" ")[0]:
        return True
    namespace, _, process = rest.rpartition(" ")[0].rpartition(" ")
    if f"{boot} {namespace}" == _system() and process.isdigit():
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            pass
    try:
        age = time.time() - os.stat(OWNER, dir_fd=directory, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return False
    return age > STALE_SECONDS


def _evict(directory: int, aside: str, found: str) -> None:
    """Take a stale owner away, but not one who has come in its place a moment ago."""
    with suppress(FileNotFoundError):
        os.rename(OWNER, aside, src_dir_fd=directory, dst_dir_fd=directory)
        try:
            with os.fdopen(files.open_regular(directory, aside), "rb") as file:
                evicted = file.read(MAX_BYTES).decode("ascii", "replace")
            if evicted != found:
                with suppress(FileExistsError):
                    os.rename(aside, OWNER, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            with suppress(OSError):
                os.unlink(aside, dir_fd=directory)
