"""Put a verified wheel into a cache root, or bring the version before back."""

from __future__ import annotations

import errno
from pathlib import Path

from model_cache.errors import MismatchError, ModelCacheError, NotFoundError, UsageError
from model_cache.machine import fit
from model_cache.machine.host import Host
from model_cache.store import files, kept, overlay, place, plan, staging, state
from model_cache.store.plan import EntryOutcome
from model_cache.store.plan import Outcome as Outcome
from model_cache.store.root import Root
from model_cache.store.switch import Wanted, all_targets, is_done, obsolete, replaced, switch
from model_cache.wheel.payload import InstalledPayload, Payload
from model_cache.wheel.verify import Deadline, Progress, Verified, read_manifest, verify

READ_ONLY = (
    "cannot be written to, and vLLM writes beside what it loads; `model-cache deploy --overlay DIR` makes a "
    "writable place that leads there"
)


class HeldError(MismatchError):
    """The wheel fits, but its version was rolled back from in this cache root."""

    kind = "held"


def deploy(
    payload: Payload,
    root_path: str,
    host: Host,
    *,
    dry_run: bool = False,
    quick: bool = False,
    hold: bool = False,
    base_path: str | None = None,
    adopted: tuple[plan.Adopted, ...] = (),
    deadline: Deadline | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Deploy the entries of `payload` that fit `host` into the cache root at `root_path`.

    dry_run: decide everything, write nothing. quick: take what is deployed for intact when sizes and times are as
    noted, without reading it. hold: do not bring back a version that was rolled back from. base_path: a cache root
    that holds the entries already; files that are intact there become links to it (an overlay). adopted: entries
    under an engine's keys, which come to the wheel's own.
    Raises DamagedError, fit.DoesNotFit, HeldError, DeadlineError, or ModelCacheError when the place cannot be written
    to; the root then holds what it held before, or a part of it that the next deploy completes.
    """
    deadline = deadline or Deadline()
    known = read_manifest(payload)
    if known.manifest.engine.name == "torch":
        raise UsageError(
            f"{payload.label} is for programs that use torch.compile, and goes into no cache root: "
            "such a program loads it with `model_cache.torch.load`"
        )
    targets = fit.require(known.manifest, host, payload.label)
    adopted = tuple(entry for entry in adopted if entry.target in targets)
    held = _held(root_path, known) if hold else ""
    if quick and (outcome := _current(root_path, known, targets)):
        return outcome
    # Before the root is even opened: a refused or damaged wheel leaves no trace.
    verified = verify(payload, deadline, progress)
    if dry_run:
        return _dry_run(root_path, verified, targets, deadline)
    if base_path is None and (outcome := _read_only(root_path, verified, targets, adopted, deadline)):
        return outcome
    links = _overlay(base_path, root_path, verified, targets, deadline) if base_path else None
    site = payload.installed.site if isinstance(payload, InstalledPayload) and not payload.direct else ""
    wanted = Wanted(payload, verified, targets, links, held, site, payload.direct, adopted)
    with files.system_errors(root_path), Root.open(root_path, create=True) as root, root.lock(deadline):
        return switch(root, wanted, deadline)


def rollback(
    name: str, root_path: str, host: Host, *, dry_run: bool = False, deadline: Deadline | None = None
) -> Outcome:
    """Bring back the version of wheel `name` that was deployed before the present one, which is kept in its turn.

    It is judged, verified and put in place like any other; only a deploy by name brings the present version back.
    Raises NotFoundError when nothing is kept, and whatever `deploy` raises.
    """
    deadline = deadline or Deadline()
    with files.system_errors(root_path), Root.open(root_path, judge=not dry_run) as root:
        digest = state.require(root, name).rollback_to
        if dry_run:
            return _roll_back(root, name, digest, host, deadline, dry_run=True)
        with root.lock(deadline):
            return _roll_back(root, name, digest, host, deadline, dry_run=False)


def _roll_back(root: Root, name: str, digest: str, host: Host, deadline: Deadline, *, dry_run: bool) -> Outcome:
    found = state.require(root, name)
    if not digest or found.rollback_to != digest:
        raise NotFoundError(f"{name}: no version before {found.version} is kept in {root.path}")
    with kept.open_kept(root, name, digest) as payload:
        verified = kept.what_is_there(payload, verify(payload, deadline))
        targets = fit.require(verified.manifest, host, payload.label)
        if dry_run:
            return _dry_run(root.path, verified, targets, deadline)
        held = found.held if digest == found.manifest_sha256 else found.manifest_sha256
        return switch(root, Wanted(payload, verified, targets, held=held, direct=found.direct), deadline)


def _held(root_path: str, known: Verified) -> str:
    """What the state holds back. Raises HeldError when that is the wheel at hand."""
    try:
        with Root.open(root_path) as root:
            found = state.load(root, known.manifest.name)
    except ModelCacheError:
        return ""
    if found is None or not found.held:
        return ""
    if found.held == known.manifest_sha256:
        name = known.manifest.name
        raise HeldError(
            f"{name} {known.manifest.version} was rolled back to {found.version} in {root_path}; "
            f"`model-cache deploy {name}` brings it back"
        )
    return found.held if found.manifest_sha256 == known.manifest_sha256 else ""


def _current(root_path: str, known: Verified, targets: tuple[str, ...]) -> Outcome | None:
    """The outcome when everything looks as it was deployed; never an error."""
    try:
        with Root.open(root_path) as root:
            found = state.load(root, known.manifest.name)
            if found and is_done(found, known, targets) and all(staging.look_same(root, e) for e in found.entries):
                actions = {True: "unchanged", False: "kept"}
                entries = tuple(EntryOutcome(entry.directory, actions[entry.ours]) for entry in found.entries)
                notes = (f"{root_path} {READ_ONLY}",) if place.is_read_only(root.descriptor) else ()
                return Outcome(found.name, found.version, found.targets, entries, notes=notes)
    except (OSError, ModelCacheError):
        pass
    return None


def _read_only(
    root_path: str,
    verified: Verified,
    targets: tuple[str, ...],
    adopted: tuple[plan.Adopted, ...],
    deadline: Deadline,
) -> Outcome | None:
    """The outcome in a root that can be read only. Raises ModelCacheError when something would have to be written."""
    try:
        with files.system_errors(root_path), Root.open(root_path) as root:
            if not place.is_read_only(root.descriptor):
                return None
            old = state.load(root, verified.manifest.name)
            entries = plan.wanted(verified, all_targets(old, verified, targets), old, adopted)
            steps = plan.make(root, entries, old, deadline)
            if any(step.writes for step in steps) or old is None:
                mounted = place.is_mounted_read_only(root.descriptor)
                raise files.failure("cannot write to", root_path, OSError(errno.EROFS if mounted else errno.EACCES, ""))
            outcomes = tuple(step.outcome for step in steps)
            manifest = verified.manifest
            return Outcome(manifest.name, manifest.version, targets, outcomes, notes=(f"{root_path} {READ_ONLY}",))
    except NotFoundError:
        return None


def _overlay(
    base_path: str, root_path: str, verified: Verified, targets: tuple[str, ...], deadline: Deadline
) -> plan.Links:
    if Path(root_path).resolve() == Path(base_path).resolve():
        raise UsageError(f"the overlay must be another directory than the cache root {base_path}")
    with files.system_errors(base_path), Root.open(base_path, judge=True) as base:
        return overlay.links(base, plan.wanted(verified, targets), deadline)


def _dry_run(root_path: str, verified: Verified, targets: tuple[str, ...], deadline: Deadline) -> Outcome:
    manifest = verified.manifest
    try:
        with files.system_errors(root_path), Root.open(root_path) as root:
            old = state.load(root, manifest.name)
            targets = all_targets(old, verified, targets)
            steps = plan.make(root, plan.wanted(verified, targets, old), old, deadline)
            entries = tuple(step.outcome for step in steps)
            removed = obsolete(plan.superseded(old, steps), steps)
            before = replaced(old, verified)
    except NotFoundError:
        entries = tuple(EntryOutcome(entry.directory, "deployed") for entry in plan.wanted(verified, targets))
        removed, before = [], ""
    gone = tuple(entry.directory for entry in removed)
    return Outcome(manifest.name, manifest.version, targets, entries, removed=gone, dry_run=True, replaced=before)
