"""Seconds of `model-cache check` by stage, against what the engine itself needs to import and create its config.

    python benchmarks/check_time.py [--runs 3] [--json]

Runs the look-up of a check for the tiny Llama on a pretended H100 (MODEL_CACHE_PYTHON, or .engines/vllm-0.33.0). The
engine's own part is the time until its configuration exists; after it the model is built, up to its look-up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

from hatch_model_cache import check, targets

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".engines" / "vllm-0.33.0" / "bin" / "python"
ARGUMENTS = ("./llama-tiny", "--max-model-len", "512", "--max-num-batched-tokens", "8192", "--skip-tokenizer-init")
TARGET = "h100-sxm5-80gb"
LIMIT = 1.2


class Clock:
    """A progress that notes when each stage begins."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}

    def stage(self, job: str, name: str) -> None:  # noqa: ARG002
        self.stages[name] = time.monotonic()

    def kernel(self, job: str, name: str) -> None:
        """None is compiled."""


def measure() -> dict[str, float]:
    """Seconds of one check: its own start, the engine's import and configuration, and the model up to its look-up."""
    clock, begun = Clock(), time.monotonic()
    check.observe(
        check.Command("vllm", ARGUMENTS),
        targets.load(TARGET).as_dict(),
        os.environ.get("MODEL_CACHE_PYTHON", str(PYTHON)),
        environment={"PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}", "HOME": os.environ["HOME"]},
        directory=str(ROOT / "tests" / "data" / "models"),
        progress=clock,
    )
    ended = time.monotonic()
    imported, created = clock.stages["create the engine's configuration"], clock.stages["build the model"]
    return {
        "import": imported - begun,
        "configuration": created - imported,
        "model": ended - created,
        "total": ended - begun,
        "ratio": (ended - begun) / (created - begun),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    runs = [measure() for _ in range(arguments.runs)]
    result = {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}
    if arguments.json:
        print(json.dumps({"runs": len(runs), **result, "limit": LIMIT, "ok": result["ratio"] <= LIMIT}, indent=1))
    else:
        print(", ".join(f"{name} {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
