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

from model_cache import files
from model_cache.errors import ModelCacheError, NotFoundError
from model_cache.names import RESERVED
from model_cache.verify import Deadline

LOCK = "lock"
DIRECTORIES = "directories"
STAMPS = "stamps"
TEMPORARY = f"{RESERVED}-tmp-"
FOREIGN_LEFTOVER_SECONDS = 3600.0

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


class Root:
    """A cache root, open as a descriptor. Use as a context manager."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.locked = False

    @classmethod
    def open(cls, path: str, *, create: bool = False) -> Self:
        """Open the cache root at `path`; its own parents may be links. create: make what is missing.

        Raises NotFoundError when it is not there, ModelCacheError when it cannot be opened or made.
        """
        try:
            if create:
                _make_directories(Path(path))
            return cls(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except FileNotFoundError:
            raise NotFoundError(f"{path}: there is no such cache root") from None
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

        Where flock does not exist or does nothing, we go on without: each rename stands for itself, and an
        existing directory is never replaced by a rename, so two deployers cannot mix their files.
        """
        while (descriptor := self._acquire()) is None:
            deadline.check()
            time.sleep(0.02)
        try:
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
                self.locked = self._is_lock(descriptor)
                if self.locked:
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

    def clean(self, path: str) -> int:
        """Delete what dead deployers left unfinished in directory `path`; return how many such things.

        Under a lock that works, whatever this system has left there is dead. What another system that shares
        the file system has left, where locks may not reach, must be an hour old.
        """
        count = 0
        with suppress(FileNotFoundError), files.opened(self.descriptor, path) as directory:
            for name in sorted(os.listdir(directory)):
                if name.startswith(TEMPORARY) and self._dead(directory, name):
                    with suppress(FileNotFoundError):
                        files.remove_tree(directory, name)
                        count += 1
        return count

    def _dead(self, directory: int, name: str) -> bool:
        if self.locked and name.startswith(f"{TEMPORARY}{_boot()}-"):
            return True
        with suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            return time.time() - status.st_mtime > FOREIGN_LEFTOVER_SECONDS
        return False

    def free_bytes(self) -> int:
        """Bytes that this user may still write."""
        status = os.fstatvfs(self.descriptor)
        return status.f_bavail * status.f_frsize

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
        if all(name in (LOCK, DIRECTORIES, STAMPS) or name.startswith(TEMPORARY) for name in names):
            with suppress(OSError):  # somebody else is making a new lock right now
                files.remove_tree(self.descriptor, RESERVED)


def _make_directories(path: Path) -> None:
    missing = [parent for parent in (path, *path.parents) if not parent.exists()]
    for directory in reversed(missing):
        with suppress(FileExistsError):
            directory.mkdir()
            directory.chmod(files.DIRECTORY_MODE)


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
