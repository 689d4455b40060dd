"""docs/coverage.json: the answers of the table, so that a fresh clone goes on where another one was."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from .cell import Answer
from .rows import Row

Place = tuple[str, str]
"""A row's name and a column's title."""


@dataclass(frozen=True)
class Answers:
    """The file, which several processes may write to at a time."""

    path: Path

    def read(self, rows: Sequence[Row]) -> dict[Place, Answer | None]:
        """The answer of every cell; None for one that was not run yet, or since when its row or its target changed."""
        kept = self._kept()
        found: dict[Place, Answer | None] = {}
        for row in rows:
            for title, column in row.columns.items():
                answer = dict(kept.get(title, {}).get(row.name, {}))
                current = answer.pop("digest", None) == row.digest(column.target)
                found[row.name, title] = Answer(**answer) if current else None
        return found

    def keep(self, row: Row, title: str, answer: Answer) -> None:
        """Write an answer down. title: of the column."""
        with self._alone():
            kept = self._kept()
            kept.setdefault(title, {})[row.name] = {
                "digest": row.digest(row.columns[title].target),
                **{name: value for name, value in asdict(answer).items() if value != _DEFAULTS[name]},
            }
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")
            new.replace(self.path)

    def _kept(self) -> Mapping[str, dict[str, Any]]:
        """Column → row → digest and answer."""
        found: dict[str, dict[str, Any]] = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
        return found

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        descriptor = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


_DEFAULTS = {
    one.name: one.default if one.default is not MISSING else one.default_factory()  # type: ignore[misc]
    for one in fields(Answer)
}
