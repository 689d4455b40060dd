"""Engine `torch` for real: a module compiled with no weights, loaded by a program that has some."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import shown
from engine import cpu_hosts
from hatch_model_cache.recipe.file import load_recipe

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).parent / "scripts" / "torch_program.py"
SECONDS = 400

QWEN3 = """
import json
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


class Logits(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model = Qwen3ForCausalLM(config)

    def forward(self, tokens):
        return self.model(input_ids=tokens, use_cache=False).logits


def make():
    config = json.loads((Path(__file__).parent / "config.json").read_text())
    tokens = torch.zeros(1, 16, dtype=torch.int64)
    torch._dynamo.mark_dynamic(tokens, 1)
    return Logits(Qwen3Config(**config)).eval(), (tokens,)
"""


@dataclass(frozen=True)
class Built:
    """A recipe's project, its wheel, and a host that has the wheel."""

    project: Path
    wheel: Path
    host: cpu_hosts.CpuHost

    def run(self, cache: Path, wheel: str, **environment: str) -> dict[str, Any]:
        """One process of the program; what it prints, and how often g++ compiled."""
        done, compiles = self.start(cache, wheel, **environment)
        assert done.returncode == 0, done.stderr[-3000:]
        return {**json.loads(done.stdout), "compiles": compiles}

    def start(self, cache: Path, wheel: str, **environment: str) -> tuple[subprocess.CompletedProcess[str], int]:
        recipe = load_recipe(self.project)
        log = cache.with_suffix(".gxx")
        command = [str(self.host.python), str(PROGRAM), str(self.project / "program"), str(recipe.factory), wheel]
        variables = {
            "PATH": str(self.host._tools(compiler=True)),
            "HOME": str(self.host.place),
            "GXX_LOG": str(log),
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            **environment,
        }
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=self.host.work
        )
        lines = log.read_text().splitlines() if log.exists() else []
        return done, sum(line not in ("-v", "--version") for line in lines)


@pytest.fixture(scope="module", params=["block", "qwen3"])
def built(
    request: pytest.FixtureRequest, cpu_engine_python: str, own_wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Built:
    """The example, built as docs/guides/torch.md shows it, and a model of transformers from a configuration."""
    place = tmp_path_factory.mktemp(request.param)
    project = place / "examples" / "torch-block"
    shutil.copytree(ROOT / "examples" / "torch-block", project)
    target = cpu_hosts.here()
    text = (project / "pyproject.toml").read_text().replace("x86-64-avx512", target)
    if request.param == "qwen3":
        shutil.copyfile(ROOT / "tests/data/models/qwen3-tiny/config.json", project / "program" / "config.json")
        (project / "program" / "qwen.py").write_text(QWEN3)
        text = text.replace("block:make", "qwen:make")
    (project / "pyproject.toml").write_text(text)
    swap = {"/path/to/python-with-torch-2.13.0": cpu_engine_python}
    links = str(own_wheel.parent)
    shown.run(shown.commands("torch.md"), place, swap=swap, HOME=os.environ["HOME"], PIP_FIND_LINKS=links)
    [wheel] = (project / "dist").iterdir()
    (place / "host").mkdir()
    host = cpu_hosts.make_host(cpu_engine_python, place / "host", own_wheel, wheel)
    return Built(project, wheel, host)


def test_a_fresh_process_with_real_weights_compiles_nothing(built: Built, tmp_path: Path) -> None:
    cold = built.run(tmp_path / "cold", "-")
    warm = built.run(tmp_path / "warm", f"model-cache-torch-block-{cpu_hosts.here()}")
    print(json.dumps({"cold": cold, "warm": warm}))
    assert cold["compiles"] > 0
    assert (warm["compiles"], warm["use"]) == (0, {"hits": 1, "misses": 0})
    assert warm["result"] == cold["result"], "bit for bit"
    assert warm["error"] == cold["error"] < 1e-3  # against eager
    assert warm["parts"] == {"aot_autograd": 1, "inductor": 1}
    assert warm["kernels"] > 0


def test_a_cpu_of_another_width_is_refused(built: Built, tmp_path: Path) -> None:
    done, _ = built.start(tmp_path / "cache", str(built.wheel), ATEN_CPU_CAPABILITY="default")
    assert done.returncode == 1
    assert "does not fit this host" in done.stderr
    assert "vec_isa is INVALID_VEC_ISA (ATEN_CPU_CAPABILITY=default)" in done.stderr
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").rglob("*.main.so"))
