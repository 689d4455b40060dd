"""What it takes to plan and check 1, 10 and 100 recipes. Prints one JSON object.

    python benchmarks/many_recipes.py [--runs 5]

`matrix plan` reads one file of so many models, makes the recipe of each, checks it, and looks what is up to date.
`check RECIPE_DIR` takes one recipe. Each run is a fresh interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import spread

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from engine.hosts import write_recipe  # noqa: E402

MODEL = ROOT / "tests/data/models/llama-tiny"
TARGET = "h100-sxm5-80gb"
COUNTS = (1, 10, 100)
GROWTH = 10
"""Limit: ten times the recipes take at most so many times as long."""


def matrix(directory: Path, count: int) -> None:
    """A matrix.toml of `count` models, with one configuration."""
    shutil.copytree(MODEL, directory / "model")
    models = "".join(f'[models."org/Model-{number}"]\nconfig = "model"\n' for number in range(count))
    head = f'version = "1.0.0"\nengines = ["vllm==0.33.0"]\ntargets = ["{TARGET}"]\n'
    (directory / "matrix.toml").write_text(head + models)


def row(runs: int, recipes: int, command: str, directory: Path) -> dict[str, Any]:
    """Seconds of a command of `model-cache`."""
    times = [seconds(*command.split(), str(directory)) for _ in range(runs)]
    return {"command": command, "recipes": recipes, "seconds": spread.of(times)}


def seconds(*arguments: str) -> float:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "hatch_plugin")}
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "model_cache", *arguments], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return time.perf_counter() - begun


def measure(place: Path, runs: int) -> dict[str, Any]:
    rows = []
    for count in COUNTS:
        matrix(place / str(count), count)
        rows.append(row(runs, count, "matrix plan", place / str(count)))
    growth = max(more["seconds"]["median"] / less["seconds"]["median"] for less, more in pairwise(rows))
    recipe = write_recipe(place / "recipe", MODEL, "./llama-tiny", ["./llama-tiny"], [TARGET])
    rows.append(row(runs, 1, "check", recipe))
    return {"runs": runs, "rows": rows, "growth": round(growth, 2), "growth_limit": GROWTH}


def table(found: dict[str, Any]) -> list[str]:
    """The section of the page."""
    rows = [f"| `{r['command']}` | {r['recipes']} | {spread.text(r['seconds'], 2)} |" for r in found["rows"]]
    return [
        "## Many recipes, planned and checked",
        "",
        f"| median of {found['runs']} (spread) | recipes | s |",
        "|---|---|---|",
        *rows,
        "",
        "`matrix plan` makes and checks the recipe of each model of one file, `check` that of one project.",
        f"Ten times the recipes take at most {found['growth']:.1f} times as long (limit {found['growth_limit']}).",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="many-recipes-") as folder:
        print(json.dumps(measure(Path(folder), runs), indent=1))


if __name__ == "__main__":
    main()
