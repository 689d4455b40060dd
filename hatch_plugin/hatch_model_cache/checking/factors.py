"""The named values in a cache key, of a wheel and of an engine, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hatch_model_cache.checking.changes import Difference
from hatch_model_cache.compile.engines.rule import Rule
from model_cache.wheel.manifest import Entry, Manifest

MODEL = "model.model"


def of_entry(manifest: Manifest, entry: Entry) -> dict[str, str]:
    """The values that went into an entry's key."""
    return {**manifest.factors[entry.factors], **entry.factor_overrides}


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[Difference]:
    """What differs, a whole part that one side does not have as one difference."""
    here, there = (Counter(name.partition(".")[0] for name in side) for side in (ours, theirs))
    one_sided = {part for part, n in (here + there).items() if n > 1 and not (here[part] and there[part])}
    whole = [(p, "given" if here[p] else None, "given" if there[p] else None) for p in sorted(one_sided)]
    ours, theirs = ({n: v for n, v in side.items() if n.partition(".")[0] not in one_sided} for side in (ours, theirs))
    names = [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
    # a part's own hash says nothing that the values in it do not say better
    parents = {name for name in names if any(other.startswith(f"{name}.") for other in names)}
    hashes = {name for name in names if name.endswith(".hash")}
    parents |= {name for name in hashes if any(o.startswith(name.removesuffix("hash")) for o in names if o != name)}
    return whole + [(name, ours.get(name), theirs.get(name)) for name in names if name not in parents]


def another_model(found: Sequence[Difference]) -> bool:
    """Whether the differences are those of a wheel for another model; nothing that could be changed helps then."""
    return {factor for factor, _, _ in found} >= {MODEL, "model.hf_config"}


def objections(
    manifest: Manifest, facts: Mapping[str, object], rules: Sequence[Rule]
) -> Iterator[tuple[Rule, str | None, str | None]]:
    """The rules that speak against a wheel, with the wheel's value and the host's; both None: not recorded.

    Args:
        manifest: of the wheel.
        facts: the host's answers and what is in no key, by name, as in the manifest.
        rules: those of the engine's version.
    """
    ours = {**manifest.host_answers, **manifest.unkeyed}
    several = len({rank for entry in manifest.entries for rank in entry.ranks}) > 1
    for rule in rules:
        if rule.ranks_only and not several:
            continue
        if rule.fact not in ours or rule.fact not in facts:
            yield rule, None, None
        elif ours[rule.fact] != facts[rule.fact]:
            yield rule, _shown(ours[rule.fact]), _shown(facts[rule.fact])


def _shown(value: object) -> str | None:
    return None if value is None or value == "" else str(value)
