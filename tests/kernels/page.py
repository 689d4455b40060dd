"""docs/selfcheck.md from what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

HEAD = """# Kernels checked without a GPU

Written by `make selfcheck` and `make mutation` (tests/kernels/run.py). What the words mean, and what they do not say:
[guides/check-kernels.md](guides/check-kernels.md). Nothing here was run on a GPU.

"""

CHANGED = """One constant or operator of one kernel of the tiny Llama for the H100 is changed at a time. What the gate
lets pass is compared with the unchanged kernel bit by bit. Where no bit differs, the change is one of: a value that is
written over or masked away before it is used; bits that an aligned or bounded value never has; the wrapping of
negative indices, or the very edge of an assertion's bound, neither of which is fed; a barrier that only keeps an
assertion apart. Where bits differ and the gate lets it pass, an epsilon is changed in a norm whose input is never tiny.
"""


def document(reports: Mapping[tuple[str, str], Any], mutation: Mapping[str, Any] | None) -> str:
    """The whole page."""
    parts = [*_table(reports), *_unchecked(reports), *_cut(reports), *_mutation(mutation)]
    return HEAD + "\n".join(parts).rstrip("\n") + "\n"


def _table(reports: Mapping[tuple[str, str], Any]) -> Iterator[str]:
    yield "## Models\n"
    yield "| model | GPU | kernels | source-checked | ptx-checked | cubin-derived | unchecked | failed | seconds |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for (row, column), report in reports.items():
        counts = report["counts"]
        cells = [
            counts[name]
            for name in ("kernels", "source-checked", "ptx-checked", "cubin-derived", "unchecked", "failed")
        ]
        yield f"| {row} | {column} | {' | '.join(map(str, cells))} | {report['seconds']} |"
    yield ""


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
        for same, told in ((False, "Passed, though bits differ"), (True, "Passed, and no bit differs")):
            yield from _listed(
                f"### {told}: {title}\n", [o for o in mutation[kind] if not o["told"] and o["same"] is same]
            )


def _listed(title: str, found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not found:
        return
    yield title
    counted = Counter((one["what"], one["line"]) for one in found)
    yield from (f"- {what} in `{line}`" + (f" ({n} times)" if n > 1 else "") for (what, line), n in counted.items())
    yield ""
