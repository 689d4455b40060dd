"""What a cache root holds of wheels that are gone from this host, or that nothing here can or may load any more."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace

from model_cache.errors import ModelCacheError
from model_cache.machine import fit
from model_cache.machine.host import Host, read_host
from model_cache.origin.trust import Trust
from model_cache.store import files, kept, leftovers, state, withdrawal
from model_cache.store.removal import remove
from model_cache.store.root import KEPT, Root
from model_cache.store.state import State
from model_cache.wheel.discovery import Installed, scan
from model_cache.wheel.names import RESERVED, data_package
from model_cache.wheel.payload import InstalledPayload
from model_cache.wheel.verify import Deadline, read_manifest


@dataclass(frozen=True)
class Collected:
    """One wheel whose files are taken away, or would be.

    action: "removed", or "withdrawn" (kept, to come back when its signer is trusted again). reason: why, in words.
    left: files that are not ours; kept: where what was withdrawn is now, relative to the root, or "".
    """

    name: str
    version: str
    action: str
    reason: str
    entries: tuple[str, ...]
    bytes: int
    left: tuple[str, ...] = ()
    kept: str = ""


def collect(root_path: str, *, dry_run: bool = False) -> tuple[tuple[Collected, ...], int, list[ModelCacheError]]:
    """Take away what the root holds of wheels that are gone, stale, or not trusted any more.

    Those; how many leftovers were deleted; and which states cannot be understood: what they tell of is left alone.

    Gone: installed neither here nor where it was deployed from, and not compiled straight into this root. Stale: built
    for another engine, torch, Triton or Python than is installed here. Raises NotFoundError without such a root,
    ModelCacheError when it cannot be changed.
    """
    found: list[Collected] = []
    hosts: dict[str, Host] = {}
    wheels = {wheel.name: wheel for wheel in scan().wheels}
    with files.system_errors(root_path), Root.open(root_path, judge=not dry_run) as root:
        states, errors = state.load_all(root)
        trust = Trust.of_this_host()
        reasons = [(one, *_reason(root, one, wheels.get(one.name), hosts, trust)) for one in states]
    for one, action, reason in reasons:
        if reason:
            found.append(_collect(root_path, one, action, reason, dry_run=dry_run))
    return tuple(found), 0 if dry_run else _sweep(root_path), errors


def _collect(root_path: str, one: State, action: str, reason: str, *, dry_run: bool) -> Collected:
    size = sum(file.size for entry in one.ours() for file in entry.files if not file.link)
    entries = tuple(entry.directory for entry in one.ours())
    found = Collected(one.name, one.version, action, reason, entries, size)
    if dry_run:
        return found
    if action == "removed":
        return replace(found, left=remove(one.name, root_path).left)
    withdrawn = withdrawal.withdraw(root_path, one, Deadline())
    return replace(found, left=withdrawn.left, kept=withdrawn.kept)


def _reason(
    root: Root, found: State, wheel: Installed | None, hosts: dict[str, Host], trust: Trust
) -> tuple[str, str | None]:
    """(action, why): nobody here needs it, or nobody here may use it."""
    if useless := _useless(root, found, wheel, hosts):
        return "removed", useless
    if found.phase == "deployed" and (why := withdrawal.distrust(root, found, trust)):
        return "withdrawn", f"not trusted: {why}"
    return "", None


def _useless(root: Root, found: State, wheel: Installed | None, hosts: dict[str, Host]) -> str | None:
    if wheel is None and not found.direct:
        package = data_package(found.name)
        if found.site and os.path.isdir(f"{found.site}/{package}"):  # noqa: PTH112
            return None
        return "gone: the wheel is not installed any more"
    try:
        with InstalledPayload(wheel) if wheel else kept.open_kept(root, found.name, found.manifest_sha256) as payload:
            engine = read_manifest(payload).manifest.engine
    except ModelCacheError:
        return None  # damaged or not trusted: no reason to take away what was verified once
    if engine.name not in hosts:
        hosts[engine.name] = read_host(engine.name)
    outdated = fit.outdated(engine, hosts[engine.name])
    return f"stale: {'; '.join(map(str, outdated))}" if outdated else None


def _sweep(root_path: str) -> int:
    """Delete what killed deploys have left, and kept versions of wheels that are not deployed; how many things."""
    with files.system_errors(root_path), Root.open(root_path, judge=True) as root:
        names = state.names(root)
        if not names and RESERVED not in os.listdir(root.descriptor):
            return 0
        with root.lock(Deadline()):
            names = state.names(root)
            states, _ = state.load_all(root)
            count = leftovers.clean(root, [entry for one in states for entry in one.ours()])
            with suppress(FileNotFoundError), files.opened(root.descriptor, f"{RESERVED}/{KEPT}") as directory:
                for name in sorted(set(os.listdir(directory)) - set(names)):
                    count += kept.drop(root, name)
            root.prune()
            return count
