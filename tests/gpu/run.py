"""Run wheels for torch on the GPU that is here, once without one and once with each; write one JSON result.

    python3 run.py --out RESULT_FOLDER

Run it in the folder that tests/gpu/build.py has made, with the interpreter that has torch. Standard library only. It
writes into the result folder and a temporary directory, and installs nothing into the environment. Under 8 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
STEP_SECONDS = 150
TOLERANCE = 0.05
"""Largest difference from eager, of the largest value there: bfloat16 keeps 8 bits, through 4 layers."""


def main() -> int:
    """Run all steps; the exit status is 1 if one has shown something else than it should."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for result.json and the logs")
    out: Path = parser.parse_args().out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    bundle = json.loads((HERE / "bundle.json").read_text("utf-8"))
    result: dict[str, Any] = {"bundle": bundle, "machine": machine()}
    with tempfile.TemporaryDirectory(prefix="model-cache-gpu-") as work:
        site = Path(work) / "site"
        result["installed_with"] = install(site, out / "install.log")
        for step, wheel in {"cold": "-", **bundle["names"]}.items():
            result[step] = run(wheel, site, Path(work) / step, out / f"{step}.log")
    result["problems"] = problems({step: result[step] for step in ("cold", *bundle["names"])})
    result["seconds"] = round(time.monotonic() - begun, 1)
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(json.dumps(result, indent=1))
    return 1 if result["problems"] else 0


def machine() -> dict[str, str | None]:
    """What this host is."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    gpus = None
    if shutil.which(query[0]):
        gpus = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return {"gpus": gpus, "python": platform.python_version(), "kernel": platform.release(), "gcc": shutil.which("gcc")}


def install(site: Path, log: Path) -> str:
    """Install the bundle's wheels into a directory of their own; with what. An environment may have no pip: then they
    are unpacked, which is all that pip does with these."""
    wheels = sorted((HERE / "wheels").glob("*.whl"))
    if find_spec("pip") is None:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
        return "zipfile"
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", str(site)]
    with log.open("wb") as output:
        subprocess.run([*command, *map(str, wheels)], stdout=output, stderr=subprocess.STDOUT, check=True)
    return "pip"


def run(wheel: str, site: Path, work: Path, log: Path) -> dict[str, Any]:
    """One process of the program with caches of its own: what it printed, or how it ended.

    With the wheel torch may start no processes that compile, so that every run of ptxas would be counted.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if name != "CI"},  # torch puts it into its keys
        "PYTHONPATH": str(site),
        "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"),
        "TRITON_CACHE_DIR": str(work / "triton"),
        **({} if wheel == "-" else {"TORCHINDUCTOR_COMPILE_THREADS": "1"}),
    }
    command = [sys.executable, str(HERE / "torch_program.py"), str(HERE / "program"), "llama:make", wheel]
    begun = time.monotonic()
    with log.open("wb") as errors:
        try:
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, stderr=errors, timeout=STEP_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return {"ended": f"not within {STEP_SECONDS} s"}
    answer: dict[str, Any] = {
        "process_seconds": round(time.monotonic() - begun, 2),
        "cubins": sum(1 for _ in work.rglob("*.cubin")),
    }
    if done.returncode:
        return {"ended": f"with status {done.returncode}", "last": log.read_text("utf-8", "replace")[-2000:], **answer}
    return {**json.loads(done.stdout.splitlines()[-1]), **answer}


def problems(steps: dict[str, dict[str, Any]]) -> list[str]:
    """What should have been otherwise."""
    found = [f"{name}: ended {step['ended']}" for name, step in steps.items() if "ended" in step]
    if found:
        return found
    for name, step in steps.items():
        if name != "cold" and step["use"] != {"hits": 1, "misses": 0}:
            found.append(f"{name}: {step['use']['hits']} hits and {step['use']['misses']} misses")
        if name != "cold" and step["runs"].get("ptxas", 0):
            found.append(f"{name}: ptxas ran {step['runs']['ptxas']} times")
        if not step["error"] <= TOLERANCE * step["largest"]:
            found.append(f"{name}: differs from eager by {step['error']}, the largest value is {step['largest']}")
    return found


if __name__ == "__main__":
    sys.exit(main())
