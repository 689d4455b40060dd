"""What the commands that only look take with many wheels installed. Prints one JSON object.

    python benchmarks/many_wheels.py [--runs 5]

Synthetic wheels, all deployed into one cache root for `status`. Each run is a fresh interpreter; the best of the runs
counts, in milliseconds of the clock and of the processor: a shared machine adds to a run, and takes from none.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "hatch_plugin")]

from factories import ENTRY_ONE, H100, install, make_engine, make_wheel  # noqa: E402

COUNTS = (10, 100, 200, 1000)
LIMIT_MS = 150
"""For 200 wheels."""


def name(number: int) -> str:
    return f"model-cache-synthetic-{number}-h100-sxm5-80gb"


def make_site(folder: Path, count: int) -> Path:
    """A site directory with `count` wheels, each with an entry of its own."""
    site = make_engine(folder / "site")
    for number in range(count):
        contents = {f"{ENTRY_ONE[:-64]}{number:064x}": {"rank_0_0/model": str(number).encode()}}
        changes = {"entries.0.ranks": ["0_0"], "model.served_as": ["test-org/Synthetic-1B"]}
        install(make_wheel(folder / "dist", contents, name=name(number), changes=changes), site)
    return site


def milliseconds(environment: dict[str, str], *arguments: str) -> tuple[float, float]:
    """(clock, processor) of one command."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "model_cache", *arguments], env=environment, capture_output=True)
    clock = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{arguments}: {done.stderr.decode()}")
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return clock * 1000, busy * 1000


def best(runs: int, environment: dict[str, str], *arguments: str) -> dict[str, float]:
    found = [milliseconds(environment, *arguments) for _ in range(runs)]
    return {"clock_ms": min(clock for clock, _ in found), "busy_ms": min(busy for _, busy in found)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time list, inspect and status with many wheels.")
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="many-wheels-") as folder:
        for count in COUNTS:
            place = Path(folder) / str(count)
            site = make_site(place, count)
            environment = {
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join([str(ROOT / "hatch_plugin"), str(site)]),
                "VLLM_CACHE_ROOT": str(place / "cache"),
                "MODEL_CACHE_ASSUME_TARGET": H100["name"],
            }
            rows.append({"command": "list", "wheels": count, **best(runs, environment, "list")})
            if count == 200:
                milliseconds(environment, "deploy", "--quiet")
                rows.append({"command": "inspect", "wheels": count, **best(runs, environment, "inspect", name(7))})
                rows.append({"command": "status", "wheels": count, **best(runs, environment, "status")})
    print(json.dumps({"runs": runs, "limit_ms": LIMIT_MS, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
