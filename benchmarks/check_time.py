"""Seconds of `model-cache check`, against what the engine itself needs to import and create its configuration.

    python benchmarks/check_time.py [--runs 3] [--json]

Alternates the look-up of a check for the tiny Llama on a pretended H100 (MODEL_CACHE_PYTHON, or .engines/vllm-0.33.0)
with a process that only imports the same vLLM and creates the same configuration, as any vLLM process does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

from hatch_model_cache import check, targets

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".engines" / "vllm-0.33.0" / "bin" / "python"
ARGUMENTS = ("./llama-tiny", "--max-model-len", "512", "--max-num-batched-tokens", "8192", "--skip-tokenizer-init")
TARGET = "h100-sxm5-80gb"
LIMIT = 1.2
ENGINE = """
import sys, tempfile
from pathlib import Path
from hatch_model_cache import targets
from hatch_model_cache.compile.engines import vllm
from hatch_model_cache.compile.pretend import pretend
with pretend(targets.load(sys.argv[1]), scratch=Path(tempfile.mkdtemp())):
    vllm.create_config(vllm.parse(sys.argv[2:]))
"""


class Clock:
    """A progress that notes when each stage begins."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}

    def stage(self, job: str, name: str) -> None:  # noqa: ARG002
        self.stages[name] = time.monotonic()

    def kernel(self, job: str, name: str) -> None:
        """None is compiled."""


def measure() -> dict[str, float]:
    """Seconds of one check, by stage, and of the engine's own import and configuration."""
    python = os.environ.get("MODEL_CACHE_PYTHON", str(PYTHON))
    environment = {"PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}", "HOME": os.environ["HOME"]}
    models = ROOT / "tests" / "data" / "models"
    begun = time.monotonic()
    subprocess.run(
        [python, "-c", ENGINE, TARGET, *ARGUMENTS],
        env={**environment, "PYTHONPATH": str(ROOT / "hatch_plugin"), "MODEL_CACHE_DISABLE": "1"},
        cwd=models,
        capture_output=True,
        check=True,
    )
    clock, engine, begun = Clock(), time.monotonic() - begun, time.monotonic()
    check.observe(
        check.Command("vllm", ARGUMENTS),
        targets.load(TARGET).as_dict(),
        python,
        environment=environment,
        directory=str(models),
        progress=clock,
    )
    total = time.monotonic() - begun
    imported, created = (
        clock.stages[name] - begun for name in ("create the engine's configuration", "build the model")
    )
    return {
        "engine": engine,
        "check": total,
        "import": imported,
        "configuration": created - imported,
        "model": total - created,
        "ratio": total / engine,
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
