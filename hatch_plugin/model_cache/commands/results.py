"""What a command of the serving side answers with, and what all of them share when they make it."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from model_cache.errors import DamagedError, MismatchError, ModelCacheError, NotFoundError, NotTrustedError
from model_cache.wheel.names import printable

if TYPE_CHECKING:
    from model_cache.wheel.verify import Progress

NONE_INSTALLED = "no model cache wheel is installed in this Python environment"


class Result(NamedTuple):
    """data: for `--json`; lines: for people; error: when the command has failed after all."""

    data: dict[str, Any]
    lines: Sequence[str] = ()
    error: ModelCacheError | None = None


def joined(errors: Sequence[ModelCacheError]) -> ModelCacheError | None:
    """One error for all: its kind is that of the worst (damage before refusal before absence before the rest)."""
    if len(errors) < 2:
        return errors[0] if errors else None
    worst = min(errors, key=lambda error: {3: 0, 7: 1, 4: 2, 5: 3}.get(error.exit_code, 4))
    kinds = {3: DamagedError, 4: MismatchError, 5: NotFoundError, 7: NotTrustedError}
    problems = [line.strip().removeprefix("- ") for error in errors for line in str(error).splitlines()]
    return kinds.get(worst.exit_code, ModelCacheError)(f"{len(errors)} wheels failed", problems)


def unless_quiet(options: Namespace, lines: Sequence[str]) -> Sequence[str]:
    """`lines`, or none with `--quiet`."""
    return [] if options.quiet else lines


def progress(options: Namespace, label: str) -> Progress | None:
    """What shows on a terminal how far the work is; None where nobody looks."""
    if options.quiet or options.json or not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        sys.stderr.write(f"\r{label}: {human(done)} of {human(total)}{end}")
        sys.stderr.flush()

    return show


def human(size: int) -> str:
    """A number of bytes for people."""
    from model_cache.store import files

    return files.human(size)


def table(rows: Sequence[tuple[str, ...]]) -> Sequence[str]:
    """Rows of cells as lines with columns below each other."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]
