"""docs/selfcheck.md from what was found."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

HEAD = """# Kernels checked without a GPU

Written by `make selfcheck` and `make mutation` (tests/kernels/run.py). What the words mean, and what they do not say:
[guides/check-kernels.md](guides/check-kernels.md). Nothing here was run on a GPU.

"""

MODELS = """The seconds are those of two cores that others used as well. Nobody had looked at the kernels of the last
three models when the tolerances were set, and none was changed for them; OPT and Nemotron-H have two instructions on
pairs of bfloat16 that the PTX interpreter had to learn. The kernels of Llama in fp8 and W4A16 for the H100 have shown
two limits that were too narrow: for a float8 that both runs round, and for an element that is larger than its row.
"""

CHANGED = """One constant or operator of one kernel of the tiny Llama for the H100 is changed at a time. What the gate
lets pass is compared with the unchanged kernel bit by bit. Where no bit differs, the reason is found by doing worse, or
by watching what the changed instruction gives (tests/kernels/reasons.py).
"""

GENERATED = ("triton_poi_", "triton_red_", "triton_per_")
"""How Inductor's pointwise kernels and reductions are called."""

ENOUGH = 0.9
"""Of those, the share that is to be ptx-checked and cubin-derived."""

SECONDS = 180
"""The whole check of the tiny Llama is to take less."""


def document(reports: Mapping[tuple[str, str], Any], mutation: Mapping[str, Any] | None) -> str:
    """The whole page."""
    parts = [*_table(reports), *_unchecked(reports), *_cut(reports), *_mutation(mutation)]
    return HEAD + "\n".join(parts).rstrip("\n") + "\n"


def _table(reports: Mapping[tuple[str, str], Any]) -> Iterator[str]:
    yield "## Models\n"
    names = ("kernels", "source-checked", "ptx-checked", "cubin-derived", "unchecked", "failed")
    yield f"| model | GPU | {' | '.join(names)} | pointwise and reductions, PTX and cubin | seconds |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for (row, column), report in reports.items():
        cells = " | ".join(str(report["counts"][name]) for name in names)
        done, every = _generated(report)
        yield f"| {row} | {column} | {cells} | {done} of {every} ({done / every:.0%}) | {report['seconds']} |"
    yield f"\n{MODELS}"


def _generated(report: Mapping[str, Any]) -> tuple[int, int]:
    """How many pointwise kernels and reductions are ptx-checked and cubin-derived, and how many there are."""
    mine = [kernel for kernel in report["kernels"] if kernel["name"].startswith(GENERATED)]
    return sum({"ptx-checked", "cubin-derived"} <= {*kernel["passed"]} for kernel in mine), len(mine)


def shortfall(reports: Mapping[tuple[str, str], Any]) -> int:
    """1, and a line for each cell, if kernels have failed, too few are checked, or the check has taken too long."""
    short = [
        f"{row}, {column}: {done} of {every} pointwise kernels and reductions, {failed} kernels failed, {seconds} s"
        for (row, column), report in reports.items()
        for (done, every), failed, seconds in [(_generated(report), report["counts"]["failed"], report["seconds"])]
        if failed or done < ENOUGH * every or (row == "Llama" and seconds >= SECONDS)
    ]
    print(*short, sep="\n", file=sys.stderr, end="\n" if short else "")
    return int(bool(short))


def _unchecked(reports: Mapping[tuple[str, str], Any]) -> Iterator[str]:
    """Every kernel that has not passed all gates."""
    yield "## What is not checked\n"
    lines = [
        f"- {row}, {column}: `{kernel['name']}`: {gate}: {why}"
        for (row, column), report in reports.items()
        for kernel in report["kernels"]
        for gate, why in {**kernel["reasons"], **kernel["failures"]}.items()
    ]
    yield from lines or ["Nothing: every kernel passed every gate."]
    yield ""


def _cut(reports: Mapping[tuple[str, str], Any]) -> Iterator[str]:
    """Library calls that were made up."""
    calls: Counter[tuple[str, str]] = Counter()
    for (row, _), report in reports.items():
        for region in report["regions"]:
            calls.update((row, name) for name in set(region["cut"]))
    if calls:
        yield "## Library calls\n"
        yield "No CPU can run them, and they are no kernels of the wheel. What goes into one is compared, what comes"
        yield "out of it is made up, the same for both sides.\n"
        yield from (f"- {row}: `{name}`, in {count} regions" for (row, name), count in calls.items())
        yield ""


def _mutation(mutation: Mapping[str, Any] | None) -> Iterator[str]:
    if mutation is None:
        return
    yield "## What the gates catch\n"
    yield CHANGED
    yield "| changed | changes | caught | not caught, no bit differs | not caught, bits differ |"
    yield "|---|---|---|---|---|"
    for kind, title in (("source", "Triton source"), ("ptx", "PTX")):
        found = mutation[kind]
        missed = [one for one in found if not one["told"]]
        same = sum(1 for one in missed if one["same"])
        yield f"| {title} | {len(found)} | {len(found) - len(missed)} | {same} | {len(missed) - same} |"
    yield ""
    for kind, title in (("source", "source"), ("ptx", "PTX")):
        missed = [one for one in mutation[kind] if not one["told"]]
        yield from _listed(f"### Passed, though bits differ: {title}\n", [one for one in missed if not one["same"]])
        for why in sorted({one["why"] for one in missed if one["same"]}):
            yield from _listed(
                f"### No bit differs: {title}\n\n{why.capitalize()}:\n", [one for one in missed if one["why"] == why]
            )


def _listed(title: str, found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not found:
        return
    yield title
    counted = Counter((one["what"], one["line"]) for one in found)
    yield from (f"- {what} in `{line}`" + (f" ({n} times)" if n > 1 else "") for (what, line), n in counted.items())
    yield ""
