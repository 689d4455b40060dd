"""The kernels of the tiny Llama, checked without a GPU; what is said of kernels that are not as they should be."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import shown
from engine import hosts

pytestmark = pytest.mark.engine

MODELS = Path(__file__).resolve().parents[1] / "data" / "models"


@dataclass(frozen=True)
class Built:
    """A recipe with `selfcheck = true`, compiled and packed."""

    project: Path
    artifacts: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, engine_python: str) -> Built:
    project = tmp_path_factory.mktemp("selfcheck") / "recipe"
    name = "example/llama-tiny"
    hosts.write_recipe(project, MODELS / "llama-tiny", name, [name], ["h100-sxm5-80gb"])
    recipe = project / "pyproject.toml"
    recipe.write_text(recipe.read_text("utf-8") + "selfcheck = true\n", "utf-8")
    artifacts = project.parent / "artifacts"
    done = hosts.compile_recipe(project, artifacts, engine_python)
    assert done.returncode == 0, done.stdout + done.stderr
    return Built(project, artifacts, hosts.pack(project, artifacts))


def selfcheck(what: Path, engine_python: str, *options: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "model_cache", "selfcheck", str(what), "--json", *options]
    environment = {**os.environ, "MODEL_CACHE_PYTHON": engine_python}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, json.loads(done.stdout)


def test_a_build_checks_every_kernel(built: Built) -> None:
    report = json.loads((built.artifacts / "logs" / "selfcheck.json").read_text("utf-8"))
    counts = report["counts"]
    assert counts["kernels"] >= 10
    assert set(counts.values()) == {counts["kernels"], 0}
    assert (counts["checked"], counts["failed"], counts["unchecked"]) == (counts["kernels"], 0, 0)
    assert report["failed"] == []


def test_a_wheel_is_checked_from_what_it_keeps(built: Built, engine_python: str) -> None:
    status, report = selfcheck(built.wheel, engine_python, "--sample", "2")
    assert status == 0
    assert report["counts"]["checked"] == 2
    left = [kernel["reasons"] for kernel in report["kernels"] if not kernel["checked"]]
    assert len(left) == report["counts"]["unchecked"] == report["counts"]["kernels"] - 2
    assert all(set(reasons.values()) == {"not in the sample"} for reasons in left)


def test_what_is_not_as_it_should_be_is_named(built: Built, tmp_path: Path, engine_python: str) -> None:
    """Another kernel's PTX, another assembler, one changed constant, a source that computes something else."""
    project = tmp_path / "my-recipe"
    shutil.copytree(built.project, project)
    directory = project / "artifacts"
    shutil.copytree(built.artifacts, directory)
    document = json.loads((directory / "artifacts.json").read_text("utf-8"))
    evidence = directory / "evidence"
    kernels = sorted(document["kernels"], key=lambda kernel: (kernel["name"], kernel["sha256"]))

    def keep(text: str) -> str:
        digest = hashlib.sha256(text.encode()).hexdigest()
        (evidence / digest).write_text(text, "utf-8")
        return digest

    pointwise = [kernel for kernel in kernels if "_poi_fused_add" in kernel["name"]]
    swapped, assembled, changed = pointwise[:3]
    swapped["lineage"]["ptx"] = kernels[0]["lineage"]["ptx"]
    assembled["lineage"]["flags"] += ["--opt-level", "0"]
    ptx = (evidence / changed["lineage"]["ptx"]).read_text("utf-8")
    changed["lineage"]["ptx"] = keep(
        re.sub(r"(shl\.b32 \t%r\d+, %r\d+, )(\d+);", lambda m: f"{m[1]}{int(m[2]) + 1};", ptx, count=1)
    )
    [region] = [
        r
        for r in document["regions"]
        if "silu" in (evidence / r["wrapper"]).read_text("utf-8") and len(r["inputs"]) < 9
    ]
    wrapper = (evidence / region["wrapper"]).read_text("utf-8")
    assert wrapper.count("1e-05") >= 1
    region["wrapper"] = keep(wrapper.replace("1e-05", "1e-03"))
    (directory / "artifacts.json").write_text(json.dumps(document), "utf-8")

    command = shown.commands("check-kernels.md", "model-cache selfcheck")
    as_json = {"my-recipe": "my-recipe --json"}
    [ran] = shown.run(command, tmp_path, swap=as_json, codes={command[0].text: 1}, MODEL_CACHE_PYTHON=engine_python)
    report = json.loads(ran.output)
    failures = {kernel["sha256"]: kernel["failures"] for kernel in report["kernels"]}
    assert "another cubin" in failures[swapped["sha256"]]["cubin-derived"]
    assert "ptx-checked" in failures[swapped["sha256"]]
    assert list(failures[assembled["sha256"]]) == ["cubin-derived"]
    assert {"ptx-checked", "cubin-derived"} <= failures[changed["sha256"]].keys()
    [wrong] = [region for region in report["regions"] if region["failure"]]
    assert "times as far from float32 as eager execution" in wrong["failure"]


def test_what_triton_s_interpreter_does_wrong_is_mended(engine_python: str, tmp_path: Path) -> None:
    script = Path(__file__).parent / "scripts" / "mended_interpreter.py"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TRITON_INTERPRET": "1"}
    plugin = Path(__file__).resolve().parents[2] / "hatch_plugin"
    done = subprocess.run(
        [engine_python, str(script), str(plugin)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    right = dict.fromkeys(("bf16", "f16", "e4m3", "e5m2"), True)
    assert json.loads(done.stdout) == {
        "to": right,
        "from": right,
        "bf16 arithmetic": "RefusedError: arithmetic on bfloat16",
        "f32 arithmetic": True,
        "beyond": "OutOfBoundsError: access out of bounds",
        "rsqrt": True,
        "unknown": "RefusedError: libdevice.j0",
        "reduce": True,
    }
