"""What a deploy has to do to each entry, decided from what is in the cache root and who put it there."""

from __future__ import annotations

from dataclasses import dataclass

from model_cache import staging
from model_cache.manifest import Entry, Manifest
from model_cache.root import Root
from model_cache.state import DeployedEntry, DeployedFile, State
from model_cache.verify import Deadline

WRITES = ("deployed", "restored")
SAME = "was already there with the same content"
OTHER = "was already there with other content"


@dataclass(frozen=True)
class EntryOutcome:
    """What happened to one entry. action: deployed, restored, unchanged or kept; note: why it was kept."""

    directory: str
    action: str
    note: str = ""


@dataclass(frozen=True)
class Step:
    """One wanted entry. wrong: its files that are missing or differ in the directory that is there (exists)."""

    entry: Entry
    target: DeployedEntry
    outcome: EntryOutcome
    exists: bool = False
    wrong: tuple[str, ...] = ()

    @property
    def writes(self) -> bool:
        return self.outcome.action in WRITES

    @property
    def parent(self) -> str:
        return self.entry.directory.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.entry.directory.rpartition("/")[2]


def wanted(manifest: Manifest, targets: tuple[str, ...]) -> list[Entry]:
    """The entries of `manifest` that were built for one of `targets`."""
    return [entry for entry in manifest.entries if entry.target in targets]


def as_deployed(entry: Entry, *, ours: bool = True) -> DeployedEntry:
    """`entry` as a state notes it, before it is in place."""
    read = tuple(DeployedFile(file.path, file.sha256, file.size) for file in entry.files)
    return DeployedEntry(entry.directory, ours, read)


def make(root: Root, manifest: Manifest, targets: tuple[str, ...], old: State | None, deadline: Deadline) -> list[Step]:
    """Decide about every wanted entry. old: what the last deploy of this wheel has noted.

    Raises LinkError when a link stands in the way.
    """
    return [_step(root, entry, old, deadline) for entry in wanted(manifest, targets)]


def _step(root: Root, entry: Entry, old: State | None, deadline: Deadline) -> Step:
    target = as_deployed(entry)
    found = staging.compare(root, entry.directory, target.files, deadline)
    if found is None:
        return Step(entry, target, EntryOutcome(entry.directory, "deployed"))
    if _is_ours(root, target, old, same=not found.wrong, deadline=deadline):
        action = "restored" if found.wrong else "unchanged"
        return Step(entry, target, EntryOutcome(entry.directory, action), True, found.wrong)
    if found.missing and not found.changed:
        # Somebody has the directory (an engine that was stopped, or what a removal had to leave) but none of its
        # files differs from ours: adding what is missing takes nothing away.
        return Step(entry, target, EntryOutcome(entry.directory, "deployed"), True, found.wrong)
    return kept(entry, OTHER if found.changed else SAME)


def kept(entry: Entry, note: str) -> Step:
    """Leave alone what is there."""
    return Step(entry, as_deployed(entry, ours=False), EntryOutcome(entry.directory, "kept", note), True)


def _is_ours(root: Root, target: DeployedEntry, old: State | None, *, same: bool, deadline: Deadline) -> bool:
    """Whether an existing directory was put there by a deploy of this wheel."""
    records = [entry for entry in (old.ours() if old else ()) if entry.directory == target.directory]
    if not records or old is None:
        return False
    if old.phase == "deployed" or same:
        return True
    # A deploy was killed between intent and result: the directory is ours only if it is what some deploy writes,
    # since the engine may have made it in the meantime.
    found = (staging.compare(root, entry.directory, entry.files, deadline) for entry in records)
    return any(comparison is not None and not comparison.wrong for comparison in found)


def superseded(old: State | None, steps: list[Step]) -> tuple[DeployedEntry, ...]:
    """What the version before has put there and this one does not want, or wants with other content."""
    steps_by_directory = {step.target.directory: step for step in steps}
    found = []
    for entry in old.ours() if old else ():
        step = steps_by_directory.get(entry.directory)
        if step is None or (step.outcome.action == "restored" and _content(entry) != _content(step.target)):
            found.append(entry)
    return tuple(dict.fromkeys(found))


def _content(entry: DeployedEntry) -> set[tuple[str, str]]:
    return {(file.path, file.sha256) for file in entry.files}
