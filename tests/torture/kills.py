"""SIGKILL at random points, under engines that read and write in the same root."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

from world import ADDED, ENTRY_ONE, RANKS, VERSIONS, Failed, World, start, versions_of

MAX_WRITTEN = 1000


def random_kills(world: World, kills: int, seed: int) -> Counter[str]:
    """Kill a process that deploys, rolls back and removes, `kills` times; heal after each; then count what is left."""
    counts: Counter[str] = Counter()
    chance = random.Random(seed)
    world.fresh("1.0.0")
    stop = world.folder / "stop"
    stop.unlink(missing_ok=True)
    readers = [start(_reader, world, stop, number) for number in range(2)]
    writer = start(_writer, world, stop)
    try:
        for number in range(kills):
            pid = start(_forever, world, seed * 100_000 + number)
            time.sleep(chance.uniform(0.001, 0.06))
            os.kill(pid, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if status != -signal.SIGKILL:
                raise Failed(f"the process ended by itself with {status}")
            counts["kills"] += 1
            counts["entries looked at"] += world.check_not_torn()
            if chance.random() < 0.5:
                world.check_one_version(chance)
                counts["engine starts, each with one version"] += 1
            version = chance.choice([*VERSIONS])
            world.check_healed(version)
            world.check_hint(version)
            counts["healed"] += 1
    finally:
        stop.touch()
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in (*readers, writer)]
    if any(statuses):
        raise Failed(f"a reader or the writer ended with {statuses}")
    for number in range(2):
        counts["concurrent reads"] += int((world.folder / f"reads{number}").read_text())
    written = (world.folder / "written").read_text().split()
    lost = [path for path in written if not (world.root / path).exists()]
    if lost:
        raise Failed(f"{len(lost)} of {len(written)} files that the engine added are lost: {lost[:3]}")
    counts["files of the engine, none lost"] += len(written)
    shown = ("kills", "engine starts, each with one version", "concurrent reads", "files of the engine, none lost")
    if idle := [what for what in shown if not counts[what]]:
        raise Failed(f"nothing was shown: no {', no '.join(idle)}")
    return counts


def _forever(world: World, seed: int) -> None:
    chance = random.Random(seed)
    while True:
        world.anything(chance)


def _reader(world: World, stop: Path, number: int) -> None:
    """An engine that loads: opens an entry's directory and reads its ranks, which must be of one version."""
    reads = 0
    while not stop.exists():
        try:
            directory = os.open(world.root / ENTRY_ONE, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            time.sleep(0.001)
            continue
        found = {}
        for rank in RANKS:
            try:
                with os.fdopen(os.open(rank, os.O_RDONLY, dir_fd=directory), "rb") as file:
                    found[rank] = file.read()
            except FileNotFoundError:
                pass
        os.close(directory)
        if found:
            reads += 1
            if not versions_of(ENTRY_ONE, found):
                raise Failed(f"torn read: { {rank: data[:20] for rank, data in found.items()} }")
        time.sleep(0.002)
    (world.folder / f"reads{number}").write_text(str(reads))


def _writer(world: World, stop: Path) -> None:
    """An engine that saves: makes directories beside what it loads, and renames new files into them."""
    written = []
    while not stop.exists():
        if len(written) >= MAX_WRITTEN:  # more would only make every swap slower
            time.sleep(0.05)
            continue
        path = f"{ENTRY_ONE}/{ADDED}/{len(written)}"
        target = world.root / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_suffix(".tmp")
            temporary.write_bytes(b"added")
            temporary.rename(target)
            written.append(path)
        except OSError:
            pass  # the entry was taken away or swapped in between; an engine would save the next time
        time.sleep(0.02)
    (world.folder / "written").write_text("\n".join(written))
