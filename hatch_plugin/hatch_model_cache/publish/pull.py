"""A wheel from a revision on the Hub: compared with its list, verified, and only then given its name."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from model_cache.errors import DamagedError, ModelCacheError, NotFoundError, UsageError
from model_cache.origin import signature
from model_cache.origin.trust import Origin, Trust
from model_cache.wheel import manifest as manifests
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.manifest import Manifest
from model_cache.wheel.names import printable
from model_cache.wheel.verify import verify

from .hub import WHEEL_FILE, Digests, Hub, RemoteFile
from .hub_address import HubAddress

__all__ = ["Found", "Pulled", "look", "pull"]

_TEMPORARY = ".model-cache-pull-"
_SLACK_BYTES = 64 * 1024 * 1024
"""What a wheel may be larger than manifest and blobs: headers, RECORD, METADATA."""


@dataclass(frozen=True)
class Found:
    """What one commit holds. remote: the wheel as the Hub lists it, None offline. small: the files beside the wheel."""

    address: HubAddress
    wheel: str
    remote: RemoteFile | None
    small: Mapping[str, bytes]
    manifest: Manifest


@dataclass(frozen=True)
class Pulled:
    """A wheel that was verified. path: where it is now; compared: with the Hub's list; fresh: it was not there yet."""

    found: Found
    path: Path
    size: int
    sha256: str
    origin: Origin
    compared: bool
    fresh: bool


def look(address: HubAddress, hub: Hub) -> Found:
    """What the commit that `address` names holds, from its list and its small files; no wheel is downloaded.

    Raises NotFoundError when it holds no model cache wheel, DamagedError when what it holds cannot be one.
    """
    listed = {} if hub.offline else hub.files(address)
    names = list(hub.cached_files(address) if hub.offline else listed)
    wheels = [name for name in names if name.endswith(".whl")]
    if len(wheels) != 1 or manifests.FILE_NAME not in names:
        raise _no_wheel(address, hub, wheels)
    if not WHEEL_FILE.fullmatch(wheels[0]):
        raise DamagedError(f"{address}: {printable(wheels[0])!r:.120} is not the file name of a wheel")
    limits = {manifests.FILE_NAME: manifests.MAX_BYTES, signature.FILE_NAME: signature.MAX_BYTES}
    small = {name: hub.read(address, name, limit, listed.get(name)) for name, limit in limits.items() if name in names}
    manifest = manifests.parse(small[manifests.FILE_NAME], f"{address}: {manifests.FILE_NAME}")
    remote = listed.get(wheels[0])
    most = sum(manifest.blobs().values()) + len(small[manifests.FILE_NAME]) + _SLACK_BYTES
    if remote and remote.size > most:
        raise DamagedError(f"{address}: {wheels[0]} has {remote.size} bytes, more than its manifest accounts for")
    return Found(address, wheels[0], remote, small, manifest)


def _no_wheel(address: HubAddress, hub: Hub, wheels: list[str]) -> ModelCacheError:
    if len(wheels) > 1:
        return DamagedError(f"{address}: holds {len(wheels)} wheels; a revision that `model-cache push` made holds one")
    if hub.offline:
        known = ", ".join(commit for commit in hub.cached(address) if commit != address.branch) or "none"
        return NotFoundError(f"{address}: no wheel of it is in the local Hub cache (commits there: {known})")
    branches = [name for name in hub.refs(address) if name != "main"]
    hint = f"; its branches and tags: {', '.join(map(printable, branches[:20]))}" if branches else ""
    return NotFoundError(f"{address}: holds no model cache wheel{hint}")


def pull(found: Found, out: Path, hub: Hub, trust: Trust) -> Pulled:
    """Download the wheel of a commit, verify it, and put it into the directory `out`.

    Until everything is right it has a temporary name in `out`. A file of its name that is there already stays: the same
    bytes are what is wanted, others are refused. Raises DamagedError, NotTrustedError, UsageError, ModelCacheError.
    """
    path = out / found.wheel
    try:
        out.mkdir(parents=True, exist_ok=True)
        with _folder(out) as folder:
            temporary = folder / found.wheel
            digests = _fetch(found, hub, temporary)
            origin = _verify(found, temporary, trust)
            fresh = not _is_there(path, digests)
            if fresh:
                temporary.rename(path)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise ModelCacheError(f"{where or f'{out}: '}{error.strerror or error}") from None
    return Pulled(found, path, digests.size, digests.sha256, origin, found.remote is not None, fresh)


@contextmanager
def _folder(out: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=out))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fetch(found: Found, hub: Hub, to: Path) -> Digests:
    """The wheel as the Hub lists it, at `to`. A bad copy in the local cache is replaced once."""
    digests = _copy(hub.download(found.address, found.wheel), to)
    if found.remote and found.remote.differs(digests):
        digests = _copy(hub.download(found.address, found.wheel, again=True), to)
        if problem := found.remote.differs(digests):
            raise DamagedError(f"{found.address}: what came is not what the Hub lists", [problem])
    return digests


def _copy(source: Path, to: Path) -> Digests:
    """Copy out of the Hub's cache: what lies there may be replaced while it is looked at."""
    with source.open("rb") as file, to.open("w+b") as copy:
        shutil.copyfileobj(file, copy)
        copy.flush()
        os.fsync(copy.fileno())
        return Digests.of(copy)


def _verify(found: Found, path: Path, trust: Trust) -> Origin:
    """The one verifier, and the files beside the wheel against those in it."""
    with WheelPayload(str(path)) as payload:
        verified = verify(payload, trust=trust)
        inside = {manifests.FILE_NAME: payload.read(manifests.FILE_NAME, manifests.MAX_BYTES)}
        if verified.signatures_sha256:
            inside[signature.FILE_NAME] = payload.read(signature.FILE_NAME, signature.MAX_BYTES)
    names = sorted(inside.keys() | found.small.keys())
    problems = [
        f"{name} beside the wheel is another one than in it"
        for name in names
        if inside.get(name) != found.small.get(name)
    ]
    if problems:
        raise DamagedError(f"{found.address}: {found.wheel} does not agree with its repository", problems)
    return verified.origin


def _is_there(path: Path, wanted: Digests) -> bool:
    """Whether `path` has these bytes. Raises UsageError when it has others."""
    try:
        with path.open("rb") as file:
            there = Digests.of(file)
    except FileNotFoundError:
        return False
    if there != wanted:
        raise UsageError(f"{path}: is there already and is another wheel; move it away")
    return True
