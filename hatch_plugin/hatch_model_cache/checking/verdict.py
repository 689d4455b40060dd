"""The verdict of a check: what the engine would do with a wheel, and every value that speaks against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import Enum
from typing import Any

from hatch_model_cache.checking import factors
from hatch_model_cache.checking.changes import GPU, PLACE, CommandLine, changes
from hatch_model_cache.compile import engines
from hatch_model_cache.compile.engines.rule import Rule
from model_cache import plugin
from model_cache.engine import adoption, mends
from model_cache.machine import fit
from model_cache.machine.cpu import Compiler, Cpu
from model_cache.wheel.manifest import Entry, GpuRecord, Manifest

ADOPTABLE = "the plug-in would adopt this wheel, if config.json is the wheel's (MODEL_CACHE_ADOPT)"
"""What is told of a miss that is adoptable."""


class Answer(Enum):
    """What would happen; the value is the exit code."""

    HIT = 0
    MISS = 10
    UNSAFE = 11
    UNKNOWN = 12

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Reason:
    """One value in which wheel and host differ.

    Attributes:
        factor: its name.
        wheel: the wheel's value; None where it has none.
        host: the host's value.
        answer: MISS, UNSAFE or UNKNOWN: what this difference alone leads to.
        change: the shortest change that would make it a hit; empty if there is none but another wheel.
        why: what would happen, for unsafe ones.
    """

    factor: str
    wheel: str | None
    host: str | None
    answer: Answer
    change: str = ""
    why: str = ""

    def __str__(self) -> str:
        if self.wheel is None and self.host is None:
            text = f"{self.answer}: {self.factor}: {self.why}"
        else:
            text = (
                f"{self.answer}: {self.factor} is {self.host or 'absent'} here, {self.wheel or 'absent'} in the wheel"
            )
            text += f" ({self.why})" if self.why else ""
        return f"{text}. {self.change[0].upper()}{self.change[1:]}." if self.change else f"{text}."

    @classmethod
    def of_nothing(cls, why: str) -> Reason:
        """Nothing is known, and why."""
        return cls("look-up", None, None, Answer.UNKNOWN, why=why)


@dataclass(frozen=True)
class Verdict:
    """The answer for one wheel, with the reasons against a hit; a hit has none."""

    name: str
    version: str
    answer: Answer
    reasons: tuple[Reason, ...]
    keys: Mapping[str, str]
    """The key the engine looks for, by the prefix of the compiled model."""
    adoptable: bool = False
    """A miss that the plug-in would make good, if config.json is the wheel's; see `model_cache.engine.adoption`."""


@dataclass(frozen=True)
class Observation:
    """What the engine on this host said of itself: the result of a look-up task (`compile.worker`).

    Attributes:
        target: record of the GPU.
        engine: versions, as in the manifest.
        host_answers: as in the manifest.
        look_ups: what it looks for, one per compiled model (`compile.engines.vllm.LookUp`).
        why_nothing: why there are no look-ups.
        command: how it is started.
        ranks: ``<rank>_<data parallel rank>`` of every process that looks.
        cpu: this CPU and its compiler, for an engine that runs on it.
        config_sha256: of the served config.json; None if the model is no directory here.
    """

    target: Mapping[str, Any]
    engine: Mapping[str, str]
    host_answers: Mapping[str, Any]
    look_ups: Sequence[Mapping[str, Any]]
    why_nothing: str | None = None
    command: CommandLine = dataclass_field(default_factory=CommandLine)
    ranks: Sequence[str] = ("0_0",)
    cpu: tuple[Cpu, Compiler] | None = None
    config_sha256: str | None = None


CPU = "build a wheel for this CPU"
_FACTS = {
    "vec_isa": "cpu.vec_isa",
    "cpu_capability": "cpu.capability",
    "AMX": "cpu.amx",
    "AVX512-BF16": "cpu.bf16",
    fit.PRODUCT: "cpu.onednn",
}
"""What `fit` compares of CPUs → the fact that a rule of the adapter may compare, too, with better words."""

LOAD_CHECKED = frozenset({"python", "torch"})
"""Versions that torch compares when it loads an artifact (torch._dynamo.package.SystemInfo), whatever the key holds."""


def judge(manifest: Manifest, seen: Observation, rules: Sequence[Rule]) -> Verdict:
    """Compare a wheel with what the engine looks for.

    A look-up hits if an entry of the wheel has its key. It is unsafe if it hits and something differs that the key does
    not hold, unless the engine finds the difference itself when it loads (`LOAD_CHECKED`): then it misses. When nothing
    is looked up, or nobody knows what a captured wheel had of what no key holds, nothing can be said.
    """
    if not seen.look_ups:
        why = seen.why_nothing or "the engine looks for nothing"
        return Verdict(manifest.name, manifest.version, Answer.UNKNOWN, (Reason.of_nothing(why),), {})
    hits = [e for look_up in seen.look_ups for e in _entries(manifest, look_up) if e.key == look_up["key"]]
    versions = [*_versions(manifest, seen.engine, loaded=bool(hits)), *_unmended(seen)]
    missed = [r for look_up in seen.look_ups for r in _missed(manifest, look_up, seen)]
    reasons = (*versions, *missed, *_other_hardware(manifest, hits, seen, rules), *_unsafe(manifest, seen, rules))
    if any(reason.answer is Answer.MISS for reason in versions) or not hits:
        answer = Answer.MISS
    elif any(reason.answer is Answer.UNSAFE for reason in reasons):
        answer = Answer.UNSAFE  # also when another model of the same start misses: one wrong load is enough
    elif missed:
        answer = Answer.MISS
    else:
        answer = Answer.UNKNOWN if reasons else Answer.HIT
    keys = {look_up["prefix"]: look_up["key"] for look_up in seen.look_ups}
    adoptable = answer is Answer.MISS and _adoptable(manifest, seen, reasons)
    return Verdict(manifest.name, manifest.version, answer, reasons, keys, adoptable)


def _adoptable(manifest: Manifest, seen: Observation, reasons: Sequence[Reason]) -> bool:
    """Whether only the name of the weights differs, and nothing that is known here keeps the plug-in from adopting."""
    running = engines.adapter(seen.engine["name"]).running
    if any(reason.factor not in running.NAMING for reason in reasons):
        return False
    if any(PLACE in look_up["factors"] for look_up in seen.look_ups):
        return False  # what is traced is compiled at once, or loaded
    environment = seen.command.environment
    if plugin.turned_off(environment) or environment.get(adoption.ADOPT) == "0":
        return False
    facts = {**seen.host_answers, **seen.look_ups[0]["unkeyed"]}
    if any(running.obstacle(look_up["factors"], facts) for look_up in seen.look_ups):
        return False
    return seen.config_sha256 in (None, manifest.model.config_sha256)


def _entries(manifest: Manifest, look_up: Mapping[str, Any]) -> list[Entry]:
    """The wheel's entries for the compiled model of a look-up."""
    return [entry for entry in manifest.entries if entry.prefix == look_up["prefix"]]


def _missed(manifest: Manifest, look_up: Mapping[str, Any], seen: Observation) -> Iterator[Reason]:
    """Why no entry has the key (the differences from the one that comes nearest), or not for every rank."""
    entries = _entries(manifest, look_up)
    found = [entry for entry in entries if entry.key == look_up["key"]]
    if found:
        # a pipeline stage may have a key of its own, which follows from the same configuration (`vllm_rank.FACTORS`)
        started = [(entry.target, entry.served_as, entry.factor_overrides) for entry in found]
        stages = [e for e in entries if (e.target, e.served_as, e.factor_overrides) in started]
        ranks = {rank for entry in stages for rank in entry.ranks}
        if not ranks.issuperset(seen.ranks):
            values = ", ".join(sorted(ranks)), ", ".join(seen.ranks)
            yield Reason("ranks", *values, Answer.MISS, "build a wheel with these ranks")
        return
    if not entries:
        yield Reason("component", None, look_up["prefix"], Answer.MISS, "build a wheel that has this model")
        return
    host: Mapping[str, str] = look_up["factors"]
    nearest = min((factors.differences(factors.of_entry(manifest, entry), host) for entry in entries), key=len)
    if not nearest:
        yield Reason("key", entries[0].key, look_up["key"], Answer.MISS, why="every named value is equal")
    if factors.another_model(nearest):
        yield Reason("model", manifest.model.id, host[factors.MODEL], Answer.MISS, why="the wheel is for another model")
        return  # nothing that could be changed would make it this one's
    advised = changes(nearest, host, manifest, seen.command)
    for factor, ours, theirs in nearest:
        yield Reason(factor, ours, theirs, Answer.MISS, advised[factor])


def _versions(manifest: Manifest, engine: Mapping[str, str], *, loaded: bool) -> Iterator[Reason]:
    """Versions that differ. loaded: whether the key is found all the same."""
    for field in ("name", "version", "torch", "triton", "cuda", "python", "platform"):
        ours, theirs = getattr(manifest.engine, field), engine[field]
        if ours != theirs:
            named = {"name": "engine", "version": manifest.engine.name}.get(field, field)
            answer = Answer.UNSAFE if loaded and field not in LOAD_CHECKED else Answer.MISS
            yield Reason(named, ours, theirs, answer, f"build a wheel for {named} {theirs}, or install {ours}")


def _other_hardware(
    manifest: Manifest, hits: Sequence[Entry], seen: Observation, rules: Sequence[Rule]
) -> Iterator[Reason]:
    if seen.cpu is None:
        yield from _other_gpu(manifest, hits, seen.target)
    elif hits:
        ruled = {rule.fact for rule in rules}
        for difference in fit.cpu_differences(manifest, *seen.cpu):
            if _FACTS.get(difference.field) not in ruled:
                values = difference.wheel, difference.host
                yield Reason(difference.field, *values, Answer.UNSAFE, CPU, "no key holds anything of the CPU")


def _unmended(seen: Observation) -> Iterator[Reason]:
    """An engine that loads wheels only when the plug-in mends it, started in an environment where that is off."""
    engine, environment = seen.engine, seen.command.environment
    if not mends.for_engine(engine["name"], engine["version"], engine["torch"]):
        return
    why = f"{engine['name']} {engine['version']} loads nothing unless the plug-in mends it"
    if mends.turned_off(environment):
        yield Reason(mends.VARIABLE, None, environment[mends.VARIABLE], Answer.MISS, f"unset {mends.VARIABLE}", why)
    if plugin.turned_off(environment):
        yield Reason(plugin.DISABLE, None, environment[plugin.DISABLE], Answer.MISS, f"unset {plugin.DISABLE}", why)


def _other_gpu(manifest: Manifest, hits: Sequence[Entry], target: Mapping[str, Any]) -> Iterator[Reason]:
    """What differs between this GPU and those of the entries that hit, or of this GPU's name if none does."""
    built_for = {entry.target for entry in hits}
    gpus = [record for record in manifest.targets if isinstance(record, GpuRecord)]
    named = [record for record in gpus if record.device_name == target["device_name"]]
    records = [record for record in gpus if record.name in built_for] or named
    for record in records:
        for field in ("device_name", "compute_capability", "sm_count"):
            ours, theirs = str(getattr(record, field)), str(target[field])
            if ours != theirs:
                why = "the key holds the GPU's name at most, kernels depend on this too"
                yield Reason(field, ours, theirs, Answer.UNSAFE, GPU, why)


def _unsafe(manifest: Manifest, seen: Observation, rules: Sequence[Rule]) -> Iterator[Reason]:
    """What differs and is in no key, so that the engine would load the wheel all the same."""
    facts = {**seen.host_answers, **seen.look_ups[0]["unkeyed"]}
    for rule, ours, theirs in factors.objections(manifest, facts, rules):
        if ours is None and theirs is None and manifest.build.mode == "capture":
            why = "no key holds it, and the wheel was captured from a cache root, where nothing says what it was"
            yield Reason(rule.fact, None, None, Answer.UNKNOWN, "build a wheel, to be sure", why)
        elif ours is None and theirs is None:
            yield Reason(rule.fact, None, None, Answer.UNSAFE, "build the wheel again", "not recorded on both sides")
        else:
            yield Reason(rule.fact, ours, theirs, Answer.UNSAFE, rule.change, f"{rule.why}; {rule.source}")
