"""`index.toml`: what a publisher says of wheels that they cannot say themselves."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from model_cache.errors import UsageError
from model_cache.wheel import small_file
from model_cache.wheel.names import printable

__all__ = ["FILE_NAME", "Note", "read"]

FILE_NAME = "index.toml"
MAX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Note:
    """What is said of one wheel.

    yanked: why installers may not choose it by themselves ("": no reason given), None: they may.
    uploaded: UTC (`2027-01-31T00:00:00Z`). compile_seconds: what a cold compile of this takes, as somebody measured it.
    """

    yanked: str | None = None
    uploaded: str | None = None
    compile_seconds: int | None = None


def read(directory: Path, wheels: Collection[str]) -> dict[str, Note]:
    """The notes of `directory`, by file name; none without a file. wheels: the file names that are there.

    Raises UsageError with every problem and its TOML path.
    """
    path = directory / FILE_NAME
    if not small_file.mode(path):
        return {}
    try:
        document = tomllib.loads(small_file.read(path, MAX_BYTES).decode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: is not valid TOML: {printable(str(error))}") from None
    problems = [f"{key}: is not known; only `wheels` is" for key in document if key != "wheels"]
    table = document.get("wheels", {})
    if not isinstance(table, dict):
        problems.append("wheels: must be a table")
        table = {}
    notes = {}
    for file, said in table.items():
        where = f'wheels."{file}"'
        if file not in wheels:
            problems.append(f"{where}: there is no such wheel in {directory}")
        elif not isinstance(said, dict):
            problems.append(f"{where}: must be a table")
        else:
            found = list(_problems(said))
            problems += [f"{where}.{problem}" for problem in found]
            notes[file] = Note() if found else _note(said)
    if problems:
        raise UsageError(f"{path}: is not right", [printable(problem) for problem in problems])
    return notes


def _problems(said: Mapping[str, object]) -> Iterator[str]:
    for key, value in said.items():
        if key == "yanked":
            if not isinstance(value, bool) and not (isinstance(value, str) and printable(value) == value):
                yield "yanked: must be true, false, or the reason in one line"
        elif key == "uploaded":
            if not isinstance(value, datetime) or value.tzinfo is None:
                yield "uploaded: must be a time with its offset: 2027-01-31T00:00:00Z"
        elif key == "compile-seconds":
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 10**9:
                yield "compile-seconds: must be a positive number without a point"
        else:
            yield f"{key}: is not known; yanked, uploaded and compile-seconds are"


def _note(said: Mapping[str, object]) -> Note:
    yanked, uploaded, seconds = said.get("yanked", False), said.get("uploaded"), said.get("compile-seconds")
    assert seconds is None or isinstance(seconds, int)
    return Note(
        yanked=("" if yanked is True else str(yanked)) if yanked is not False else None,
        uploaded=f"{uploaded.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" if isinstance(uploaded, datetime) else None,
        compile_seconds=seconds,
    )
