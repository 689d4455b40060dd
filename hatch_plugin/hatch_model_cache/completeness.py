"""Whether a manifest has an entry for every served name, target and rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from model_cache.manifest import Entry, Manifest

# vllm 0.33.0, vllm/config/parallel.py: world_size is the product of the first three; a rank's directory is
# rank_<rank>_<data parallel rank>.
_WORLD = (
    ("--tensor-parallel-size", "-tp"),
    ("--pipeline-parallel-size", "-pp"),
    ("--prefill-context-parallel-size", "-pcp"),
)
_DATA = ("--data-parallel-size", "-dp")


def missing_parts(manifest: Manifest) -> list[str]:
    """What the serving host would look for and not find, one line each."""
    ranks = set(expected_ranks(manifest.serve.arguments))
    for entry in manifest.entries:
        ranks.update(entry.ranks)
    problems = []
    for target, served in product(manifest.targets, manifest.model.served_as):
        where = f"served name {served!r} on {target.name}"
        ours = [entry for entry in manifest.entries if entry.target == target.name]
        mine = [entry for entry in ours if entry.served_as == served]
        if not mine:
            problems.append(f"{where}: no entry")
            continue
        for component, prefix in sorted({(entry.component, entry.prefix) for entry in ours if entry.ranks}):
            found = {
                rank for entry in mine if (entry.component, entry.prefix) == (component, prefix) for rank in entry.ranks
            }
            if ranks - found:
                label = f"{component} {prefix}".strip()
                problems.append(f"{where}: {label} has no rank {', '.join(_sorted(ranks - found))}")
    return problems + [problem for entry in manifest.entries for problem in _empty_ranks(entry)]


def expected_ranks(arguments: Sequence[str]) -> list[str]:
    """The ranks that an engine started with `arguments` has: `0_0`, `1_0`, … (rank, data parallel rank)."""
    world = 1
    for names in _WORLD:
        world *= _size(arguments, names)
    return [f"{rank}_{data}" for data in range(_size(arguments, _DATA)) for rank in range(world)]


def _size(arguments: Sequence[str], names: Iterable[str]) -> int:
    """The value of a parallel size, 1 when it is absent; the last one given wins, as in argparse."""
    size = 1
    for index, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        flag = flag.replace("_", "-") if argument.startswith("--") else flag
        if flag in names:
            text = value if equals else "".join(arguments[index + 1 : index + 2])
            size = int(text) if text.isdecimal() else size
    return max(size, 1)


def _empty_ranks(entry: Entry) -> list[str]:
    """Ranks of a vLLM entry without a file of their own."""
    if not entry.component.startswith("vllm-"):
        return []
    return [
        f"{entry.directory}: lists rank {rank} and has no file in rank_{rank}/"
        for rank in entry.ranks
        if not any(file.path.startswith(f"rank_{rank}/") for file in entry.files)
    ]


def _sorted(ranks: Iterable[str]) -> list[str]:
    return sorted(ranks, key=lambda rank: [int(part) for part in rank.split("_")])
