"""What killed deploys and removals have left unfinished in a cache root: deleted, but for what is the engine's."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress

from model_cache.store import files, staging
from model_cache.store.root import SWAP, TEMPORARY, Root, of_this_system, swapped
from model_cache.store.state import DeployedEntry, parents

FOREIGN_SECONDS = 3600.0


def clean(root: Root, entries: Iterable[DeployedEntry]) -> int:
    """Delete what dead deployers have left beside `entries` and in our own directory; how many such things.

    Under a lock that works, whatever this system has left there is dead. What another system that shares the file
    system has left, where locks may not reach, must be an hour old. A directory that was being swapped may hold files
    that the engine has added: they go back to their place first.
    """
    known: dict[str, set[str]] = {}
    for entry in entries:
        known.setdefault(entry.directory, set()).update(file.path for file in entry.files)
    count = 0
    for folder in parents(known):
        with suppress(FileNotFoundError), files.opened(root.descriptor, folder) as directory:
            for name in sorted(os.listdir(directory)):
                if name.startswith(TEMPORARY) and is_dead(root, directory, name):
                    count += _clear(directory, name, folder, known)
    return count


def _clear(directory: int, name: str, folder: str, known: dict[str, set[str]]) -> bool:
    with suppress(FileNotFoundError):
        if SWAP in name:
            places = [place for place in known if place.rpartition("/")[0] == folder]
            place = next((p for p in places if swapped(name, p.rpartition("/")[2])), None)
            if place is None:
                return False  # another wheel's: only with its state can be told what in there is the engine's
            staging.give_back(directory, name, place.rpartition("/")[2], known[place])
        else:
            files.remove_tree(directory, name)
        return True
    return False


def is_dead(root: Root, directory: int, name: str) -> bool:
    """Whether nobody works any more on the unfinished thing `name` in an open directory."""
    if root.locked and of_this_system(name):
        return True
    with suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        return time.time() - status.st_mtime > FOREIGN_SECONDS
    return False
