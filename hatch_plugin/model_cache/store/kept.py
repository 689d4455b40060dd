"""The version before, kept for a rollback below `.model-cache/kept/<wheel>/<manifest_sha256>/`, unseen by the engine.

Its form is that of an installed wheel, so it is opened, verified and judged by the same code as one. The small files of
a wheel are put there when it is deployed, its blobs only when another version takes its place: as hard links of the
deployed files, which cost no space, or else as copies.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from model_cache.errors import DamagedError, NotFoundError
from model_cache.origin import signature
from model_cache.store import files, leftovers, staging
from model_cache.store.root import KEPT, TEMPORARY, Root, temporary_name
from model_cache.store.state import DeployedEntry, DeployedFile, State
from model_cache.wheel import manifest
from model_cache.wheel.discovery import Installed
from model_cache.wheel.names import RESERVED, normalize
from model_cache.wheel.payload import InstalledPayload, Payload
from model_cache.wheel.verify import Deadline, Verified, blob_path

DIST_INFO = ("METADATA", "entry_points.txt")


class KeptPayload(InstalledPayload):
    """A kept version. Only the blobs that this host had deployed are there."""

    partial = True


def folder(name: str) -> str:
    """Where the versions of wheel `name` are kept, relative to the root."""
    return f"{RESERVED}/{KEPT}/{normalize(name)}"


def note(root: Root, payload: Payload, verified: Verified) -> None:
    """Keep the small files of a wheel that is being deployed. Raises OSError, DamagedError."""
    name = verified.manifest.name
    parent = folder(name)
    with files.opened(root.descriptor, parent, []) as directory:
        if verified.manifest_sha256 in os.listdir(directory):
            return
        temporary = temporary_name()
        os.close(files.make_directory(directory, temporary))
        try:
            with files.opened(directory, temporary) as site:
                for path, data in _small_files(payload, verified):
                    place, _, base = path.rpartition("/")
                    with files.opened(site, place, []) as target:
                        files.write_atomically(target, base, data, temporary_name())
            os.rename(temporary, verified.manifest_sha256, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException as error:
            with suppress(OSError):
                files.remove_tree(directory, temporary)
            # Somebody without a working lock may have been faster.
            if not (isinstance(error, OSError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY)):
                raise


def _small_files(payload: Payload, verified: Verified) -> Iterable[tuple[str, bytes]]:
    package = payload.package
    dist_info = f"{package}-{verified.manifest.version}.dist-info"
    yield f"{package}/{manifest.FILE_NAME}", payload.read(manifest.FILE_NAME, manifest.MAX_BYTES)
    names = set(DIST_INFO)
    if verified.signatures_sha256 is not None:
        data = payload.read(signature.FILE_NAME, signature.MAX_BYTES)
        yield f"{package}/{signature.FILE_NAME}", data
        names |= {name for one in signature.parse(data) for name in one.dist_info}
    for name in sorted(names):
        with suppress(DamagedError):  # a signature may name what is not there; whoever requires it will say so
            yield f"{dist_info}/{name}", payload.metadata(name)


def keep(root: Root, old: State, deadline: Deadline) -> bool:
    """Keep the files of version `old`, as far as they are what was deployed; whether a rollback can bring it back.

    Never raises for want of space or of links: then nothing is kept. Raises DeadlineError.
    """
    try:
        site = f"{folder(old.name)}/{old.manifest_sha256}"
        with files.opened(root.descriptor, site) as directory:
            package = next((name for name in os.listdir(directory) if not name.endswith(".dist-info")), None)
            if package is None:
                return False
            with files.opened(directory, package) as place:
                return sum(_keep_entry(root, entry, place, deadline) for entry in old.entries if entry.ours) > 0
    except OSError:
        return False


def _keep_entry(root: Root, entry: DeployedEntry, place: int, deadline: Deadline) -> bool:
    comparison = staging.compare(root, entry.directory, entry.files, deadline)
    if comparison is None or comparison.wrong or any(file.link for file in entry.files):
        return False
    with files.opened(root.descriptor, entry.directory) as directory:
        for file in entry.files:
            _keep_file(root, directory, file, place)
    return True


def _keep_file(root: Root, directory: int, file: DeployedFile, place: int) -> None:
    source_folder, _, source = file.path.rpartition("/")
    target_folder, _, target = blob_path(file.sha256).rpartition("/")
    with files.opened(directory, source_folder) as from_, files.opened(place, target_folder, []) as to:
        try:
            os.link(source, target, src_dir_fd=from_, dst_dir_fd=to, follow_symlinks=False)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in files.NO_LINKS:
                raise
            _copy(root, from_, source, to, target)


def _copy(root: Root, from_: int, source: str, to: int, target: str) -> None:
    with root.state_directory() as ours, os.fdopen(files.open_regular(from_, source), "rb") as reader:
        size = os.fstat(reader.fileno()).st_size
        if root.free_bytes() < size + files.RESERVE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        temporary = temporary_name()
        with os.fdopen(os.open(temporary, files.CREATE, files.FILE_MODE, dir_fd=ours), "wb") as writer:
            shutil.copyfileobj(reader, writer, 1024 * 1024)
            writer.flush()
            os.fsync(writer.fileno())
        os.rename(temporary, target, src_dir_fd=ours, dst_dir_fd=to)


def open_kept(root: Root, name: str, digest: str) -> KeptPayload:
    """Open the kept version `digest` (its manifest's sha256) of wheel `name`. Raises NotFoundError."""
    site = Path(root.path, folder(name), digest)
    try:
        [dist_info] = [path.name for path in site.iterdir() if path.name.endswith(".dist-info")]
    except (OSError, ValueError):
        raise NotFoundError(f"{name}: no version before is kept in {root.path}") from None
    version = dist_info.removesuffix(".dist-info").partition("-")[2]
    return KeptPayload(Installed(normalize(name), version, str(site), dist_info))


def what_is_there(payload: Payload, verified: Verified) -> Verified:
    """A kept wheel without the entries that this host never had. Raises NotFoundError when nothing is left of it."""
    there = payload.files()
    manifest = verified.manifest
    entries = tuple(e for e in manifest.entries if all(blob_path(file.sha256) in there for file in e.files))
    if not entries:
        raise NotFoundError(f"{payload.label}: nothing of it is kept any more")
    return replace(verified, manifest=replace(manifest, entries=entries))


def version(root: Root, found: State) -> str | None:
    """The version that `rollback` would bring back; None when none is kept."""
    if not found.previous:
        return None
    try:
        with open_kept(root, found.name, found.previous) as payload:
            return payload.version
    except (NotFoundError, DamagedError):
        return None


def prune(root: Root, found: State) -> None:
    """Keep nothing of the wheel but the small files of the deployed version and all of the previous one."""
    with suppress(FileNotFoundError), files.opened(root.descriptor, folder(found.name)) as directory:
        for name in sorted(os.listdir(directory)):
            unfinished = name.startswith(TEMPORARY) and not leftovers.is_dead(root, directory, name)
            if name not in (found.manifest_sha256, found.previous) and not unfinished:
                files.remove_tree(directory, name)
        with suppress(FileNotFoundError), files.opened(directory, found.manifest_sha256) as site:
            for package in os.listdir(site):
                with files.opened(site, package) as place:
                    files.remove_tree(place, "blobs")


def drop(root: Root, name: str) -> bool:
    """Delete all that is kept of wheel `name`; whether there was anything."""
    parent, _, base = folder(name).rpartition("/")
    with suppress(FileNotFoundError), files.opened(root.descriptor, parent) as directory:
        there = base in os.listdir(directory)
        files.remove_tree(directory, base)
        return there
    return False
