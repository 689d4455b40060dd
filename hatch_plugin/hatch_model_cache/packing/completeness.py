"""Whether a manifest has an entry for every served name, target and rank."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from hatch_model_cache.compile import engines
from model_cache.wheel.manifest import Entry, Manifest


def missing_parts(manifest: Manifest) -> list[str]:
    """What the serving host would look for and not find, one line each."""
    if manifest.engine.name not in engines.NAMES:
        return [f"engine {manifest.engine.name!r}: what it looks for is not known; there is {', '.join(engines.NAMES)}"]
    ranks = set(engines.adapter(manifest.engine.name).expected_ranks(manifest.serve.arguments))
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
