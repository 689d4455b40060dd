"""Build what tests/gpu/run.py needs, into a new folder that can be copied to a GPU host: README.md says how.

    python tests/gpu/build.py FOLDER [--target h200] [--engine torch==2.11.0]

MODEL_CACHE_PYTHON names an interpreter that has the engine, and transformers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NAMES = {"mega": "model-cache-torch-llama-{target}", "standalone": "model-cache-torch-llama-standalone-{target}"}
"""Mode → name of the wheel."""

CONFIG = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {
        "rope_theta": 500000.0,
        "rope_type": "llama3",
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    },
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Llama-3.1-8B's configuration, with 4 of 32 layers and a quarter of the vocabulary."""

FOR_CPUS = {"hidden_size": 512, "intermediate_size": 1792, "num_attention_heads": 4, "num_key_value_heads": 2}
"""An eighth of the width: to run everything once on a machine without a GPU."""

RECIPE = """[build-system]
requires = ["hatchling", "hatch-model-cache"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
requires-python = ">=3.11"

[tool.hatch.build.hooks.model-cache]
engine = "{engine}"
model = "example/{model}"
config = "program"
factory = "llama:make"
mode = "{mode}"
targets = ["{target}"]
"""


def main() -> None:
    """Build the folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="h200")
    parser.add_argument("--engine", default="torch==2.11.0")
    arguments = parser.parse_args()
    build(arguments.folder.resolve(), arguments.target, arguments.engine)


def build(folder: Path, target: str, engine: str) -> None:
    """Compile the recipe in both modes, pack it, and put the wheels beside the programs."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    shutil.copytree(HERE / "program", folder / "program", ignore=shutil.ignore_patterns("__pycache__"))
    config = CONFIG | (FOR_CPUS if target.startswith("x86-64") else {})
    (folder / "program" / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    names = {mode: name.format(target=target) for mode, name in NAMES.items()}
    for mode, name in names.items():
        _wheel(folder, name, wheels, engine=engine, mode=mode, target=target)
    _run("-m", "build", "--wheel", "--outdir", str(wheels), str(ROOT))
    shutil.copyfile(HERE / "run.py", folder / "run.py")
    shutil.copyfile(HERE.parent / "engine" / "scripts" / "torch_program.py", folder / "torch_program.py")
    described = {"names": names, "target": target, "engine": engine, "tool": metadata.version("hatch-model-cache")}
    (folder / "bundle.json").write_text(json.dumps(described, indent=1) + "\n")
    print(f"{folder}: {sum(p.stat().st_size for p in folder.rglob('*') if p.is_file()) >> 10} KiB")


def _wheel(folder: Path, name: str, wheels: Path, *, engine: str, mode: str, target: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        project = Path(directory)
        shutil.copytree(folder / "program", project / "program")
        model = name.removeprefix("model-cache-").removesuffix(f"-{target}")
        recipe = RECIPE.format(name=name, model=model, engine=engine, mode=mode, target=target)
        (project / "pyproject.toml").write_text(recipe)
        _run("-m", "model_cache", "compile", str(project), "--out", str(project / "artifacts"))
        _run("-m", "hatchling", "build", "-t", "wheel", cwd=project)
        for wheel in (project / "dist").iterdir():
            shutil.move(wheel, wheels)


def _run(*arguments: str, cwd: Path | None = None) -> None:
    subprocess.run([sys.executable, *arguments], check=True, cwd=cwd, env=dict(os.environ))


if __name__ == "__main__":
    main()
