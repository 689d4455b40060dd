"""A compile that runs beside something more urgent, such as an engine that loads its weights: what it may take.

Linux: a process's I/O priority follows its nice value where none was set (ioprio_set(2)), so nice alone lowers both.
Resource limits would count addresses, of which torch reserves many times what it uses; so what is used is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from model_cache.store.files import human

NICE = 19
"""The least urgent: what has nothing else to do runs it."""

OOM_SCORE = 1000
"""When memory runs out the kernel ends this before anything else."""


@dataclass(frozen=True)
class Bounds:
    """What the processes of an overlapping compile may take; only one engine process runs at a time.

    memory: bytes of their own (file pages that others share do not count), for all processes of one rank together.
    """

    memory: int

    def apply(self, pid: int) -> None:
        """Make a process that was just started, and all that it will start, the least urgent."""
        with suppress(OSError):  # it may have ended already
            os.setpriority(os.PRIO_PROCESS, pid, NICE)
            Path(f"/proc/{pid}/oom_score_adj").write_text(str(OOM_SCORE), "ascii")

    def excess(self, session: int) -> str:
        """What is said when the processes of a session hold more than they may; "" while they do not."""
        used = sum(_own_bytes(session))
        return f"takes {human(used)}, beside other work it may take {human(self.memory)}" if used > self.memory else ""


def _own_bytes(session: int) -> Iterator[int]:
    """Memory of each process of a session that no file holds."""
    page = os.sysconf("SC_PAGE_SIZE")
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError):  # processes end meanwhile
            if int((process / "stat").read_text("ascii", "replace").rpartition(")")[2].split()[3]) == session:
                _, resident, shared, *_ = map(int, (process / "statm").read_text("ascii").split())
                yield (resident - shared) * page
