"""Run the benchmarks, one after the other, and write docs/benchmarks.md and benchmarks/results.json.

make bench
python benchmarks/run.py check many       # only these; what the others have found stays
python benchmarks/run.py --busy ranks     # the machine has other things to do: the page says so
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import build_cost
import check_time
import compile_memory
import cpu_start
import deploy_throughput
import many_recipes
import many_wheels
import plugin_noop
import ranks
import wheel_sizes

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
PAGE = HERE.parent / "docs" / "benchmarks.md"
BENCHMARKS = {
    "cpu": cpu_start,
    "build": build_cost,
    "compile": compile_memory,
    "ranks": ranks,
    "sizes": wheel_sizes,
    "plugin": plugin_noop,
    "deploy": deploy_throughput,
    "check": check_time,
    "many": many_wheels,
    "recipes": many_recipes,
}
"""In the page's order. Each prints its result as JSON, and has a `table` for it."""

BESIDE = "Measured beside other work on this machine, which makes every time longer."


def run(module: ModuleType) -> Any:
    """What one benchmark has found."""
    done = subprocess.run([sys.executable, str(module.__file__)], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def machine() -> str:
    """Processor, cores, memory and Python of this machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.machine())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, {memory:.0f} GiB, Python {platform.python_version()}, no GPU"


def markdown(results: dict[str, Any]) -> str:
    """The page, of what has been run."""
    lines = [
        "# Benchmarks",
        "",
        f"Written by `make bench` on: {results['machine']}. Each table is of one run; compare within a table only.",
        "",
    ]
    for name in [name for name in BENCHMARKS if name in results]:
        lines += BENCHMARKS[name].table(results[name])
        lines += [BESIDE, ""] if name in results["busy"] else []
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run benchmarks and write their page.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--busy", action="store_true", help="the machine has other things to do")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"there is no {' nor '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    results: dict[str, Any] = json.loads(RESULTS.read_text())
    for name in options.names or BENCHMARKS:
        results[name] = run(BENCHMARKS[name])
        results["busy"] = sorted({*results["busy"], name} if options.busy else {*results["busy"]} - {name})
        results["machine"] = machine()
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(markdown(results))
    print(markdown(results))


if __name__ == "__main__":
    main()
