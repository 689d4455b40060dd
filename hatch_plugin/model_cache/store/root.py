"""A cache root: opened once, locked while it is changed, with our state beside the engine's files."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Self
from zlib import crc32

from model_cache.errors import ModelCacheError, NotFoundError, UsageError
from model_cache.store import files, owner, place
from model_cache.wheel.names import RESERVED
from model_cache.wheel.verify import Deadline

LOCK = "lock"
DIRECTORIES = "directories"
STAMPS = "stamps"
KEPT = "kept"
TEMPORARY = f"{RESERVED}-tmp-"
SWAP = "-swap-"

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@cache
def _boot() -> str:
    """Tells this running system from others that share the file system (and from itself before a reboot)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")[:12]
    except OSError:
        return f"{abs(hash(os.uname().nodename)):012x}"[:12]


def temporary_name() -> str:
    """A new name for something unfinished; it tells the system and the process that made it."""
    return f"{TEMPORARY}{_boot()}-{os.getpid()}-{os.urandom(6).hex()}"


def swap_name(name: str) -> str:
    """A new name for a directory that is, or is about to be, moved out of the place `name`.

    It may hold what the engine has added there, so whoever finds it after a kill has to give that back (`swapped`).
    """
    return f"{temporary_name()}{SWAP}{crc32(name.encode()):08x}"


def swapped(temporary: str, name: str) -> bool:
    """Whether `temporary` is a swap name for the place `name`."""
    return temporary.endswith(f"{SWAP}{crc32(name.encode()):08x}")


def of_this_system(temporary: str) -> bool:
    """Whether a process of this running system has made that name."""
    return temporary.startswith(f"{TEMPORARY}{_boot()}-")


class Root:
    """A cache root, open as a descriptor. Use as a context manager."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.locked = False

    @classmethod
    def open(cls, path: str, *, create: bool = False, judge: bool = False) -> Self:
        """Open the cache root at `path`; its own parents may be links.

        judge: refuse a place in which others could change what we write (needed before the first write).
        create: judge, and make what is missing. Raises NotFoundError when it is not there, UsageError when it is no
        directory, place.UnsafePlaceError, ModelCacheError when it cannot be opened or made.
        """
        try:
            if create or judge:
                return cls(path, place.open_judged(path, create=create))
            return cls(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except FileNotFoundError:
            raise NotFoundError(f"{path}: there is no such cache root") from None
        except NotADirectoryError:
            raise UsageError(
                f"cannot open the cache root {path}: a directory must be where a file or link is"
            ) from None
        except OSError as error:
            raise files.failure("cannot open the cache root", path, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    @contextmanager
    def state_directory(self, *, create: bool = False) -> Iterator[int]:
        """Our own directory below the root. Raises FileNotFoundError when it is not there and not made."""
        with files.opened(self.descriptor, RESERVED, [] if create else None) as directory:
            yield directory

    @contextmanager
    def lock(self, deadline: Deadline) -> Iterator[None]:
        """Keep all others out, as far as the file system can. Raises DeadlineError when it takes too long.

        Where flock does not exist or does nothing, the owner's file keeps them out. Where that fails too, each rename
        stands for itself, and an existing directory is never replaced by a rename, so nobody mixes files.
        """
        while (descriptor := self._acquire()) is None:
            deadline.check()
            time.sleep(0.02)
        try:
            with owner.held(self.state_directory, temporary_name, deadline, locked=self.locked):
                self.locked = True
                yield
        finally:
            self.locked = False
            os.close(descriptor)

    def _acquire(self) -> int | None:
        """The open lock file; None when somebody else holds it, or has just deleted it with its directory."""
        with suppress(FileNotFoundError), self.state_directory(create=True) as directory:
            descriptor = _open_lock(directory)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_lock(descriptor):
                    self.locked = _excludes(directory)
                    return descriptor
            except BlockingIOError:
                pass
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    return descriptor
                os.close(descriptor)
                raise
            os.close(descriptor)
        return None

    def _is_lock(self, descriptor: int) -> bool:
        """Whether what we hold is still the file by that name: the last remove deletes the lock file."""
        with suppress(FileNotFoundError), self.state_directory() as directory:
            return os.path.samestat(os.fstat(descriptor), os.stat(LOCK, dir_fd=directory))
        return False

    def free_bytes(self) -> int:
        """Bytes that this user may still write."""
        status = os.fstatvfs(self.descriptor)
        return status.f_bavail * status.f_frsize

    def free_files(self) -> int | None:
        """Files and directories that may still be made; None where the file system does not say."""
        status = os.fstatvfs(self.descriptor)
        return status.f_favail if status.f_files else None

    def forget_stamps(self) -> None:
        """Let the plug-in look closer at its next start, on every host that shares this root."""
        with suppress(OSError, ModelCacheError), files.opened(self.descriptor, f"{RESERVED}/{STAMPS}") as directory:
            for name in os.listdir(directory):
                os.unlink(name, dir_fd=directory)

    def made_directories(self) -> list[str]:
        """Directories (relative) that deploys have made on the way to their entries."""
        try:
            with self.state_directory() as state:
                descriptor = files.open_regular(state, DIRECTORIES)
                with os.fdopen(descriptor, encoding="utf-8") as file:
                    return file.read().split("\n")[:-1]
        except (OSError, UnicodeDecodeError):
            return []

    def missing_directories(self, paths: Iterable[str]) -> list[str]:
        """Which of the directories `paths`, and of those on the way to them, do not exist."""
        ways = {
            "/".join(parts[:length]) for parts in (p.split("/") for p in paths) for length in range(1, len(parts) + 1)
        }
        return [path for path in ways if path and not self._exists(path)]

    def _exists(self, path: str) -> bool:
        try:
            os.stat(path, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def note_directories(self, paths: list[str]) -> None:
        """Replace the list of `made_directories`."""
        if sorted(set(paths)) == self.made_directories():
            return
        text = "".join(f"{path}\n" for path in sorted(set(paths)))
        with self.state_directory(create=True) as state:
            files.write_atomically(state, DIRECTORIES, text.encode(), temporary_name())

    def prune(self) -> None:
        """Remove empty directories that deploys have made; when no wheel has a state, our own directory too."""
        left = []
        for path in sorted(self.made_directories(), reverse=True):
            parent, _, name = path.rpartition("/")
            try:
                with files.opened(self.descriptor, parent) as directory:
                    os.rmdir(name, dir_fd=directory)
            except FileNotFoundError:
                pass
            except (OSError, ModelCacheError):
                left.append(path)
        self.note_directories(left)
        with self.state_directory() as state:
            names = set(os.listdir(state))
        with suppress(OSError), self.state_directory() as state:
            os.rmdir(KEPT, dir_fd=state)
            names.discard(KEPT)
        if all(name in (LOCK, DIRECTORIES, STAMPS, owner.OWNER) or name.startswith(TEMPORARY) for name in names):
            with suppress(OSError):  # somebody else is making a new lock right now
                files.remove_tree(self.descriptor, RESERVED)


def _excludes(directory: int) -> bool:
    """Whether the lock that we hold keeps anybody out: on some file systems flock succeeds and does nothing."""
    descriptor = _open_lock(directory)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _open_lock(directory: int) -> int:
    flags = os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(LOCK, flags | os.O_RDWR, files.FILE_MODE, dir_fd=directory)
    except PermissionError:
        # Another user's lock file: flock does not need to write.
        return os.open(LOCK, files.READ, dir_fd=directory)
    with suppress(PermissionError):
        os.fchmod(descriptor, files.FILE_MODE)
    return descriptor
