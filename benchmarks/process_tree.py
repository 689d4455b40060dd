"""Run a command; write its wall time and the peak memory of all its processes into a file, and end as it ends.

    python benchmarks/process_tree.py RESULT.json COMMAND …

Memory is the sum of the processes' proportional set sizes, looked at five times a second: what two of them share counts
once. A process whose parent has ended is not seen any more.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

SECONDS = 0.2


def main(result: str, command: list[str]) -> int:
    peak, begun = 0, time.monotonic()
    process = subprocess.Popen(command)
    while process.poll() is None:
        peak = max(peak, sum(map(memory, tree(process.pid))))
        with suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS)
    seconds = round(time.monotonic() - begun, 2)
    Path(result).write_text(json.dumps({"seconds": seconds, "peak_bytes": peak}))
    return process.returncode


def tree(root: int) -> list[int]:
    """A process and all below it."""
    children = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parent = path.read_text("ascii", "replace").rpartition(")")[2].split()[1]
            children[int(parent)].append(int(path.parent.name))
    found = [root]
    for process in found:
        found += children[process]
    return found


def memory(process: int) -> int:
    """Bytes of a process; 0 when it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text("ascii", "replace").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
