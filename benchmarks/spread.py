"""Some runs of one thing, summed up."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def of(values: Sequence[float], digits: int = 2) -> dict[str, float]:
    """Median, lowest and highest of them."""
    found = {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
    return {name: round(value, digits) for name, value in found.items()}


def text(found: dict[str, float], digits: int = 1) -> str:
    """Such a summary in a table: "median (lowest–highest)"."""
    median, lowest, highest = (f"{found[name]:,.{digits}f}" for name in ("median", "lowest", "highest"))
    return f"{median} ({lowest}–{highest})"
