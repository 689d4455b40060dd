"""What became of the deployed wheels: intact or not, used by the engine or not, and what that has saved.

Seconds saved are those of a cold start that was seen on this root, less those of the load. The build's own compile time
is in no manifest: it would be another one in each build of the same recipe, whose manifests are equal otherwise, and it
is that of the build machine, which has another processor and no GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from model_cache.engine import lookups
from model_cache.engine.lookups import CACHE, LookUp
from model_cache.engine.nearest import Nearest
from model_cache.errors import ModelCacheError
from model_cache.store import files, staging, state
from model_cache.store.root import Root
from model_cache.store.state import State
from model_cache.wheel.names import counted, normalize, printable
from model_cache.wheel.verify import Deadline

OTHERS = "another wheel's or the engine's files are there"


@dataclass(frozen=True)
class Status:
    """One deployed wheel.

    Attributes:
        name, version, targets: as deployed.
        phase: "deployed", or what an interrupted change has left.
        intact: whether all of it is there, sizes and times as they were written (`verify --root` reads every byte).
        others: entries in whose places another wheel's or the engine's files are, or none: nothing of the wheel.
        adopted: entries that were deployed under the key of an engine with other weights of the model.
        looked_up: the last look-up of each compiled model and rank that found something in this wheel.
        processes: engine processes on record that have loaded something of it, with compiled parts in it.
        cold_seconds: the compiles of these models and ranks in the last cold start that came nearest to this wheel;
            None when there is none on record for one of them.
    """

    name: str
    version: str
    targets: tuple[str, ...]
    phase: str
    intact: bool
    others: tuple[str, ...]
    adopted: tuple[str, ...]
    looked_up: tuple[LookUp, ...]
    processes: int
    cold_seconds: float | None

    @property
    def used(self) -> bool:
        """Whether an engine has loaded something of it, with compiled parts in it."""
        return self.processes > 0

    @property
    def unsafe(self) -> bool:
        """Whether a rule speaks against what an engine has last loaded of it."""
        return any(found.unsafe for found in self.looked_up)

    @property
    def saved_seconds(self) -> float | None:
        """What the last start has saved against a cold one, at least 0; None when that is not known."""
        if not self.used or self.cold_seconds is None:
            return None
        hits = sorted((found for found in self.looked_up if found.hit), key=lambda found: found.time)
        loads = {found.prefix: found.seconds for found in hits}
        return round(max(0.0, self.cold_seconds - sum(loads.values())), 3) if loads else None


@dataclass(frozen=True)
class Own:
    """A directory that the engine has made itself.

    missed: the last look-up that found nothing there, None when it is not on record; compile_seconds: from then until
    the engine had saved what it had compiled, for all ranks together, None when it has not.
    """

    directory: str
    missed: LookUp | None
    compile_seconds: float | None


@dataclass(frozen=True)
class Report:
    """All deployed wheels of a cache root.

    misses: the last look-up of each compiled model, rank and key for which there was nothing of a wheel.
    """

    root: str
    wheels: tuple[Status, ...]
    misses: tuple[LookUp, ...]
    own_directories: tuple[Own, ...]


def report(root: Root) -> tuple[Report, list[ModelCacheError]]:
    """Read states, record and directories of a cache root, and what is wrong with some of them; changes nothing."""
    found = lookups.read(root)
    deployed, errors = state.load_all(root)
    ours = {entry.directory for one in deployed for entry in one.ours()}
    misses = _last(f for f in found if not f.hit and not f.wheel)
    own = tuple(_own(root, name, misses) for name in sorted(_compiled(root)) if f"{CACHE}/{name}" not in ours)
    wheels = tuple(_status(root, one, found, own) for one in deployed)
    return Report(root.path, wheels, misses, own), errors


def _own(root: Root, key: str, misses: Sequence[LookUp]) -> Own:
    here = [miss for miss in misses if miss.key == key]
    seconds = [s for miss in here if (s := _compile_seconds(root, miss)) is not None]
    return Own(f"{CACHE}/{key}", here[-1] if here else None, max(seconds, default=None))


def _compile_seconds(root: Root, miss: LookUp) -> float | None:
    """How long after a miss the engine had saved what it missed: it does so as soon as that is compiled."""
    path = f"{CACHE}/{miss.key}/rank_{miss.rank}/model"
    with suppress(OSError):
        saved = os.stat(path, dir_fd=root.descriptor, follow_symlinks=False).st_mtime
        return round(saved - miss.time, 3) if saved > miss.time else None
    return None


def _status(root: Root, deployed: State, found: Sequence[LookUp], own: Sequence[Own]) -> Status:
    mine = [
        f for f in found if normalize(f.wheel) == normalize(deployed.name) and deployed.entry(lookups.directory(f.key))
    ]
    others = staging.others(root, deployed.entries, Deadline())
    same = all(staging.look_same(root, entry) for entry in deployed.entries)
    used = _last(iter(mine))
    return Status(
        name=deployed.name,
        version=deployed.version,
        targets=deployed.targets,
        phase=deployed.phase,
        intact=deployed.phase == "deployed" and same and not others,
        others=others,
        adopted=tuple(entry.directory for entry in deployed.entries if entry.adopted),
        looked_up=used,
        processes=len({f.pid for f in mine if f.hit and f.parts}),
        cold_seconds=_cold_seconds(deployed.name, used, own),
    )


def _cold_seconds(name: str, used: Sequence[LookUp], own: Sequence[Own]) -> float | None:
    """The compiles of all models that were loaded, as the last cold start shows them; ranks compile side by side."""
    cold = {
        one.missed.prefix: one.compile_seconds
        for one in sorted(own, key=lambda one: one.missed.time if one.missed else 0.0)
        if one.missed
        and normalize(one.missed.nearest) == normalize(name)
        and one.missed.differences
        and one.compile_seconds is not None
    }
    prefixes = {look_up.prefix for look_up in used}
    return sum(cold[prefix] for prefix in prefixes) if prefixes and prefixes <= cold.keys() else None


def _last(found: Iterator[LookUp]) -> tuple[LookUp, ...]:
    """The last look-up of each compiled model, rank and key."""
    return tuple({(f.prefix, f.rank, f.key): f for f in found}.values())


def _compiled(root: Root) -> list[str]:
    with suppress(OSError), files.opened(root.descriptor, CACHE) as directory:
        return [name for name in os.listdir(directory) if not name.startswith(".")]
    return []


def data(found: Report) -> dict[str, Any]:
    """The report as JSON values."""
    wheels = [
        {**asdict(one), "used": one.used, "unsafe": one.unsafe, "saved_seconds": one.saved_seconds}
        for one in found.wheels
    ]
    return {**asdict(found), "wheels": wheels}


def lines(found: Report, unreadable: int = 0) -> Iterator[str]:
    """The report for people. unreadable: states that could not be read, of which errors speak."""
    for wheel in found.wheels:
        health = "intact" if wheel.intact else f"NOT intact ({wheel.phase})"
        use = f"used by {wheel.processes} process{'es' if wheel.processes != 1 else ''}" if wheel.used else "not used"
        yield f"{wheel.name} {wheel.version}: {health}, {use}, for {', '.join(wheel.targets)}"
        for directory in wheel.others:
            yield f"  {directory}: not its own, {OTHERS}"
        for one in wheel.looked_up:
            how = "adopted" if one.adopted else "hit"
            parts = f"{counted(one.parts, 'part')}{', the engine mended' if one.mended else ''}"
            what = f"{how} in {one.seconds:.1f} s, {parts}" if one.hit else "found, and could not be loaded"
            yield f"  {one.prefix} rank {one.rank}: {what} ({one.key[:12]}…)"
            if one.unsafe:
                yield f"    unsafe: {one.unsafe}"
        if wheel.saved_seconds is not None:
            yield f"  saved {wheel.saved_seconds:.0f} s of the {wheel.cold_seconds:.0f} s that a cold start took here"
        elif wheel.used:
            yield "  seconds saved are not known: no cold start of this model is on record here"
    compiled = {own.missed.key: own.compile_seconds for own in found.own_directories if own.missed}
    for one in found.misses:
        seconds = compiled.get(one.key)
        then = f"; the engine compiled its own in {seconds:.0f} s" if seconds is not None else ""
        yield f"miss: {one.prefix} rank {one.rank} ({one.key[:12]}…): {_why(one)}{then}"
    if others := [own.directory for own in found.own_directories if own.missed is None]:
        yield f"{counted(len(others), 'compiled model')} of the engine's own, of starts that are not on record"
    if not found.wheels and not unreadable:
        yield f"nothing is deployed in {found.root}"


def _why(missed: LookUp) -> str:
    told = Nearest(missed.nearest, missed.differences, reason=missed.reason).line()
    return f"{told}; `model-cache check` says more" if told else "`model-cache check` says what differs"


def prometheus(found: Report) -> Iterator[str]:
    """The report in Prometheus' text format, for a node exporter's textfile collector."""
    for metric, text in (
        ("model_cache_intact", "1 if all files of the wheel are there as they were written"),
        ("model_cache_used", "1 if an engine has loaded the wheel"),
        ("model_cache_unsafe", "1 if what an engine has last loaded of the wheel does not belong on this host"),
        ("model_cache_processes", "engine processes that have loaded the wheel"),
    ):
        yield f"# HELP {metric} {text}"
        yield f"# TYPE {metric} gauge"
        for wheel in found.wheels:
            value = getattr(wheel, metric.removeprefix("model_cache_"))
            yield f"{metric}{_labels(wheel)} {int(value)}"
    yield "# HELP model_cache_saved_seconds what the last start has saved against a cold one; absent when not known"
    yield "# TYPE model_cache_saved_seconds gauge"
    for wheel in found.wheels:
        if wheel.saved_seconds is not None:
            yield f"model_cache_saved_seconds{_labels(wheel)} {wheel.saved_seconds}"
    yield "# HELP model_cache_misses look-ups on record that no wheel answered"
    yield "# TYPE model_cache_misses gauge"
    yield f"model_cache_misses {len(found.misses)}"


def _labels(wheel: Status) -> str:
    return f'{{wheel="{_label(wheel.name)}",version="{_label(wheel.version)}"}}'


def _label(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')
