"""Inside a running engine: which wheel comes nearest to a look-up that finds nothing, and may it be adopted? Does what
it has loaded belong here?

An artifact is adopted when only the name of the weights differs: same config.json, every other factor equal, nothing
that is in no key speaks against it, and the engine's own key under the wheel's name is the wheel's key.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from hatch_model_cache.checking import changes, factors
from hatch_model_cache.compile import engines
from hatch_model_cache.compile.engines.rule import Rule
from hatch_model_cache.packing import leaks
from model_cache.engine import model_tag
from model_cache.engine.nearest import Difference, Nearest
from model_cache.store.plan import Adopted
from model_cache.wheel import small_file
from model_cache.wheel.manifest import Entry, Manifest

_MAX_CONFIG_BYTES = 16 << 20
_CREDENTIALS = re.compile(r"://[^/@\s]+@")
"""In a URL."""


@dataclass(frozen=True)
class _Seen:
    """What a running engine says of one look-up. running: of its adapter, see `compile.engines`."""

    running: ModuleType
    rules: Sequence[Rule]
    model: Any
    path: Path
    factors: Mapping[str, str]

    @property
    def rank(self) -> str:
        return self.path.parent.name.removeprefix("rank_")

    def names(self, manifest: Manifest, entry: Entry) -> tuple[tuple[str, str], ...]:
        """The factors of a wheel's entry that say where its weights come from."""
        known = factors.of_entry(manifest, entry)
        return tuple((name, known[name]) for name in self.running.NAMING if name in known)


def compare(model: Any, path: str, manifests: Sequence[Manifest]) -> Nearest:
    """See `model_cache.engine.nearest.find`, which calls this. Raises what goes wrong in the engine."""
    name = next((m.engine.name for m in manifests if _is_here(m.engine.name)), None)
    if name is None:
        return Nearest(reason="no installed wheel is for this engine")
    adapter = engines.adapter(name)
    version = metadata.version(name)
    if version not in adapter.VERSIONS:
        return Nearest(reason=f"{name} {version} is not known to this release: nothing is compared or adopted")
    prefix = model_tag.of(model)
    candidates = [(m, e) for m in manifests if m.engine.name == name for e in m.entries if e.prefix == prefix]
    if not candidates:
        return Nearest(reason=f"no installed wheel has a model {prefix!r}")
    key = Path(path).parent.parent.name
    if wheel := next((m.name for m, e in candidates if e.key == key), None):
        return Nearest(
            wheel, reason=f"{wheel} has this key, and is not deployed; `model-cache deploy {wheel}` says why"
        )
    seen = _Seen(adapter.running, adapter.rules(version), model, Path(path), adapter.running.named_factors(model))
    found = [(m, e, factors.differences(factors.of_entry(m, e), seen.factors)) for m, e in candidates]
    same = [one for one in found if {factor for factor, _, _ in one[2]} <= {*seen.running.NAMING}]
    if not same:
        return _different(seen, *min(found, key=lambda one: len(one[2])), adapter.flags())
    wheels = {m.name: [one for one in same if one[0].name == m.name] for m, _, _ in same}
    answers = [_only_names_differ(seen, entries, adapter.flags()) for entries in wheels.values()]
    return next((answer for answer in answers if answer.adoptable), answers[0])


def objection(model: Any, manifest: Manifest) -> str:
    """See `model_cache.engine.nearest.objection`, which calls this. What a wheel does not record objects to nothing."""
    adapter = engines.adapter(manifest.engine.name)
    found = factors.objections(manifest, adapter.running.facts(model), adapter.rules(manifest.engine.version))
    return next((_told_of(rule, ours, theirs) for rule, ours, theirs in found if (ours, theirs) != (None, None)), "")


def _told_of(rule: Rule, ours: str | None, theirs: str | None) -> str:
    """A rule's objection, in words."""
    return f"{rule.fact} is {theirs or 'not set'} here, {ours or 'not set'} in the wheel; {rule.why}"


def _different(
    seen: _Seen,
    manifest: Manifest,
    entry: Entry,
    differences: Sequence[changes.Difference],
    flags: Mapping[str, str],
) -> Nearest:
    if factors.another_model(differences):
        return Nearest(manifest.name, reason=f"no installed wheel is for this model; {manifest.name} is for another")
    ranks = [] if seen.rank in entry.ranks else [("ranks", ", ".join(entry.ranks), seen.rank)]
    return Nearest(manifest.name, tuple(_told([*differences, *ranks], flags)))


def _is_here(engine: str) -> bool:
    """Whether `engine` has an adapter and is installed here."""
    try:
        return engine in engines.SERVERS and bool(metadata.version(engine))
    except metadata.PackageNotFoundError:
        return False


def _only_names_differ(
    seen: _Seen, same: Sequence[tuple[Manifest, Entry, Sequence[changes.Difference]]], flags: Mapping[str, str]
) -> Nearest:
    """Of the entries of one wheel, which differ in the name of the weights only, those that may be adopted."""
    manifest, first, differences = same[0]
    nearest = Nearest(manifest.name, tuple(_told(differences, flags)))
    if reason := _refusal(seen, manifest):
        return replace(nearest, reason=f"not adopted: {reason}")
    names = {seen.names(manifest, entry) for _, entry, _ in same}
    keys = {one: seen.running.key_under(seen.model, dict(one)) for one in names}
    proven = [e for _, e, _ in same if keys[seen.names(manifest, e)] == e.key and seen.rank in e.ranks]
    if not proven:
        return replace(nearest, reason="not adopted: the engine's own key under the wheel's name is not the wheel's")
    directory = f"{first.directory.rpartition('/')[0]}/{seen.path.parent.parent.name}"
    # several names in one wheel share their files, several targets do not
    adoptable = {entry.target: Adopted.of(entry, directory) for entry in reversed(proven)}
    return replace(
        nearest, adoptable=tuple(adoptable.values()), reason="same config.json, and all else but the name is equal"
    )


def _refusal(seen: _Seen, manifest: Manifest) -> str:
    """Why nothing of a wheel may be loaded for other weights than its own; empty if it may."""
    facts = seen.running.facts(seen.model)
    if why := seen.running.obstacle(seen.factors, facts):
        return str(why)
    if found := next(factors.objections(manifest, facts, seen.rules), None):
        return _told_of(*found)
    config = seen.running.config_file(seen.model)
    if config is None:
        return "its config.json is not on this host"
    if hashlib.sha256(small_file.read(config, _MAX_CONFIG_BYTES)).hexdigest() != manifest.model.config_sha256:
        return "its config.json is another one than the wheel's"
    return ""


def _told(differences: Sequence[changes.Difference], flags: Mapping[str, str]) -> Iterator[Difference]:
    """Differences for people: what a flag, a variable or the model's name sets first, under the name it is set by."""
    named = [(_set_by(factor, flags), factor, wheel, here) for factor, wheel, here in differences]
    for set_by, factor, wheel, here in sorted(named, key=lambda one: one[0] is None):
        name = set_by or factor
        yield Difference(name, _shown(wheel), _shown(here))


def _set_by(factor: str, flags: Mapping[str, str]) -> str | None:
    part, _, name = factor.partition(".")
    if part == "env":
        return name
    if factor == factors.MODEL:
        return "model"
    flag = flags.get(factor)
    return flag.removeprefix("--") if flag else None


def _shown(value: str | None) -> str | None:
    """A value as it may be told: what looks like a secret is not; what is named like one the adapter has withheld."""
    if value is None:
        return None
    return "(withheld)" if leaks.secret_kind(value.encode()) or _CREDENTIALS.search(value) else value
