"""Faults in every system call that writes: the kernel refuses the n-th, or the process is killed at it (strace)."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from itertools import count
from pathlib import Path

from world import VERSIONS, Failed, World, start

CALLS = {
    "write": "write,pwrite64",
    "fsync": "fsync,fdatasync",
    "rename": "rename,renameat,renameat2",
    "mkdir": "mkdir,mkdirat",
    "unlink": "unlink,unlinkat,rmdir",
    "link": "link,linkat",
    "chmod": "chmod,fchmod,fchmodat",
    "open": "open,openat",
    "flock": "flock",
    "getdents": "getdents64",
    "fstatfs": "statfs,fstatfs",
}
"""What is injected into → the names of the system calls."""

ERRORS = ("ENOSPC", "EIO", "EBUSY", "ENOENT", "ENOSYS", "EINTR")
HARMLESS = {("write", "ENOSYS"), ("open", "ENOSYS")}


def available() -> bool:
    """Whether strace can attach here."""
    if shutil.which("strace") is None:
        return False
    done = subprocess.run(["strace", "-qq", "-e", "trace=none", "true"], capture_output=True, check=False)
    return done.returncode == 0


def inject(world: World, seconds: float, seed: int, *, least: int) -> Counter[str]:
    """Inject faults for `seconds`, but at least `least`, in random order; check and heal after each."""
    counts: Counter[str] = Counter()
    chance = random.Random(seed)
    cases = _cases(chance)
    end = time.monotonic() + seconds
    while (time.monotonic() < end or counts["faults"] < least) and (case := next(cases, None)):
        _one(world, case, chance, counts)
    if not counts["faults"]:
        raise Failed("nothing was shown: no fault was reached")
    return counts


class _Case:
    """One kind of fault. limit: above it the call was not reached any more."""

    def __init__(self, call: str, fault: str) -> None:
        self.call, self.fault = call, fault
        self.limit = 64

    def __str__(self) -> str:
        return f"{self.call} {self.fault}"


def _cases(chance: random.Random):
    """Endless: every kind of fault once, in random order, then again."""
    kinds = [_Case(call, fault) for call in CALLS for fault in ("SIGKILL", *ERRORS) if (call, fault) not in HARMLESS]
    for _ in count():
        chance.shuffle(kinds)
        yield from kinds


def _one(world: World, case: _Case, chance: random.Random, counts: Counter[str]) -> None:
    world.fresh("1.0.0")
    number = chance.randint(1, case.limit)
    what = f"signal={case.fault}" if case.fault == "SIGKILL" else f"error={case.fault}"
    status, hit = _traced(world, f"{CALLS[case.call]}:{what}:when={number}")
    if not hit:
        case.limit = max(1, number - 1)
        counts["not reached"] += 1
        return
    counts["faults"] += 1
    counts[f"  {'killed at' if case.fault == 'SIGKILL' else 'refused'} {case.call}"] += 1
    expected = (-signal.SIGKILL,) if case.fault == "SIGKILL" else (0, 3)
    if status not in expected:
        raise Failed(f"{case} at call {number}: the process ended with {status}")
    counts["refused with one line" if status == 3 else "killed" if status else "went on"] += 1
    world.check_not_torn()
    world.check_one_version(chance)
    counts["engine starts, each with one version"] += 1
    world.check_healed(chance.choice([*VERSIONS]))
    counts["healed"] += 1


def _work(world: World, gate: int) -> None:
    os.read(gate, 1)
    world.deploy("2.0.0")
    world.rollback()
    world.deploy("3.0.0")
    world.remove()


def _traced(world: World, injection: str) -> tuple[int, bool]:
    """Run the work under strace with one injection; (exit status, whether it was reached)."""
    gate, opener = os.pipe()
    pid = start(_work, world, gate)
    log = world.folder / "strace"
    names = injection.partition(":")[0]
    command = ["strace", "-qq", "-o", str(log), "-e", f"trace={names}", "-e", f"inject={injection}", "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as tracer:
        while "TracerPid:\t0" in Path(f"/proc/{pid}/status").read_text():
            if tracer.poll() is not None:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise Failed(f"strace: {((tracer.stderr and tracer.stderr.read()) or b'').decode()}")
            time.sleep(0.001)
        os.write(opener, b"x")
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(gate)
    os.close(opener)
    text = log.read_text(errors="replace")
    return status, "(INJECTED)" in text or status == -signal.SIGKILL
