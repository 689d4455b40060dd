"""Do to deploy, upgrade, rollback and remove what hosts do to them, and count what was lost or torn: nothing may be.

    python tests/torture/run.py [--short] [--kills 500] [--seconds 120] [--seed N]

Prints a table of counts. Exit code 1 when anything was lost or torn, or when something was not tried at all.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import faults
import kills
import places
from world import Failed, World, world

SHORT = {"kills": 8, "seconds": 0.2, "faults": 5, "disks": 2, "crowds": 3}
LONG = {"kills": 500, "seconds": 120.0, "faults": 300, "disks": 60, "crowds": 30}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a few of each, in seconds")
    parser.add_argument("--kills", type=int, help="how many processes are killed at random points")
    parser.add_argument("--seconds", type=float, help="how long faults are injected")
    parser.add_argument("--seed", type=int, default=1, help="another seed tries other points")
    options = parser.parse_args()
    size = dict(SHORT if options.short else LONG)
    size.update({key: value for key in ("kills", "seconds") if (value := getattr(options, key)) is not None})
    seed = options.seed
    parts: dict[str, Callable[[World], Counter[str]]] = {
        "SIGKILL at random points, engines reading and writing": lambda w: kills.random_kills(
            w, int(size["kills"]), seed
        ),
        "faults in system calls (strace)": lambda w: _inject(w, size, seed),
        "a disk that becomes full (tmpfs)": lambda w: places.full_disk(w, int(size["disks"]), seed),
        "noexec (tmpfs)": places.noexec,
        "a second user": places.second_user,
        "eight deployers on one root": lambda w: places.crowd(w, int(size["crowds"]), seed),
    }
    results = {title: _run(title, part) for title, part in parts.items()}
    return 1 if any(verdict in ("FAILED", "EMPTY") for verdict in results.values()) else 0


def _inject(world: World, size: dict[str, float], seed: int) -> Counter[str]:
    if not faults.available():
        raise places.Skipped("strace is not installed or may not trace here; tests/test_deploy.py injects from Python")
    return faults.inject(world, size["seconds"], seed, least=int(size["faults"]))


def _run(title: str, part: Callable[[World], Counter[str]]) -> str:
    start = time.monotonic()
    counts: Counter[str] = Counter()
    verdict = "EMPTY"
    try:
        with world() as here:
            counts = part(here)
        verdict = "nothing lost, nothing torn" if counts else "EMPTY"
    except places.Skipped as reason:
        verdict = f"not shown here: {reason}"
    except Failed as failure:
        print(f"{title}: {failure}")
        verdict = "FAILED"
    print(f"{title}: {verdict} ({time.monotonic() - start:.0f} s)")
    for what, number in sorted(counts.items(), key=lambda item: (item[0].startswith(" "), item[0])):
        print(f"  {number:7,}  {what}")
    return verdict


if __name__ == "__main__":
    sys.exit(main())
