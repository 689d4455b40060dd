"""`model-cache compile` of eight tensor-parallel ranks against one, for one target. Prints one JSON object.

    python benchmarks/ranks.py

Llama-3.1-8B's widths, two layers deep (equal layers are compiled once), with no GPU and no weights
(MODEL_CACHE_PYTHON, or .engines/vllm-0.33.0). Each from its command to its end; memory is that of all its processes
(process_tree.py), of which as many run at a time as there are cores and memory for. One run of each.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import sizes

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from engine.hosts import SERVE_ARGS, compile_recipe, pack, write_recipe  # noqa: E402

ENGINE = os.environ.get("MODEL_CACHE_PYTHON", str(ROOT / ".engines/vllm-0.33.0/bin/python"))
MEASURING = [sys.executable, str(Path(__file__).with_name("process_tree.py"))]
TARGET = "h100-sxm5-80gb"
LAYERS = 2
RANKS = 8


def measure(place: Path, ranks: int) -> dict[str, Any]:
    """Seconds, peak memory and sizes of a wheel with so many ranks."""
    place.mkdir()
    model = place / "shallow"
    shutil.copytree(ROOT / "examples/llama-3.1-8b/model", model)
    config = json.loads((model / "config.json").read_text()) | {"num_hidden_layers": LAYERS}
    (model / "config.json").write_text(json.dumps(config))
    arguments = [*SERVE_ARGS, "--tensor-parallel-size", str(ranks)]
    project = write_recipe(place / "recipe", model, "./llama", ["./llama"], [TARGET], serve_args=arguments)
    result = place / "measured.json"
    done = compile_recipe(project, project / "artifacts", ENGINE, prefix=[*MEASURING, str(result)])
    assert done.returncode == 0, done.stderr
    found = sizes.of_wheel(pack(project, project / "artifacts"), project / "artifacts")
    return {"ranks": ranks, **json.loads(result.read_text()), **found}


def table(found: dict[str, Any]) -> list[str]:
    """The section of the page."""
    one, many = found["rows"]
    rows = [
        f"| {r['ranks']} | {r['seconds']:.0f} | {r['peak_bytes'] / 1e9:.2f} | {mb(r, 'root')} | {mb(r, 'distinct')} "
        f"| {mb(r, 'tar')} | {mb(r, 'wheel')} |"
        for r in found["rows"]
    ]
    seconds, peak = (many[of] / one[of] for of in ("seconds", "peak_bytes"))
    saved = 1 - many["distinct_bytes"] / many["root_bytes"]
    return [
        f"## Tensor-parallel ranks, compiled without a GPU, for {TARGET}",
        "",
        "| ranks | wall s | peak memory GB | root MB | distinct files MB | tar.gz MB | wheel MB |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"Llama-3.1-8B's widths, {found['layers']} layers; one run of each. {many['ranks']} ranks over one:",
        f"{seconds:.1f} of the time, {peak:.1f} of the memory.",
        "The first rank is compiled alone, then as many at a time as there are cores, and 3 GiB of memory for each.",
        f"Equal files are stored once, which saves {saved:.0%} here: a rank's file holds the number of its GPU.",
        "",
    ]


def mb(row: dict[str, int], what: str) -> str:
    return f"{row[f'{what}_bytes'] / 1e6:.2f}"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        rows = [measure(Path(folder) / str(ranks), ranks) for ranks in (1, RANKS)]
    print(json.dumps({"layers": LAYERS, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
