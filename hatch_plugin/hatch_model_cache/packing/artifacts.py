"""The artifact directory: what a compile leaves and pack takes.

DIR/artifacts.json   the manifest without name and version, and the place of every file
DIR/files/…          each distinct file once
DIR/evidence/…       what kernels were made from, by SHA-256, if the recipe keeps it
DIR/logs/…           the engine's logs; never packed
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_cache.errors import DamagedError, NotFoundError
from model_cache.wheel.manifest import MAX_BYTES, SCHEMA_VERSION, Entry, File, Manifest, from_dict
from model_cache.wheel.names import unsafe_path
from model_cache.wheel.strict_json import loads

__all__ = ["EVIDENCE", "FILES", "FILE_NAME", "LOGS", "Artifacts", "from_document", "read", "write"]

FILE_NAME = "artifacts.json"
FILES = "files"
EVIDENCE = "evidence"
LOGS = "logs"

# A manifest must have both; an artifact directory has neither, since only the project knows them.
_UNNAMED = {"name": "model-cache-unnamed", "version": "0"}


@dataclass(frozen=True)
class Artifacts:
    """An artifact directory with a well-formed description. Its files are not read yet: `pack` does that."""

    directory: Path
    recipe_digest: str
    contents: Manifest
    """Everything the manifest will say, under a provisional name and version."""
    sources: Mapping[tuple[str, str], str]
    """(entry's directory, file's path in it) -> path in the artifact directory, `files/…`."""

    def files(self) -> Iterator[tuple[Entry, File, str]]:
        """Every file of every entry with its source."""
        for entry in self.contents.entries:
            for file in entry.files:
                yield entry, file, self.sources[entry.directory, file.path]

    def texts(self) -> dict[str, str]:
        """Path in the artifact directory → SHA-256 of every text that the wheel is to keep; empty if it keeps none."""
        if not (self.directory / EVIDENCE).is_dir():
            return {}
        return {f"{EVIDENCE}/{digest}": digest for digest in self.contents.texts()}

    def path(self, source: str) -> Path:
        """Where a source lies."""
        return self.directory / source


def read(directory: Path | str) -> Artifacts:
    """Read the description of the artifact directory `directory`.

    Raises NotFoundError when there is none, DamagedError with every problem when it is wrong.
    """
    directory = Path(directory)
    path = directory / FILE_NAME
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            f"{directory} is no artifact directory: it holds no {FILE_NAME}. "
            "`model-cache compile RECIPE_DIR --out DIR` makes one."
        ) from None
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
    return from_document(loads(data, str(path), MAX_BYTES), directory)


def write(directory: Path | str, document: Mapping[str, Any]) -> Artifacts:
    """Check `document` and write it as the description of `directory`, whose files/ are in place already.

    The description appears whole or not at all. Raises DamagedError with every problem found.
    """
    directory = Path(directory)
    artifacts = from_document(dict(document), directory)
    text = json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    temporary = directory / f".{FILE_NAME}.tmp"
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, directory / FILE_NAME)  # noqa: PTH105
    return artifacts


def from_document(document: object, directory: Path) -> Artifacts:
    """Check a parsed artifacts.json. Raises DamagedError with every problem found."""
    what = str(directory / FILE_NAME)
    if not isinstance(document, dict):
        raise DamagedError(f"{what}: must hold a JSON object")
    problems: list[str] = []
    plain: dict[str, Any] = {key: value for key, value in document.items() if key != "recipe_digest"}
    problems += [f"{key}: unknown field" for key in _UNNAMED if plain.pop(key, None) is not None]
    digest = document.get("recipe_digest")
    build = document.get("build")
    if not isinstance(digest, str):
        problems.append("recipe_digest must be a string")
    elif isinstance(build, dict) and build.get("recipe_digest") != digest:
        problems.append("build.recipe_digest differs from recipe_digest")
    plain["entries"], sources = _without_sources(document.get("entries"), problems)
    try:
        manifest = from_dict({**plain, **_UNNAMED}, what)
    except DamagedError as error:
        if document.get("schema_version") != SCHEMA_VERSION:
            raise
        problems += error.problems
    if problems:
        raise DamagedError(f"{what}: does not describe artifacts", problems)
    assert isinstance(digest, str)
    return Artifacts(directory, digest, manifest, sources)


def _without_sources(entries: object, problems: list[str]) -> tuple[object, dict[tuple[str, str], str]]:
    """The entries as a manifest has them, and the sources; other malformed things are left to `from_dict`."""
    sources: dict[tuple[str, str], str] = {}
    if not isinstance(entries, list):
        return entries, sources
    plain = []
    for i, entry in enumerate(entries):
        files = entry.get("files") if isinstance(entry, dict) else None
        if not isinstance(files, list):
            plain.append(entry)
            continue
        bare = []
        for j, file in enumerate(files):
            if not isinstance(file, dict):
                bare.append(file)
                continue
            bare.append({key: value for key, value in file.items() if key != "source"})
            source = file.get("source")
            reason = _source_problem(source)
            if reason:
                problems.append(f"entries[{i}].files[{j}].source {reason}")
            sources[str(entry.get("directory")), str(file.get("path"))] = str(source)
        plain.append({**entry, "files": bare})
    return plain, sources


def _source_problem(source: object) -> str | None:
    if not isinstance(source, str):
        return "must be a string"
    reason = unsafe_path(source)
    if reason:
        return f"{source!r:.80} {reason}"
    return None if source.startswith(f"{FILES}/") else f"{source!r:.80} is not in {FILES}/"
