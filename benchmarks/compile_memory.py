"""Wall time and peak memory of a compile, by the model's width: Llama 8B against a 70B-shaped Llama, for one target.

    python benchmarks/compile_memory.py

Compiles both with no GPU and no weights (MODEL_CACHE_PYTHON, or .engines/vllm-0.33.0), one after the other, and
compares the peak resident memory of the engine processes. The 70B-shaped model has Llama-3.1-70B's widths and depth.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatch_model_cache.compiling import compiler
from hatch_model_cache.recipe.file import parse

ROOT = Path(__file__).resolve().parent.parent
TARGET = "h100-sxm5-80gb"
LIMIT = 1.3
"""Of the 70B-shaped model's memory over the 8B model's."""

SEVENTY = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}


def measure(name: str, changes: dict[str, int]) -> dict[str, Any]:
    """Compile Llama-3.1-8B's configuration with `changes`; its seconds, peak memory and artifact size."""
    with tempfile.TemporaryDirectory() as scratch:
        project = Path(scratch) / "recipe"
        shutil.copytree(ROOT / "examples" / "llama-3.1-8b", project, ignore=shutil.ignore_patterns("dist", "artifacts"))
        config = project / "model" / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | changes))
        table = {
            "engine": "vllm==0.33.0",
            "model": f"example/{name}",
            "config": "model",
            "targets": [TARGET],
            "serve-args": ["--max-model-len", "8192", "--max-num-batched-tokens", "8192", "--max-num-seqs", "1024"],
        }
        out = Path(scratch) / "artifacts"
        compiler.compile_recipe(parse(table, project_dir=project), out)
        [measured] = json.loads((out / "logs" / "measured.json").read_text()).values()
        size = sum(path.stat().st_size for path in (out / "files").rglob("*") if path.is_file())
    return {"model": name, **measured, "artifact_bytes": size}


def table(found: dict[str, Any]) -> list[str]:
    """The section of the page."""
    return [
        f"## Compiling without a GPU, for {found['target']}",
        "",
        "| model | wall s | peak memory GB | artifact MB |",
        "|---|---|---|---|",
        *(
            f"| {r['model']} | {r['seconds']:.1f} | {r['peak_rss_bytes'] / 1e9:.2f} | {r['artifact_bytes'] / 1e6:.1f} |"
            for r in found["rows"]
        ),
        "",
        f"Memory of the 70B-shaped over the 8B model: {found['peak_rss_ratio']:.2f} (limit {found['limit']}).",
        "One run of each.",
        "",
    ]


def main() -> None:
    os.environ.setdefault("MODEL_CACHE_PYTHON", str(ROOT / ".engines" / "vllm-0.33.0" / "bin" / "python"))
    rows = [measure("llama-8b", {}), measure("llama-70b-shaped", SEVENTY)]
    ratio = rows[1]["peak_rss_bytes"] / rows[0]["peak_rss_bytes"]
    print(json.dumps({"target": TARGET, "rows": rows, "peak_rss_ratio": round(ratio, 3), "limit": LIMIT}, indent=1))


if __name__ == "__main__":
    main()
