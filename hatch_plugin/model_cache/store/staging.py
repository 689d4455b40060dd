"""One entry on its way into a cache root: written beside its place, moved there in one step, compared, taken away."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace as dc_replace
from functools import partial
from typing import NamedTuple

from model_cache.errors import DamagedError
from model_cache.store import files
from model_cache.store.root import Root, swap_name
from model_cache.store.state import DeployedEntry, DeployedFile
from model_cache.wheel import parallel
from model_cache.wheel.manifest import Entry, File
from model_cache.wheel.payload import Payload
from model_cache.wheel.verify import Deadline, blob_path, copy_hash, hash_file

GIVE_BACK_ATTEMPTS = 100


def stage(
    payload: Payload, entry: Entry, parent: int, name: str, deadline: Deadline, links: Mapping[str, str] | None = None
) -> None:
    """Write all files of `entry` into the new directory `name` of directory `parent`, hashing on the way.

    links: path of a file → what it shall be a link to, in an overlay.
    Raises DamagedError when the payload is not (any more) what the manifest says, OSError when writing fails.
    """
    os.close(files.make_directory(parent, name))
    with files.opened(parent, name) as directory:

        def write(file: File) -> None:
            folder, _, base = file.path.rpartition("/")
            with files.opened(directory, folder, [], durable=False) as place:
                if target := (links or {}).get(file.path):
                    os.symlink(target, base, dir_fd=place)
                else:
                    _write(payload, file, place, base, deadline)

        for _ in parallel.each(write, entry.files, sum(file.size for file in entry.files)):
            pass


def _write(payload: Payload, file: File, directory: int, name: str, deadline: Deadline) -> None:
    with payload.open(blob_path(file.sha256)) as source:
        descriptor = os.open(name, files.CREATE, files.FILE_MODE, dir_fd=directory)
        with os.fdopen(descriptor, "wb", buffering=0):
            found = copy_hash(source, lambda data: _write_all(descriptor, data), file.size, deadline)
            os.fchmod(descriptor, int(file.mode, 8))
    if found != (file.sha256, file.size):
        raise DamagedError(f"{payload.label}: {blob_path(file.sha256)} changed while it was copied")


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync(parent: int, name: str, deadline: Deadline) -> None:
    """Have what was staged under `name` on the disk. Raises OSError."""
    with files.opened(parent, name) as directory:
        for path, status in files.walk(directory):
            deadline.check()
            folder, _, base = path.rpartition("/")
            if not stat.S_ISLNK(status.st_mode):
                with files.opened(directory, folder) as place:
                    descriptor = os.open(base, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
                    try:
                        os.fsync(descriptor)
                    finally:
                        os.close(descriptor)
        os.fsync(directory)


class Comparison(NamedTuple):
    """Listed files of a directory that are not there, and those that are there with other content."""

    missing: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def wrong(self) -> tuple[str, ...]:
        return self.missing + self.changed


def compare(root: Root, directory: str, listed: Iterable[DeployedFile], deadline: Deadline) -> Comparison | None:
    """Read the listed files below `directory` and compare their content; None when there is no such directory.

    Raises LinkError when the way to the directory leads through a link.
    """
    missing: list[str] = []
    changed: list[str] = []
    try:
        with files.opened(root.descriptor, directory) as place:
            listed = tuple(listed)
            results = parallel.each(partial(_compare_one, place, deadline), listed, sum(file.size for file in listed))
            for file, same in zip(listed, results, strict=True):
                if not same:
                    (missing if same is None else changed).append(file.path)
    except FileNotFoundError:
        return None
    return Comparison(tuple(missing), tuple(changed))


def _compare_one(directory: int, deadline: Deadline, file: DeployedFile) -> bool | None:
    return _is_same(directory, file, deadline)


def _is_same(directory: int, file: DeployedFile, deadline: Deadline) -> bool | None:
    """Whether a file has the noted content; None when it is not there."""
    folder, _, name = file.path.rpartition("/")
    try:
        with files.opened(directory, folder) as place:
            if file.link:
                if files.patiently(place, name, lambda: os.readlink(name, dir_fd=place)) != file.link:
                    return False
                descriptor = files.open_regular(place, file.link)
            else:
                descriptor = files.patiently(place, name, lambda: files.open_regular(place, name))
    except FileNotFoundError:
        return None
    except files.LinkError:
        return False
    except OSError as error:
        if error.errno in files.NOT_REGULAR:
            return False
        raise
    with os.fdopen(descriptor, "rb", buffering=0) as source:
        return hash_file(source, file.size, deadline) == (file.sha256, file.size)


def others(root: Root, entries: Iterable[DeployedEntry], deadline: Deadline) -> tuple[str, ...]:
    """The directories of kept entries in which somebody else's files are, or none: not what the wheel holds."""
    found = []
    for entry in entries:
        if not entry.ours:
            comparison = compare(root, entry.directory, entry.files, deadline)
            if comparison is None or comparison.wrong:
                found.append(entry.directory)
    return tuple(found)


def look_same(root: Root, entry: DeployedEntry) -> bool:
    """Whether size and mtime of every file of ours are as noted; of an entry that was kept, whether it exists."""
    try:
        if not entry.ours:
            return stat.S_ISDIR(_lstat(root, entry.directory).st_mode)
        for file in entry.files:
            status = _lstat(root, f"{entry.directory}/{file.path}")
            if (status.st_size, status.st_mtime_ns) != (file.apparent_size, file.mtime_ns):
                return False
            if file.link and os.stat(file.link).st_size != file.size:  # noqa: PTH116
                return False
    except OSError:
        return False
    return True


def _lstat(root: Root, path: str) -> os.stat_result:
    return os.stat(path, dir_fd=root.descriptor, follow_symlinks=False)


def with_times(root: Root, entry: DeployedEntry) -> DeployedEntry:
    """`entry` with the mtime that each file has now. Raises OSError."""
    read = (dc_replace(f, mtime_ns=_lstat(root, f"{entry.directory}/{f.path}").st_mtime_ns) for f in entry.files)
    return dc_replace(entry, files=tuple(read))


def place(parent: int, staged: str, name: str) -> bool:
    """Move a staged directory to its place in one step; False when something is there that is not empty."""
    try:
        os.rename(staged, name, src_dir_fd=parent, dst_dir_fd=parent)
    except (FileExistsError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return False
    os.fsync(parent)
    return True


def replace(parent: int, staged: str, name: str, wrong: tuple[str, ...], ours: set[str], *, whole: bool) -> None:
    """Put a staged directory in the place of one that is there; what the engine has added there moves along.

    wrong: the paths in it whose content has to change. One file is renamed over alone, so that a running engine
    sees its other files untouched; more are swapped with the whole directory, so that nobody sees a mixture.
    ours: the paths that an earlier deploy put there, which need not be kept; whole: some of them have to go.
    """
    if len(wrong) == 1 and not whole and _replace_file(parent, staged, name, wrong[0]):
        files.remove_tree(parent, staged)
        return
    aside = swap_name(name)
    os.rename(staged, aside, src_dir_fd=parent, dst_dir_fd=parent)
    if not files.exchange(parent, aside, name):
        # Without a swap there is a moment without the directory: a miss, never a mixture.
        new, aside = aside, swap_name(name)
        os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=parent)
        os.rename(new, name, src_dir_fd=parent, dst_dir_fd=parent)
    os.fsync(parent)
    give_back(parent, aside, name, ours)


def _replace_file(parent: int, staged: str, name: str, path: str) -> bool:
    folder, _, base = path.rpartition("/")
    try:
        with (
            files.opened(parent, f"{staged}/{folder}".rstrip("/")) as source,
            files.opened(parent, f"{name}/{folder}".rstrip("/")) as target,
        ):
            os.rename(base, base, src_dir_fd=source, dst_dir_fd=target)
            os.fsync(target)
    except (FileNotFoundError, IsADirectoryError, files.LinkError):
        return False
    return True


def give_back(parent: int, aside: str, name: str, ours: set[str]) -> list[str]:
    """Move what is not ours from the directory `aside` back to the place `name`, delete the rest; what was moved.

    What has come to `name` in the meantime under the same path wins. A running engine may still be writing to `aside`,
    so nothing is deleted unseen: it goes on until the directory is empty.
    """
    moved: list[str] = []
    for _ in range(GIVE_BACK_ATTEMPTS):
        with files.opened(parent, aside) as old:
            _empty(parent, old, name, ours, moved)
        try:
            os.rmdir(aside, dir_fd=parent)
        except FileNotFoundError:
            files.require_gone(parent, aside)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            break
    return moved


def _empty(parent: int, old: int, name: str, ours: set[str], moved: list[str]) -> None:
    """One pass over a directory that was moved aside."""
    for path, status in files.walk(old):
        folder, _, base = path.rpartition("/")
        with suppress(FileNotFoundError), files.opened(old, folder) as place:
            if stat.S_ISDIR(status.st_mode):
                with suppress(OSError):
                    os.rmdir(base, dir_fd=place)
            elif path in ours or not _move(parent, f"{name}/{folder}".rstrip("/"), place, base):
                os.unlink(base, dir_fd=place)
            else:
                moved.append(path)


def _move(parent: int, folder: str, source: int, base: str) -> bool:
    """Move a file to a directory below `parent`; False when there is something by that name."""
    with files.opened(parent, folder, []) as target:
        try:
            os.stat(base, dir_fd=target, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(base, base, src_dir_fd=source, dst_dir_fd=target)
            return True
    return False


def take_away(root: Root, entry: DeployedEntry, deadline: Deadline, *, even_if_changed: bool = False) -> list[str]:
    """Remove the files of `entry` that are still as deploy put them; return what is left, relative to the root.

    A directory that holds nothing else vanishes in one step. Files that the engine added or changed stay.
    even_if_changed: remove the listed files whatever they hold.
    """
    folder, _, name = entry.directory.rpartition("/")
    try:
        with files.opened(root.descriptor, folder) as parent, files.opened(parent, name) as directory:
            listed = {f.path for f in entry.files if even_if_changed or _is_same(directory, f, deadline)}
            left = _left(directory, listed)
            if left:
                _unlink(directory, listed)
            else:
                aside = swap_name(name)
                os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=parent)
                left = give_back(parent, aside, name, listed)  # an engine may have been faster
            os.fsync(parent)
    except FileNotFoundError:
        files.require_gone(root.descriptor, entry.directory)
        return []
    return [f"{entry.directory}/{path}" for path in left]


def would_leave(root: Root, entry: DeployedEntry, deadline: Deadline) -> list[str]:
    """What `take_away` would leave of `entry`, relative to the root."""
    try:
        with files.opened(root.descriptor, entry.directory) as directory:
            left = _left(directory, {file.path for file in entry.files if _is_same(directory, file, deadline)})
    except FileNotFoundError:
        return []
    return [f"{entry.directory}/{path}" for path in left]


def _left(directory: int, listed: set[str]) -> list[str]:
    """Everything but the listed files and the directories that hold them; an empty directory ends with "/"."""
    left: list[str] = []
    for path, status in files.walk(directory):
        if not stat.S_ISDIR(status.st_mode):
            if path not in listed:
                left.append(path)
        elif not any(other.startswith(f"{path}/") for other in (*listed, *left)):
            left.append(f"{path}/")
    return left


def _unlink(directory: int, listed: set[str]) -> None:
    for path in sorted(listed):
        folder, _, name = path.rpartition("/")
        try:
            with files.opened(directory, folder) as place:
                os.unlink(name, dir_fd=place)
        except FileNotFoundError:
            files.require_gone(directory, path)
    folders = {path.rpartition("/")[0] for path in listed}
    for folder in sorted((f for f in folders if f), reverse=True):
        parent, _, name = folder.rpartition("/")
        with suppress(OSError), files.opened(directory, parent) as place:
            os.rmdir(name, dir_fd=place)
