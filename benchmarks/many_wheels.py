"""What the commands that only look take with many wheels installed. Prints one JSON object.

    python benchmarks/many_wheels.py [--runs 5]

Synthetic wheels, all deployed into one cache root for `status`. Each run is a fresh interpreter. Milliseconds of the
clock, and of the processor.
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

import spread

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "hatch_plugin")]

from factories import ENTRY_ONE, H100, install, make_engine, make_wheel  # noqa: E402

COUNTS = (10, 100, 200, 1000)
LIMITS_MS = {200: 150, 1000: 600}
"""Number of wheels → what a command may take."""

GROWTH = 10
"""Limit of `list`: with ten times the wheels it takes at most so many times as long."""


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


def row(runs: int, wheels: int, environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    """What one command takes with so many wheels."""
    clock, busy = zip(*(milliseconds(environment, *arguments) for _ in range(runs)), strict=True)
    return {
        "command": arguments[0],
        "wheels": wheels,
        "clock_ms": spread.of(clock),
        "busy_ms": spread.of(busy),
        "limit_ms": LIMITS_MS.get(wheels),
    }


def table(found: dict[str, Any]) -> list[str]:
    """The section of the page."""
    rows = [
        f"| `{r['command']}` | {r['wheels']:,} | {spread.text(r['clock_ms'], 0)} | {r['busy_ms']['median']:.0f} "
        f"| {r['limit_ms'] or ''} |"
        for r in found["rows"]
    ]
    return [
        "## Commands that only look, with many wheels installed",
        "",
        f"| median of {found['runs']} (spread) | wheels | ms | processor ms | limit ms |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"With ten times the wheels `list` takes at most {found['growth']:.1f} times as long (limit {GROWTH}).",
        "",
    ]


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
            rows.append(row(runs, count, environment, "list"))
            if count == 200:
                milliseconds(environment, "deploy", "--quiet")
                rows.append(row(runs, count, environment, "inspect", name(7)))
                rows.append(row(runs, count, environment, "status"))
    medians = {r["wheels"]: r["clock_ms"]["median"] for r in rows if r["command"] == "list"}
    growth = max(medians[100] / medians[10], medians[1000] / medians[100])
    print(json.dumps({"runs": runs, "rows": rows, "growth": round(growth, 2)}, indent=1))


if __name__ == "__main__":
    main()
