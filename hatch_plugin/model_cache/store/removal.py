"""Take away from a cache root what deploy has put there, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from model_cache.store import files, hints, kept, leftovers, staging, state
from model_cache.store.files import system_errors
from model_cache.store.root import Root
from model_cache.store.state import State
from model_cache.wheel.verify import Deadline


@dataclass(frozen=True)
class Removal:
    """What a removal did, or would do.

    removed: entry directories; left: files that are not ours; kept: entries that never were ours.
    """

    name: str
    version: str
    removed: tuple[str, ...]
    left: tuple[str, ...]
    kept: tuple[str, ...]


def remove(name: str, root_path: str, deadline: Deadline | None = None, *, dry_run: bool = False) -> Removal:
    """Take away what deploy has put into the root for wheel `name`; it need not be installed any more.

    dry_run: look at everything, change nothing.
    Raises NotFoundError when it is not deployed there, ModelCacheError when the place cannot be written to.
    """
    deadline = deadline or Deadline()
    with system_errors(root_path), Root.open(root_path, judge=not dry_run) as root:
        found = state.require(root, name)
        if dry_run:
            gone = {file.path for file in found.hints}
            seen = (path for entry in found.ours() for path in staging.would_leave(root, entry, deadline))
            left = [path for path in seen if path not in gone]
        else:
            found, left = _take_away(root, name, deadline)
    return Removal(
        name=found.name,
        version=found.version,
        removed=tuple(entry.directory for entry in found.ours()),
        left=tuple(left),
        kept=tuple(entry.directory for entry in found.entries if not entry.ours),
    )


def _take_away(root: Root, name: str, deadline: Deadline) -> tuple[State, list[str]]:
    """What was deployed, and which files stay."""
    with root.lock(deadline):
        found = state.require(root, name)
        leftovers.clean(root, found.ours())
        note(root, found.in_phase("removing"))
        hints.take_away(root, found.name, found.hints)  # first: some lie in the directories of entries
        left = [path for entry in found.ours() for path in staging.take_away(root, entry, deadline)]
        kept.drop(root, name)
        state.delete(root, name)
        root.prune()
    return found, left


def note(root: Root, found: State) -> None:
    """Record what is about to be taken away. On a full disk it goes without: what is killed then is begun again."""
    try:
        state.save(root, found)
    except OSError as error:
        if error.errno not in files.FULL:
            raise
