"""Put a verified wheel into a cache root.

The order that makes a kill at any point harmless: check everything; write every entry beside its place; record the
intent; move each entry into place in one step; check again at the final path; record the result.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace

from model_cache import files, fit, plan, staging, state
from model_cache.errors import DamagedError, ModelCacheError, NotFoundError
from model_cache.files import human
from model_cache.host import Host
from model_cache.manifest import Manifest
from model_cache.names import normalize
from model_cache.payload import Payload
from model_cache.plan import EntryOutcome, Step
from model_cache.root import Root, temporary_name
from model_cache.state import DeployedEntry, State
from model_cache.verify import Deadline, Progress, Verified, read_manifest, verify

RESERVE_BYTES = 16 * 1024 * 1024
"""What deploy leaves free on the disk."""


@dataclass(frozen=True)
class Outcome:
    """What a deploy did, or would do (dry_run). bytes_written: of the entries that were written.

    removed: entries of another version that are gone; left: files in there that are not ours, relative to the root.
    """

    name: str
    version: str
    targets: tuple[str, ...]
    entries: tuple[EntryOutcome, ...]
    bytes_written: int = 0
    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def changed(self) -> bool:
        """Whether the cache root is another one than before."""
        return bool(self.removed) or any(entry.action in plan.WRITES for entry in self.entries)


def deploy(
    payload: Payload,
    root_path: str,
    host: Host,
    *,
    dry_run: bool = False,
    quick: bool = False,
    deadline: Deadline | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Deploy the entries of `payload` that fit `host` into the cache root at `root_path`.

    dry_run: decide everything, write nothing. quick: take what is deployed for intact when sizes and times are as
    noted, without reading it. Raises DamagedError, fit.DoesNotFit, DeadlineError, or ModelCacheError when the
    place cannot be written to; the root then holds what it held before, or a part of it that the next deploy
    completes.
    """
    deadline = deadline or Deadline()
    known = read_manifest(payload)
    targets = fit.require(known.manifest, host, payload.label)
    if quick and (outcome := _current(root_path, known, targets)):
        return outcome
    # Before the root is even opened: a refused or damaged wheel leaves no trace.
    verified = verify(payload, deadline, progress)
    if dry_run:
        return _dry_run(root_path, verified, targets, deadline)
    with files.system_errors(root_path), Root.open(root_path, create=True) as root, root.lock(deadline):
        return _deploy(payload, root, verified, targets, deadline)


def _current(root_path: str, known: Verified, targets: tuple[str, ...]) -> Outcome | None:
    """The outcome when everything looks as it was deployed; never an error."""
    try:
        with Root.open(root_path) as root:
            found = state.load(root, known.manifest.name)
            if found and _is_done(found, known, targets) and all(staging.look_same(root, e) for e in found.entries):
                actions = {True: "unchanged", False: "kept"}
                entries = tuple(EntryOutcome(entry.directory, actions[entry.ours]) for entry in found.entries)
                return Outcome(found.name, found.version, found.targets, entries)
    except (OSError, ModelCacheError):
        pass
    return None


def _is_done(found: State, wanted: Verified, targets: tuple[str, ...]) -> bool:
    same = found.manifest_sha256 == wanted.manifest_sha256 and set(targets) <= set(found.targets)
    return same and found.phase == "deployed" and not found.superseded


def _all_targets(old: State | None, verified: Verified, targets: tuple[str, ...]) -> tuple[str, ...]:
    """`targets` and those already deployed of the same wheel: hosts with other GPUs may share the root."""
    if old is None or old.manifest_sha256 != verified.manifest_sha256:
        return targets
    return tuple(t.name for t in verified.manifest.targets if t.name in targets or t.name in old.targets)


def _dry_run(root_path: str, verified: Verified, targets: tuple[str, ...], deadline: Deadline) -> Outcome:
    manifest = verified.manifest
    try:
        with files.system_errors(root_path), Root.open(root_path) as root:
            old = state.load(root, manifest.name)
            targets = _all_targets(old, verified, targets)
            steps = plan.make(root, manifest, targets, old, deadline)
            entries = tuple(step.outcome for step in steps)
            removed = _obsolete(plan.superseded(old, steps), steps)
    except NotFoundError:
        entries = tuple(EntryOutcome(entry.directory, "deployed") for entry in plan.wanted(manifest, targets))
        removed = []
    gone = tuple(entry.directory for entry in removed)
    return Outcome(manifest.name, manifest.version, targets, entries, removed=gone, dry_run=True)


def _deploy(payload: Payload, root: Root, verified: Verified, targets: tuple[str, ...], deadline: Deadline) -> Outcome:
    manifest = verified.manifest
    old = state.load(root, manifest.name)
    targets = _all_targets(old, verified, targets)
    _clean(root, manifest, targets, old)
    steps = plan.make(root, manifest, targets, old, deadline)
    done = old is not None and _is_done(old, verified, targets)
    intent = State(
        name=normalize(manifest.name),
        version=manifest.version,
        manifest_sha256=verified.manifest_sha256,
        phase="deploying",
        targets=targets,
        entries=tuple(step.target for step in steps),
        superseded=plan.superseded(old, steps),
    )
    if not done or any(step.writes for step in steps):
        _check_space(root, _size(steps))
        # While the same directories are only being mended, the state on disk stays valid.
        mending = done and old is not None and _directories(old) == _directories(intent)
        steps = _write(payload, root, steps, None if mending else intent, deadline)
    removed, left = _settle(root, intent, steps, deadline)
    return Outcome(
        name=manifest.name,
        version=manifest.version,
        targets=targets,
        entries=tuple(step.outcome for step in steps),
        bytes_written=_size(steps),
        removed=tuple(removed),
        left=tuple(left),
    )


def _directories(found: State) -> set[str]:
    return {entry.directory for entry in found.ours()}


def _clean(root: Root, manifest: Manifest, targets: tuple[str, ...], old: State | None) -> None:
    entries = [plan.as_deployed(entry) for entry in plan.wanted(manifest, targets)]
    for parent in state.parents([*entries, *(old.ours() if old else ())]):
        root.clean(parent)


def _size(steps: list[Step]) -> int:
    return sum(file.size for step in steps if step.writes for file in step.entry.files)


def _check_space(root: Root, size: int) -> None:
    free = root.free_bytes()
    if size and free < size + RESERVE_BYTES:
        raise ModelCacheError(
            f"not enough space in {root.path}: {human(size)} are to be written and {human(RESERVE_BYTES)} "
            f"kept free, but only {human(free)} are there; free some, or give another place with --root"
        )


def _write(payload: Payload, root: Root, steps: list[Step], intent: State | None, deadline: Deadline) -> list[Step]:
    """Stage all entries, record the intent (if given), move them into place; return the steps as they came out."""
    created: list[str] = []
    staged = {step.entry.directory: temporary_name() for step in steps if step.writes}
    # Noted before they are made: a kill in between leaves a name in the list, not a directory that nobody removes.
    root.note_directories([*root.made_directories(), *root.missing_directories(step.parent for step in steps)])
    try:
        for step in steps:
            if step.writes:
                deadline.check()
                with files.opened(root.descriptor, step.parent, created) as parent:
                    staging.stage(payload, step.entry, parent, staged[step.entry.directory], deadline)
        if intent:
            state.save(root, intent)
        return [_place(root, step, staged[step.entry.directory], intent) if step.writes else step for step in steps]
    except BaseException:
        for step in steps:
            if step.writes:
                _forget(root, step.parent, staged[step.entry.directory])
        for path in reversed(created):
            folder, _, name = path.rpartition("/")
            with suppress(OSError, ModelCacheError), files.opened(root.descriptor, folder) as parent:
                os.rmdir(name, dir_fd=parent)
        raise


def _forget(root: Root, folder: str, name: str) -> None:
    with suppress(OSError, ModelCacheError), files.opened(root.descriptor, folder) as parent:
        files.remove_tree(parent, name)


def _place(root: Root, step: Step, staged: str, intent: State | None) -> Step:
    with files.opened(root.descriptor, step.parent) as parent:
        if step.exists:
            older = [e for e in (intent.superseded if intent else ()) if e.directory == step.entry.directory]
            ours = {file.path for entry in (step.target, *older) for file in entry.files}
            staging.replace(parent, staged, step.name, step.wrong, ours)
        elif not staging.place(parent, staged, step.name):
            # Somebody without a working lock was faster. What is there is not ours.
            files.remove_tree(parent, staged)
            return plan.kept(step.entry, "was put there by somebody else in the meantime")
    return step


def _settle(root: Root, intent: State, steps: list[Step], deadline: Deadline) -> tuple[list[str], list[str]]:
    """Check what was written at its final path, take the superseded away, record the result."""
    entries = []
    for step in steps:
        entry = step.target
        if step.writes:
            found = staging.compare(root, entry.directory, entry.files, deadline)
            if found is None or found.wrong:
                staging.take_away(root, entry, deadline, even_if_changed=True)
                raise DamagedError(
                    f"{entry.directory} in {root.path} was not what had been written to it, and is deleted again; "
                    "the disk may be failing"
                )
        entries.append(staging.with_times(root, entry) if entry.ours else entry)
    removed, left = [], []
    for entry in _obsolete(intent.superseded, steps):
        left += staging.take_away(root, entry, deadline)
        removed.append(entry.directory)
    result = replace(intent, phase="deployed", entries=tuple(entries), superseded=())
    if state.load(root, intent.name) != result:
        state.save(root, result)
    if removed:
        root.prune()
    return removed, left


def _obsolete(superseded: tuple[DeployedEntry, ...], steps: list[Step]) -> list[DeployedEntry]:
    """The superseded entries that have no successor in the same directory."""
    wanted = {step.entry.directory for step in steps}
    return [entry for entry in superseded if entry.directory not in wanted]
