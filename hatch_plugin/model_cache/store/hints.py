"""Small files that an engine judges by itself, from what they hold, and does without: put where their place is free.

They are no part of the switch. Each is there whole or not at all, none takes the place of a file that is not ours, and
one that cannot be written or has gone costs the next start some seconds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256

from model_cache.errors import ModelCacheError
from model_cache.store import files, place, state
from model_cache.store.root import Root, temporary_name
from model_cache.store.state import DeployedFile, State
from model_cache.wheel.consistency import MAX_HINT_BYTES

Hints = tuple[DeployedFile, ...]
"""Paths are relative to the root."""


def wanted(root: Root, name: str, texts: Mapping[str, str], old: State | None) -> Hints:
    """Those of the hints of wheel `name` that are ours, or will be: nobody else has a file in their place.

    texts: path relative to the root → the file's text. old: what is deployed of the wheel.
    """
    ours = {(file.path, file.sha256) for file in (old.hints if old else ())}
    found = (_described(path, text) for path, text in sorted(texts.items()))
    there = ((file, (file.path, _digest(root, file))) for file in found)
    return tuple(file for file, one in there if one[1] is None or one in ours or one in _of_others(root, name))


def settle(root: Root, name: str, texts: Mapping[str, str], hints: Hints, old: State | None) -> None:
    """Have `hints` there and those of the version before gone; a state notes both by now.

    A place that is unfit or full costs a hint, no error. Raises OSError as `take_away`.
    """
    paths = {file.path for file in hints}
    take_away(root, name, tuple(file for file in (old.hints if old else ()) if file.path not in paths))
    for file in hints:
        with suppress(OSError, ModelCacheError):
            if _digest(root, file) != file.sha256:
                _write(root, file.path, texts[file.path].encode())


def take_away(root: Root, name: str, hints: Hints) -> None:
    """Remove `hints` of wheel `name` that are as we wrote them and that no other wheel has put there too.

    Raises OSError: what is still there must stay noted.
    """
    for file in hints:
        folder, _, base = file.path.rpartition("/")
        if _digest(root, file) == file.sha256 and (file.path, file.sha256) not in _of_others(root, name):
            with files.opened(root.descriptor, folder) as directory:
                os.unlink(base, dir_fd=directory)
            _drop_if_empty(root, folder)


def _drop_if_empty(root: Root, folder: str) -> None:
    """Remove the directory of a hint that lay in one of an entry, when nothing else is there; those directly below the
    root are looked after by the root itself."""
    parent, below, name = folder.rpartition("/")
    if below:
        with suppress(OSError), files.opened(root.descriptor, parent) as directory:
            os.rmdir(name, dir_fd=directory)


def _described(path: str, text: str) -> DeployedFile:
    data = text.encode()
    return DeployedFile(path, sha256(data).hexdigest(), len(data))


def _of_others(root: Root, name: str) -> set[tuple[str, str | None]]:
    """Hints of the other wheels here. Reads all their states, so it is asked only where a file is in the way."""
    states, _ = state.load_all(root)
    return {(file.path, file.sha256) for one in states if one.name != name for file in one.hints}


def _digest(root: Root, file: DeployedFile) -> str | None:
    """sha256 of what is in the place of a hint, "" for what cannot be one of ours, None for nothing."""
    folder, _, base = file.path.rpartition("/")
    try:
        with (
            files.opened(root.descriptor, folder) as directory,
            os.fdopen(files.patiently(directory, base, lambda: files.open_regular(directory, base)), "rb") as source,
        ):
            return sha256(source.read(MAX_HINT_BYTES + 1)).hexdigest()
    except FileNotFoundError:
        return None
    except files.LinkError:
        return ""
    except OSError as error:
        if error.errno in files.NOT_REGULAR:
            return ""
        raise


def _write(root: Root, path: str, data: bytes) -> None:
    folder, _, base = path.rpartition("/")
    place.judge_below(root.descriptor, root.path, folder)
    root.note_directories([*root.made_directories(), *root.missing_directories([folder])])
    with root.state_directory() as ours, files.opened(root.descriptor, folder, []) as directory:
        # Unfinished in our own directory: an engine lists this one, and what a kill leaves is deleted there.
        temporary = temporary_name()
        files.write_atomically(ours, temporary, data, temporary_name())
        try:
            os.rename(temporary, base, src_dir_fd=ours, dst_dir_fd=directory)
        except OSError:
            os.unlink(temporary, dir_fd=ours)
            raise
