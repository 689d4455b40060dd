"""What became of the deployed wheels: intact or not, and used by the engine or not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from model_cache import files, lookups, staging, state
from model_cache.errors import ModelCacheError
from model_cache.lookups import CACHE, LookUp
from model_cache.names import printable
from model_cache.root import Root
from model_cache.state import State
from model_cache.verify import Deadline

OTHERS = "another wheel's or the engine's files are there"


@dataclass(frozen=True)
class Status:
    """One deployed wheel.

    Attributes:
        name, version, targets: as deployed.
        phase: "deployed", or what an interrupted change has left.
        intact: whether all of it is there, sizes and times as they were written (`verify --root` reads every byte).
        others: entries in whose places another wheel's or the engine's files are, or none: nothing of the wheel.
        looked_up: the last look-up of each compiled model and rank that found something in this wheel.
        processes: engine processes among all look-ups on record that found something in it.
    """

    name: str
    version: str
    targets: tuple[str, ...]
    phase: str
    intact: bool
    others: tuple[str, ...]
    looked_up: tuple[LookUp, ...]
    processes: int

    @property
    def used(self) -> bool:
        """Whether an engine has loaded something of it, with compiled parts in it."""
        return any(found.hit and found.parts for found in self.looked_up)


@dataclass(frozen=True)
class Report:
    """All deployed wheels of a cache root.

    misses: the last of each compiled model, rank and key on record; own_directories: those of compiled models that
    the engine has made itself.
    """

    root: str
    wheels: tuple[Status, ...]
    misses: tuple[LookUp, ...]
    own_directories: tuple[str, ...]


def report(root: Root) -> tuple[Report, list[ModelCacheError]]:
    """Read states, record and directories of a cache root, and what is wrong with some of them; changes nothing."""
    found = lookups.read(root)
    deployed, errors = state.load_all(root)
    ours = {entry.directory for one in deployed for entry in one.ours()}
    own = tuple(sorted(f"{CACHE}/{name}" for name in _compiled(root) if f"{CACHE}/{name}" not in ours))
    wheels = tuple(_status(root, one, found) for one in deployed)
    return Report(root.path, wheels, _last(f for f in found if not f.hit), own), errors


def _status(root: Root, deployed: State, found: Sequence[LookUp]) -> Status:
    mine = [f for f in found if f.wheel == deployed.name and deployed.entry(f"{CACHE}/{f.key}")]
    others = staging.others(root, deployed.entries, Deadline())
    same = all(staging.look_same(root, entry) for entry in deployed.entries)
    return Status(
        name=deployed.name,
        version=deployed.version,
        targets=deployed.targets,
        phase=deployed.phase,
        intact=deployed.phase == "deployed" and same and not others,
        others=others,
        looked_up=_last(iter(mine)),
        processes=len({f.pid for f in mine if f.hit}),
    )


def _last(found: Iterator[LookUp]) -> tuple[LookUp, ...]:
    """The last look-up of each compiled model, rank and key."""
    return tuple({(f.prefix, f.rank, f.key): f for f in found}.values())


def _compiled(root: Root) -> list[str]:
    with suppress(OSError), files.opened(root.descriptor, CACHE) as directory:
        return [name for name in os.listdir(directory) if not name.startswith(".")]
    return []


def data(found: Report) -> dict[str, Any]:
    """The report as JSON values."""
    wheels = [{**asdict(wheel), "used": wheel.used} for wheel in found.wheels]
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
            what = f"hit in {one.seconds:.1f} s, {one.parts} parts" if one.hit else "found, and could not be loaded"
            yield f"  {one.prefix} rank {one.rank}: {what} ({one.key[:12]}…)"
    for one in found.misses:
        yield f"miss: {one.prefix} rank {one.rank} looked for {one.key[:12]}…; `model-cache check` says what differs"
    if found.own_directories:
        yield f"{len(found.own_directories)} compiled models in {found.root} are the engine's own"
    if not found.wheels and not unreadable:
        yield f"nothing is deployed in {found.root}"


def prometheus(found: Report) -> Iterator[str]:
    """The report in Prometheus' text format, for a node exporter's textfile collector."""
    for metric, text in (
        ("model_cache_intact", "1 if all files of the wheel are there as they were written"),
        ("model_cache_used", "1 if an engine has loaded the wheel"),
        ("model_cache_processes", "engine processes that have loaded the wheel"),
    ):
        yield f"# HELP {metric} {text}"
        yield f"# TYPE {metric} gauge"
        for wheel in found.wheels:
            value = getattr(wheel, metric.removeprefix("model_cache_"))
            yield f'{metric}{{wheel="{_label(wheel.name)}",version="{_label(wheel.version)}"}} {int(value)}'
    yield "# HELP model_cache_misses look-ups on record that no wheel answered"
    yield "# TYPE model_cache_misses gauge"
    yield f"model_cache_misses {len(found.misses)}"


def _label(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')
