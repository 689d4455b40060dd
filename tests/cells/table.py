"""docs/coverage.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from .cell import Answer
from .rows import GPUS, OLDER, Column, Row

Answers = Mapping[tuple[str, str], Answer | None]


def document(rows: Sequence[Row], answers: Answers) -> str:
    """The whole file. answers: by the row's name and the column's title."""
    found = list(answers.values())
    hits = sum(answer is not None and answer.hit for answer in found)
    refused = sum(answer is not None and not answer.hit for answer in found)
    missing = sum(answer is None for answer in found)
    lines = [
        "# What can be compiled, for which GPU",
        "",
        "Written by `make coverage`; do not edit. Every cell is run on the real engine, with a pretended GPU and no",
        f"weights: vLLM {GPUS['H100'].vllm}. Configurations are shrunk in depth and width, never in kind",
        "(`tests/cells/rows.toml`).",
        "",
        "**hit**: compiled from a recipe, packed, installed with uv, deployed, and loaded by a second, fresh and",
        "unmodified `vllm serve`, in every rank, with 0 Inductor compiles and 0 ptxas runs. In brackets: the compiled",
        "models if not just the backbone, the ranks if there is more than one, and the number of GPU kernels.",
        "It does not show that the kernels are right or fast: nothing runs. **refused**: why, in the notes.",
        "The engine is imported once for many compiles, which are forked; it is started anew for every load.",
        "",
        f"{len(found)} cells: {hits} hits, {refused} refused, {missing} not run yet.",
    ]
    notes: list[str] = []
    for part in dict.fromkeys(row.part for row in rows):
        lines += _section(part, [row for row in rows if row.part == part], GPUS, answers, notes)
    if older := [row for row in rows if OLDER.keys() <= row.columns.keys()]:
        lines += _section("Older versions of the engine, for the H100", older, OLDER, answers, notes)
    if notes:
        lines += ["", "## Refused because", "", *(f"{number}. {note}" for number, note in enumerate(notes, 1))]
    return "\n".join(lines) + "\n"


def _section(
    title: str, rows: Sequence[Row], columns: Mapping[str, Column], answers: Answers, notes: list[str]
) -> Iterator[str]:
    yield from ("", f"## {title}", "", f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|")
    for row in rows:
        cells = [_cell(row, answers[row.name, column], notes) for column in columns]
        yield f"| {row.title} | {' | '.join(cells)} |"


def _cell(row: Row, answer: Answer | None, notes: list[str]) -> str:
    if answer is None:
        return "not run yet"
    if not answer.hit:
        reason = re.sub(r"^\S+ rank \d+: ", "", answer.refused)  # of which target stands in the table
        note = f"{row.title} ({answer.stage}): {reason}"
        if note not in notes:
            notes.append(note)
        return f"refused ({notes.index(note) + 1})"
    models = [] if answer.prefixes == ["backbone"] else [", ".join(answer.prefixes)]
    ranks = [f"{answer.ranks} ranks"] if answer.ranks > 1 else []
    return f"hit ({'; '.join([*models, *ranks, str(answer.kernels)])})"
