"""The one transaction that changes what is deployed of a wheel: a deploy, an upgrade, a downgrade, a rollback.

The order that makes a kill at any point harmless: write every entry beside its place; keep what the version before had
put there; record the intent; move each entry into place in one step; check again at the final path; take away what
only the version before had; record the result.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from model_cache.errors import DamagedError, ModelCacheError
from model_cache.store import files, groups, hints, kept, leftovers, place, plan, staging, state
from model_cache.store.files import human
from model_cache.store.plan import Links, Outcome, Step
from model_cache.store.root import Root, temporary_name
from model_cache.store.state import DeployedEntry, State
from model_cache.wheel import parallel
from model_cache.wheel.manifest import Manifest
from model_cache.wheel.names import RESERVED, normalize
from model_cache.wheel.payload import Payload
from model_cache.wheel.verify import Deadline, Verified

BLOCK_BYTES = 4096
MANY_FILES = 32


@dataclass(frozen=True)
class Wanted:
    """What shall be deployed. targets: those that fit this host; links: of an overlay.

    held: manifest_sha256 of a version that the plug-in shall not bring back; site: where the wheel is installed;
    direct: as in the state; adopted: entries under the keys of an engine.
    """

    payload: Payload
    verified: Verified
    targets: tuple[str, ...]
    links: Links | None = None
    held: str = ""
    site: str = ""
    direct: bool = False
    adopted: tuple[plan.Adopted, ...] = ()

    @property
    def manifest(self) -> Manifest:
        return self.verified.manifest


def is_done(found: State, verified: Verified, targets: tuple[str, ...]) -> bool:
    """Whether `found` says that this very wheel is deployed for these targets, with nothing left to do."""
    same = found.manifest_sha256 == verified.manifest_sha256 and set(targets) <= set(found.targets)
    return same and found.phase == "deployed" and not found.superseded


def all_targets(old: State | None, verified: Verified, targets: tuple[str, ...]) -> tuple[str, ...]:
    """`targets` and those already deployed of the same wheel: hosts with other GPUs may share the root."""
    if old is None or old.manifest_sha256 != verified.manifest_sha256:
        return targets
    return tuple(t.name for t in verified.manifest.targets if t.name in targets or t.name in old.targets)


def switch(root: Root, wanted: Wanted, deadline: Deadline) -> Outcome:
    """Make the locked `root` hold what is wanted. Raises ModelCacheError, OSError; see `deploy.deploy`."""
    manifest = wanted.manifest
    old = state.load(root, manifest.name)
    targets = all_targets(old, wanted.verified, wanted.targets)
    entries = plan.wanted(wanted.verified, targets, old, wanted.adopted)
    leftovers.clean(root, [*map(plan.as_deployed, entries), *(old.ours() if old else ())])
    steps = plan.make(root, entries, old, deadline, wanted.links)
    done = old is not None and is_done(old, wanted.verified, targets)
    ours = [step.entry for step in steps if step.target.ours]
    texts = {**manifest.hints, **groups.texts(ours, root.path)}
    here = hints.wanted(root, normalize(manifest.name), texts, old)
    intent = State(
        name=normalize(manifest.name),
        version=manifest.version,
        manifest_sha256=wanted.verified.manifest_sha256,
        phase="deploying",
        targets=targets,
        entries=tuple(step.target for step in steps),
        superseded=plan.superseded(old, steps),
        previous=_previous(old, wanted.verified),
        held=wanted.held,
        site=wanted.site,
        hints=tuple(dict.fromkeys((*here, *(old.hints if old else ())))),
        direct=wanted.direct,
    )
    if not done or any(step.writes for step in steps):
        _check_place(root, steps, manifest)
        _check_space(root, intent.name, steps)
        # While the same directories are only being mended, the state on disk stays valid.
        mending = done and old is not None and (_directories(old), old.hints) == (_directories(intent), here)
        steps, intent = _write(root, wanted, steps, intent, old, deadline, mending=mending)
    elif old is not None and old.hints != here:
        state.save(root, replace(old, hints=intent.hints))
    hints.settle(root, intent.name, texts, here, old)
    result, removed, left = _settle(root, replace(intent, hints=here), steps, deadline)
    return Outcome(
        name=manifest.name,
        version=manifest.version,
        targets=targets,
        entries=tuple(step.outcome for step in steps),
        bytes_written=_size(steps),
        removed=tuple(removed),
        left=tuple(left),
        previous=kept.version(root, result),
        replaced=replaced(old, wanted.verified),
        notes=tuple(place.notes(root.descriptor, root.path)),
    )


def replaced(old: State | None, verified: Verified) -> str:
    """The version that was deployed as a whole, if it is another wheel than the wanted one; else ""."""
    if old is None or old.phase != "deployed" or old.manifest_sha256 == verified.manifest_sha256:
        return ""
    return old.version


def _previous(old: State | None, verified: Verified) -> str:
    """Which version a rollback brings back: the one that was last whole, and is not the wanted one."""
    if old is None:
        return ""
    other = old.manifest_sha256 != verified.manifest_sha256
    digest = old.manifest_sha256 if other and old.phase == "deployed" else old.previous
    return "" if digest == verified.manifest_sha256 else digest


def _directories(found: State) -> set[str]:
    return {entry.directory for entry in found.ours()}


def _check_place(root: Root, steps: list[Step], manifest: Manifest) -> None:
    for path in {RESERVED, *(step.entry.directory for step in steps)}:
        place.judge_below(root.descriptor, root.path, path)
    contents = {content for step in steps for file in step.entry.files for content in file.contains}
    if "shared-object" in contents and place.is_noexec(root.descriptor):
        raise ModelCacheError(
            f"{root.path} is mounted noexec, and {manifest.name} holds shared objects, which no engine can load from "
            "there; mount it without noexec, or give another place with --root or VLLM_CACHE_ROOT"
        )


def _check_space(root: Root, name: str, steps: list[Step]) -> None:
    written = [file.size for step in steps if step.writes for file in step.target.files if not file.link]
    need = sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in written)
    if need and root.free_bytes() < need + files.RESERVE_BYTES:
        kept.drop(root, name)  # what serves now goes before what served once
    free = root.free_bytes()
    if need and free < need + files.RESERVE_BYTES:
        raise ModelCacheError(
            f"not enough space in {root.path}: {human(sum(written))} are to be written and "
            f"{human(files.RESERVE_BYTES)} kept free, but only {human(free)} are there; free some, or give another "
            "place with --root"
        )
    inodes = root.free_files()
    if written and inodes is not None and inodes < 4 * len(written):
        raise ModelCacheError(f"no room for more files in {root.path}: only {inodes} may still be made there")


def _write(
    root: Root,
    wanted: Wanted,
    steps: list[Step],
    intent: State,
    old: State | None,
    deadline: Deadline,
    *,
    mending: bool,
) -> tuple[list[Step], State]:
    """Stage all entries, record the intent (unless mending), move them into place; both as they came out."""
    created: list[str] = []
    staged = {step.entry.directory: temporary_name() for step in steps if step.writes}
    # Noted before they are made: a kill in between leaves a name in the list, not a directory that nobody removes.
    root.note_directories([*root.made_directories(), *root.missing_directories(step.parent for step in steps)])
    try:
        written = [step for step in steps if step.writes]
        for way in dict.fromkeys(step.parent for step in written):
            with files.opened(root.descriptor, way, created):
                pass  # made here, one after the other
        for _ in parallel.each(partial(_stage, root, wanted, staged, deadline), written, _size(written)):
            pass
        _sync(root, steps, staged, deadline)
        kept.note(root, wanted.payload, wanted.verified)
        if not mending:
            if old and intent.previous == old.manifest_sha256 and not kept.keep(root, old, deadline):
                intent = replace(intent, previous="")
            state.save(root, intent)
        ours = _ours(old, intent)
        steps = [_place(root, step, staged[step.entry.directory], ours) if step.writes else step for step in steps]
    except BaseException:
        for step in steps:
            if step.writes:
                _forget(root, step.parent, staged[step.entry.directory])
        for path in reversed(created):
            folder, _, name = path.rpartition("/")
            with suppress(OSError, ModelCacheError), files.opened(root.descriptor, folder) as parent:
                os.rmdir(name, dir_fd=parent)
        raise
    return steps, intent


def _stage(root: Root, wanted: Wanted, staged: dict[str, str], deadline: Deadline, step: Step) -> None:
    deadline.check()
    links = {file.path: file.link for file in step.target.files if file.link}
    with files.opened(root.descriptor, step.parent) as parent:
        staging.stage(wanted.payload, step.entry, parent, staged[step.entry.directory], deadline, links)


def _size(steps: Iterable[Step]) -> int:
    return sum(step.size for step in steps)


def _sync(root: Root, steps: list[Step], staged: dict[str, str], deadline: Deadline) -> None:
    """Have all that was staged on the disk before any of it is moved into place."""
    written = [step for step in steps if step.writes]
    # Each fsync makes the disk empty its own cache; of many files, one flush of the file system is far cheaper.
    if sum(len(step.entry.files) for step in written) > MANY_FILES and files.sync_file_system(root.descriptor):
        return
    for step in written:
        with files.opened(root.descriptor, step.parent) as parent:
            staging.sync(parent, staged[step.entry.directory], deadline)


def _ours(old: State | None, intent: State) -> dict[str, set[str]]:
    """Entry directory → paths of the files in it that a deploy has put there, or is about to."""
    found: dict[str, set[str]] = {}
    for entry in (*(old.ours() if old else ()), *intent.superseded):
        found.setdefault(entry.directory, set()).update(file.path for file in entry.files)
    return found


def _forget(root: Root, folder: str, name: str) -> None:
    with suppress(OSError, ModelCacheError), files.opened(root.descriptor, folder) as parent:
        files.remove_tree(parent, name)


def _place(root: Root, step: Step, staged: str, ours: dict[str, set[str]]) -> Step:
    with files.opened(root.descriptor, step.parent) as parent:
        known = ours.get(step.entry.directory, set())
        # A network disk may show a directory of ours late, when we had planned to make it.
        if not step.exists and (staging.place(parent, staged, step.name)):
            return step
        if step.exists or known or _can_be_filled(root, step):
            wrong = step.wrong if step.exists else tuple(file.path for file in step.entry.files)
            listed = {file.path for file in step.target.files}
            staging.replace(parent, staged, step.name, wrong, known | listed, whole=not known <= listed)
            return step
        # Somebody without a working lock was faster. What is there is not ours.
        files.remove_tree(parent, staged)
        return plan.kept(step.entry, "was put there by somebody else in the meantime")


def _can_be_filled(root: Root, step: Step) -> bool:
    """Whether an engine that has started in between has made the directory, but nothing of what we want in it."""
    found = staging.compare(root, step.entry.directory, step.target.files, Deadline())
    return found is not None and bool(found.missing) and not found.changed


def _settle(
    root: Root, intent: State, steps: list[Step], deadline: Deadline
) -> tuple[State, Iterable[str], Iterable[str]]:
    """Check what was written at its final path, take the superseded away, record the result."""

    def compare(step: Step) -> staging.Comparison | None:
        if not step.writes:
            return None
        return staging.compare(root, step.target.directory, step.target.files, deadline)

    entries = []
    for step, found in zip(steps, parallel.each(compare, steps, _size(steps)), strict=True):
        entry = step.target
        if step.writes and (found is None or found.wrong):
            staging.take_away(root, entry, deadline, even_if_changed=True)
            raise DamagedError(
                f"{entry.directory} in {root.path} was not what had been written to it, and is deleted again; "
                "the disk may be failing"
            )
        entries.append(staging.with_times(root, entry) if entry.ours else entry)
    removed, left = [], []
    for entry in obsolete(intent.superseded, steps):
        left += staging.take_away(root, entry, deadline)
        removed.append(entry.directory)
    result = replace(intent, phase="deployed", entries=tuple(entries), superseded=())
    if state.load(root, intent.name) != result:
        state.save(root, result)
    kept.prune(root, result)
    if removed:
        root.prune()
    return result, removed, left


def obsolete(superseded: tuple[DeployedEntry, ...], steps: list[Step]) -> list[DeployedEntry]:
    """The superseded entries that have no successor in the same directory."""
    wanted = {step.entry.directory for step in steps}
    return [entry for entry in superseded if entry.directory not in wanted]
