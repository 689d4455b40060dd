"""What a deploy has to do to each entry, decided from what is in the cache root and who put it there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from model_cache.errors import ModelCacheError
from model_cache.store import staging
from model_cache.store.root import Root
from model_cache.store.state import DeployedEntry, DeployedFile, State
from model_cache.wheel import parallel
from model_cache.wheel.manifest import Entry
from model_cache.wheel.verify import Deadline, Verified

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
class Outcome:
    """What a deploy did, or would do (dry_run). bytes_written: of the entries that were written.

    removed: entries of another version that are gone; left: files in there that are not ours, relative to the root.
    previous: the version that is kept for a rollback; replaced: the one that was deployed until now, "" if it was this
    very wheel or none; notes: what is to be said about the place, one line each.
    """

    name: str
    version: str
    targets: tuple[str, ...]
    entries: tuple[EntryOutcome, ...]
    bytes_written: int = 0
    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    dry_run: bool = False
    previous: str | None = None
    replaced: str = ""
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether the cache root is another one than before."""
        return bool(self.replaced or self.removed) or any(entry.action in WRITES for entry in self.entries)

    @property
    def occupied(self) -> tuple[str, ...]:
        """The entries that are not there, because something else is in their places."""
        return tuple(e.directory for e in self.entries if e.action == "kept" and e.note not in ("", SAME))


class OccupiedError(ModelCacheError):
    """Somebody who asked for a wheel by its name did not get all of it: other files are in its places."""

    kind = "occupied"

    def __init__(self, outcome: Outcome, root_path: str) -> None:
        super().__init__(
            f"{outcome.name} {outcome.version}: {len(outcome.occupied)} of {len(outcome.entries)} entries are not "
            f"deployed: another wheel's or the engine's files are in their places in {root_path}, and stay; "
            "`model-cache remove` that wheel or move them away, then deploy again",
            outcome.occupied,
        )


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
    def size(self) -> int:
        """Bytes that are written for it."""
        return sum(file.size for file in self.target.files if not file.link) if self.writes else 0

    @property
    def parent(self) -> str:
        return self.entry.directory.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.entry.directory.rpartition("/")[2]


@dataclass(frozen=True)
class Adopted(Entry):
    """An entry under another key than the wheel's: that of an engine with other weights of the same model.

    source: the directory of the manifest's entry whose files it has.
    """

    source: str

    @classmethod
    def of(cls, entry: Entry, directory: str) -> Adopted:
        """`entry` as it is to be in `directory`."""
        moved = {**vars(entry), "directory": directory, "key": directory.rpartition("/")[2]}
        return cls(**moved, source=entry.directory)


def wanted(
    verified: Verified, targets: tuple[str, ...], old: State | None = None, adopted: Sequence[Adopted] = ()
) -> list[Entry]:
    """The entries of a wheel that were built for one of `targets`, then `adopted` and what was adopted of it before.

    old: what is deployed; of another version of the wheel, nothing stays adopted.
    """
    same = old is not None and old.manifest_sha256 == verified.manifest_sha256
    sources = {entry.directory: entry for entry in verified.manifest.entries}
    before = [
        Adopted.of(sources[entry.adopted], entry.directory)
        for entry in (old.entries if old and same else ())
        if entry.adopted in sources
    ]
    entries = {entry.directory: entry for entry in (*verified.manifest.entries, *before, *adopted)}
    return [entry for entry in entries.values() if entry.target in targets]


Links = Mapping[str, Mapping[str, str]]
"""Entry directory → path of a file in it → what it shall be a link to."""


def as_deployed(entry: Entry, links: Mapping[str, str] | None = None, *, ours: bool = True) -> DeployedEntry:
    """`entry` as a state notes it, before it is in place."""
    links = links or {}
    read = tuple(DeployedFile(file.path, file.sha256, file.size, link=links.get(file.path, "")) for file in entry.files)
    return DeployedEntry(entry.directory, ours, read, entry.source if isinstance(entry, Adopted) else "")


def make(
    root: Root, entries: Sequence[Entry], old: State | None, deadline: Deadline, links: Links | None = None
) -> list[Step]:
    """Decide about every wanted entry. old: what the last deploy of this wheel has noted; links: of an overlay.

    Raises LinkError when a link stands in the way.
    """
    size = sum(file.size for entry in entries for file in entry.files)
    return list(parallel.each(lambda entry: _step(root, entry, old, deadline, links), entries, size))


def _step(root: Root, entry: Entry, old: State | None, deadline: Deadline, links: Links | None) -> Step:
    here = links.get(entry.directory, {}) if links is not None else _links_of(old, entry)
    target = as_deployed(entry, here)
    found = staging.compare(root, entry.directory, target.files, deadline)
    if links is None and here and (found is None or found.wrong):
        # An overlay that is damaged is mended with copies: where it leads to may be gone.
        target = as_deployed(entry)
        found = staging.compare(root, entry.directory, target.files, deadline)
    if found is None:
        return Step(entry, target, EntryOutcome(entry.directory, "deployed"))
    if _is_ours(root, target, old, same=not found.wrong, deadline=deadline):
        action = "restored" if found.wrong or _forgotten(target, old) else "unchanged"
        return Step(entry, target, EntryOutcome(entry.directory, action), True, found.wrong)
    if found.missing and not found.changed:
        # Somebody has the directory (an engine that was stopped, or what a removal had to leave) but none of its
        # files differs from ours: adding what is missing takes nothing away.
        return Step(entry, target, EntryOutcome(entry.directory, "deployed"), True, found.wrong)
    return kept(entry, OTHER if found.changed else SAME)


def _links_of(old: State | None, entry: Entry) -> dict[str, str]:
    """What the files of an entry are links to, when an overlay has put it there as it is wanted."""
    found = old.entry(entry.directory) if old else None
    listed = {(file.path, file.sha256) for file in entry.files}
    if found is None or any((file.path, file.sha256) not in listed for file in found.files):
        return {}
    return {file.path: file.link for file in found.files if file.link}


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


def _forgotten(target: DeployedEntry, old: State | None) -> bool:
    """Whether another version has put a file into the same directory that is not wanted any more."""
    listed = {file.path for file in target.files}
    entries = [entry for entry in (old.ours() if old else ()) if entry.directory == target.directory]
    return any(file.path not in listed for entry in entries for file in entry.files)


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
