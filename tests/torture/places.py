"""Hard places: a disk that is full at any byte, noexec, another user, and many deployers at once."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from world import VERSIONS, Failed, World, in_child, start

from factories import make_site, run, snapshot
from model_cache.errors import ModelCacheError
from model_cache.store import files
from model_cache.store.root import Root


class Skipped(Exception):  # noqa: N818
    """This machine cannot show it; the reason."""


@contextmanager
def tmpfs(path: Path, options: str) -> Iterator[None]:
    path.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, check=False)
    if done.returncode:
        raise Skipped("cannot mount a tmpfs here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def full_disk(world: World, rounds: int, seed: int) -> Counter[str]:
    """Upgrades on a tmpfs that becomes full somewhere on the way; then it grows, and the next deploy heals."""
    counts: Counter[str] = Counter()
    chance = random.Random(seed)
    real, reserve = Root.free_bytes, files.RESERVE_BYTES
    try:
        for _ in range(rounds):
            world.fresh()
            size = chance.randint(40, 330) * 1024
            with tmpfs(world.root, f"size={size},mode=755"):
                Root.free_bytes = lambda self: 10**12
                for version in ("1.0.0", "2.0.0", "3.0.0"):
                    try:
                        world.deploy(version)
                        counts["fitted"] += 1
                    except ModelCacheError as error:
                        if "\n" in str(error):
                            raise Failed(f"more than one line: {error}") from None
                        counts["full"] += 1
                    world.check_not_torn()
                Root.free_bytes = real
                subprocess.run(["mount", "-o", "remount,size=100m", str(world.root)], check=True)
                version = chance.choice([*VERSIONS])
                world.check_healed(version)
                world.check_hint(version)
                counts["healed"] += 1
    finally:
        Root.free_bytes, files.RESERVE_BYTES = real, reserve
    return counts


def noexec(world: World) -> Counter[str]:
    """Shared objects are refused where they could not be loaded; everything else is not."""
    counts: Counter[str] = Counter()
    world.fresh()
    changes = {"entries.0.files.0.contains": ["shared-object"]}
    site = make_site(world.folder / "library", name="model-cache-so-h100-sxm5-80gb", changes=changes)
    with tmpfs(world.root, "noexec,mode=755"):
        try:
            run(site, world.root, world.host, name="model-cache-so-h100-sxm5-80gb")
        except ModelCacheError as error:
            if "noexec" not in str(error) or snapshot(world.root):
                raise Failed(f"not refused as it should be: {error}") from None
            counts["refused"] += 1
        world.check_healed("1.0.0")
        counts["deployed"] += 1
    return counts


def second_user(world: World) -> Counter[str]:
    """Another user reads what root has deployed and can change nothing; nobody writes where another user rules."""
    if os.getuid():
        raise Skipped("needs root to become another user")
    counts: Counter[str] = Counter()
    for ours in (True, False):
        world.fresh("1.0.0")
        if not ours:
            world.fresh()
            world.root.mkdir()
            os.chown(world.root, 12345, 12345)
        before = snapshot(world.root)
        for work in (lambda: world.deploy("2.0.0"), world.rollback, world.remove):
            status = in_child(_as_user if ours else _as_root, work)
            if status != 3 or snapshot(world.root) != before:
                raise Failed(f"changed by somebody who may not (status {status})")
            counts["refused" if ours else "refused to root in somebody's place"] += 1
        if ours:
            if in_child(_as_user, world.check_not_torn):
                raise Failed("another user cannot read what was deployed")
            counts["read"] += 1
    return counts


def _as_user(work: object) -> None:
    os.setgroups([])
    os.setgid(12345)
    os.setuid(12345)
    work()


def _as_root(work: object) -> None:
    work()


def crowd(world: World, rounds: int, seed: int) -> Counter[str]:
    """Eight deployers of different versions on one root, with locks, with locks that do nothing, and without any."""
    counts: Counter[str] = Counter()
    chance = random.Random(seed)
    for number in range(rounds):
        locks = ("working", "doing nothing", "not implemented")[number % 3]
        world.fresh(chance.choice([None, "1.0.0"]))
        pids = [start(_deploy, world, locks, chance.choice([*VERSIONS])) for _ in range(8)]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        if not set(statuses) <= ({0} if locks == "working" else {0, 3}):
            raise Failed(f"deployers ended with {statuses}, locks {locks}")
        counts[f"deployers, locks {locks}"] += 8
        counts["refused with one line"] += statuses.count(3)
        world.check_not_torn()
        version = chance.choice([*VERSIONS])
        world.check_healed(version)
        world.check_hint(version)
        counts["healed"] += 1
    return counts


def _deploy(world: World, locks: str, version: str) -> None:
    if locks == "doing nothing":
        fcntl.flock = lambda *_: None
    if locks == "not implemented":

        def missing(*_: object) -> None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        fcntl.flock = missing
    world.deploy(version)
