"""docs/key-factors.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from .configurations import BASE, NOT_TRIED
from .row import Row

SHOWN = 4
HEAD = ("| change | predicted | engine | differing factors | advice | start |", "|---|---|---|---|---|---|")


def document(rows: Sequence[Row], wrong: Sequence[str]) -> str:
    """The whole file."""
    started = [row for row in rows if row.started is not None]
    advised = [row for row in rows if row.advised is not None]
    counts = Counter(str(row.verdict.answer) for row in rows if row.verdict)
    parts = list(dict.fromkeys(row.configuration.part for row in rows))
    lines = [
        "# What changes the engine's key",
        "",
        "Written by `make key-factors`; do not edit. vLLM 0.33.0 under a pretended GPU, tiny Llama, one rank's key.",
        "",
        f"The base wheel is built for `vllm serve {' '.join(BASE.arguments[:-1])}` on an H100.",
        "Each row changes one thing (the last part: two). *Predicted* is the verdict of `model-cache check`; *engine*",
        "is what vLLM's own look-up then did with the wheel in its cache: loaded it, or did not find it. *Advice* is",
        "what `check` says; a flag, a variable or a name was applied, and ✓ says that it led back to the",
        "wheel's key. *Start* is a real `vllm serve`: warm (all loaded, nothing compiled) or cold.",
        "",
        f"{len(rows)} configurations: {', '.join(f'{n} {name}' for name, n in sorted(counts.items()))}.",
        f"Real starts: {len(started)}. Advice applied: {len(advised)}. **Wrong predictions: {len(wrong)}.**",
    ]
    for part in parts:
        lines += ["", f"## {part[0].upper()}{part[1:]}", ""]
        lines += HEAD
        lines += [line(row) for row in rows if row.configuration.part == part]
    lines += ["", "## Not tried here", ""]
    lines += [f"- {what}: {why}." for what, why in NOT_TRIED]
    if wrong:
        lines += ["", "## Wrong", "", *(f"- {problem}" for problem in wrong)]
    return "\n".join(lines) + "\n"


def line(row: Row) -> str:
    """One row of the table."""
    if row.verdict is None:
        return f"| {_cell(row.configuration.title)} | ? | {_cell(row.error or '')} | | | |"
    factors = [f"`{reason.factor}`" for reason in row.reasons]
    changes = list(dict.fromkeys(reason.change for reason in row.reasons if reason.change))
    advice = _some(changes) + (" ✓" if row.advised is True else "")
    start = {None: "", True: "warm", False: "cold"}[row.started]
    title = row.configuration.title
    if row.configuration.against is not None:
        title += f" (against {row.configuration.against})"
    cells = [title, str(row.verdict.answer), row.engine, _some(factors), advice, start]
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _some(items: Sequence[str]) -> str:
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ("; ".join(items[:SHOWN]) + more).strip()


def _cell(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1].replace('\\"', '"').replace("\\\\", "\\").replace("|", "\\|")
