"""Seconds of `model-cache check`, against what the engine itself needs to import and create its configuration.

    python benchmarks/check_time.py [--runs 5]

Alternates the look-up of a check for the tiny Llama on a pretended H100 (MODEL_CACHE_PYTHON, or .engines/vllm-0.33.0)
with the engine's own command line, `vllm serve` with the same arguments under the same pretence, ended when it has
made its configuration. The ratio is that of the medians by the clock, so nothing else may run; processor seconds stand
beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import spread

from hatch_model_cache import targets
from hatch_model_cache.checking import check

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".engines" / "vllm-0.33.0" / "bin" / "python"
ARGUMENTS = ("./llama-tiny", "--max-model-len", "512", "--max-num-batched-tokens", "8192", "--skip-tokenizer-init")
TARGET = "h100-sxm5-80gb"
LIMIT = 1.2
ENGINE = """
import os, sys, tempfile
from pathlib import Path
from hatch_model_cache import targets
from hatch_model_cache.compile.pretend import pretend
with pretend(targets.load(sys.argv.pop(1)), scratch=Path(tempfile.mkdtemp())):
    from vllm.entrypoints.cli.main import main
    from vllm.engine.arg_utils import AsyncEngineArgs
    create = AsyncEngineArgs.create_engine_config
    def create_and_end(*args, **kwargs):
        create(*args, **kwargs)
        os._exit(0)
    AsyncEngineArgs.create_engine_config = create_and_end
    sys.argv[:1] = ["vllm", "serve"]
    main()
sys.exit("the engine went on without a configuration")
"""


class Clock:
    """A progress that notes when each stage begins."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}

    def stage(self, job: str, name: str) -> None:  # noqa: ARG002
        self.stages[name] = time.monotonic()

    def kernel(self, job: str, name: str) -> None:
        """None is compiled."""


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the processor in child processes, and on the clock."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    work()
    seconds, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, seconds


def measure(scratch: str) -> dict[str, float]:
    """Seconds of one check, by stage, and of the engine's own import and configuration.

    scratch: a directory for what they leave.
    """
    python = os.environ.get("MODEL_CACHE_PYTHON", str(PYTHON))
    environment = {"PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}", "HOME": os.environ["HOME"]}
    environment["TMPDIR"] = scratch
    models = ROOT / "tests" / "data" / "models"
    engine, engine_clock = timed(
        lambda: subprocess.run(
            [python, "-c", ENGINE, TARGET, *ARGUMENTS],
            env={**environment, "PYTHONPATH": str(ROOT / "hatch_plugin"), "MODEL_CACHE_DISABLE": "1"},
            cwd=models,
            capture_output=True,
            check=True,
        )
    )
    clock, begun = Clock(), time.monotonic()
    whole, whole_clock = timed(
        lambda: check.observe(
            check.Command("vllm", ARGUMENTS),
            targets.load(TARGET).as_dict(),
            python,
            environment=environment,
            directory=str(models),
            progress=clock,
        )
    )
    imported, created = (
        clock.stages[name] - begun for name in ("create the engine's configuration", "build the model")
    )
    return {
        "engine": engine,
        "check": whole,
        "engine_clock": engine_clock,
        "check_clock": whole_clock,
        "import_clock": imported,
        "configuration_clock": created - imported,
        "model_clock": whole_clock - created,
    }


def ratio(found: dict[str, dict[str, float]]) -> float:
    """Of the medians by the clock."""
    return found["check_clock"]["median"] / found["engine_clock"]["median"]


def table(found: dict[str, Any]) -> list[str]:
    """The section of the page."""
    return [
        "## `model-cache check`, against `vllm serve` until it has its configuration",
        "",
        f"| median of {found['runs']} (spread) | s | processor s |",
        "|---|---|---|",
        *(
            f"| {label} | {spread.text(found[f'{what}_clock'])} | {found[what]['median']:.1f} |"
            for what, label in (
                ("engine", "`vllm serve`, imported and configured"),
                ("check", "`model-cache check`, the look-up known"),
            )
        ),
        "",
        f"Ratio {found['ratio']:.2f} by the clock (limit {found['limit']}).",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        runs = [measure(scratch) for _ in range(arguments.runs)]
    found: dict[str, Any] = {name: spread.of([run[name] for run in runs]) for name in runs[0]}
    found |= {"runs": len(runs), "ratio": round(ratio(found), 2), "limit": LIMIT}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
