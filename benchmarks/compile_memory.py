"""Wall time and peak memory of a compile, by the model's width: Llama 8B against a 70B-shaped Llama, for one target.

    python benchmarks/compile_memory.py [--json]

Compiles both with no GPU and no weights (MODEL_CACHE_PYTHON, or .engines/vllm-0.33.0), one after the other, and
compares the peak resident memory of the engine processes. The 70B-shaped model has Llama-3.1-70B's widths and depth.
"""

from __future__ import annotations

import argparse
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    os.environ.setdefault("MODEL_CACHE_PYTHON", str(ROOT / ".engines" / "vllm-0.33.0" / "bin" / "python"))
    rows = [measure("llama-8b", {}), measure("llama-70b-shaped", SEVENTY)]
    ratio = rows[1]["peak_rss_bytes"] / rows[0]["peak_rss_bytes"]
    result = {"target": TARGET, "rows": rows, "peak_rss_ratio": round(ratio, 3), "limit": 1.3, "ok": ratio <= 1.3}
    if arguments.json:
        print(json.dumps(result, indent=1))
    else:
        for row in rows:
            peak, size = row["peak_rss_bytes"] / 1e9, row["artifact_bytes"] / 1e6
            print(f"{row['model']:18} {row['seconds']:6.1f} s  {peak:5.2f} GB peak  {size:6.1f} MB of artifacts")
        print(f"memory 70B / 8B = {ratio:.2f} (must stay within 1.3)")
    if not result["ok"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
