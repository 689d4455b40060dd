"""The kernels of the tiny Llama, checked without a GPU; what is said of kernels that are not as they should be."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import shown
from engine import hosts
from hatch_model_cache import cubin

pytestmark = pytest.mark.engine

MODELS = Path(__file__).resolve().parents[1] / "data" / "models"
PROGRAMS = Path(__file__).parent / "programs"


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


def selfcheck(what: Path, engine_python: str, *options: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the answer, and what a terminal shows meanwhile."""
    command = [sys.executable, "-m", "model_cache", "selfcheck", str(what), "--json", *options]
    environment = {**os.environ, "MODEL_CACHE_PYTHON": engine_python}
    terminal, errors = os.openpty()
    with ThreadPoolExecutor(1) as pool:
        # read meanwhile: a terminal takes no more than some kilobytes that nobody has read
        shown_there = pool.submit(read_to_the_end, terminal)
        try:
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=300, check=False
            )
        finally:
            os.close(errors)
    os.close(terminal)
    return done.returncode, json.loads(done.stdout), shown_there.result()


def read_to_the_end(terminal: int) -> str:
    """What is written to a terminal until nobody has it open any more, which reading then says with an error."""
    parts = []
    with suppress(OSError):
        while part := os.read(terminal, 1 << 16):
            parts.append(part)
    return b"".join(parts).decode()


def test_a_build_checks_every_kernel(built: Built) -> None:
    report = json.loads((built.artifacts / "logs" / "selfcheck.json").read_text("utf-8"))
    counts = report["counts"]
    assert counts["kernels"] >= 10
    assert set(counts.values()) == {counts["kernels"], 0}
    assert (counts["checked"], counts["failed"], counts["unchecked"]) == (counts["kernels"], 0, 0)
    assert report["failed"] == []


def test_a_wheel_is_checked_from_what_it_keeps(built: Built, engine_python: str) -> None:
    status, report, progress = selfcheck(built.wheel, engine_python, "--sample", "2")
    assert status == 0
    stages = ("import torch and Triton", "assemble the PTX again", "region 1 of ")
    assert [stage for stage in stages if f"selfcheck h100-sxm5-80gb: {stage}" not in progress] == []
    assert report["counts"]["checked"] == 2
    left = [kernel["reasons"] for kernel in report["kernels"] if not kernel["checked"]]
    assert len(left) == report["counts"]["unchecked"] == report["counts"]["kernels"] - 2
    assert all(set(reasons.values()) == {"not in the sample"} for reasons in left)


def assembled_by_another(engine_python: str, ptx: Path, flags: list[str]) -> bytes:
    """A cubin from the other ptxas that Triton brings, for newer GPUs."""
    tools = Path(engine_python).parents[1].glob("lib/python*/site-packages/triton/backends/nvidia/bin/ptxas-blackwell")
    result = ptx.with_suffix(".cubin")
    subprocess.run([str(next(tools)), *flags, str(ptx), "-o", str(result)], check=True, capture_output=True)
    data = result.read_bytes()
    result.unlink()
    return data


def replace_cubins(directory: Path, document: dict[str, Any], others: dict[str, bytes | str]) -> None:
    """Put other cubins (bytes, or the digest of one that is there) in the places of some in the engine's file."""
    [file] = {file["source"]: file for entry in document["entries"] for file in entry["files"]}.values()
    path = directory / file["source"]
    data = path.read_bytes()
    there = {hashlib.sha256(found).hexdigest(): found for found in cubin.embedded(data)}
    parts, end = [], 0
    for found in cubin.embedded(data):
        begin = data.index(found, end)
        other = others.get(hashlib.sha256(found).hexdigest(), found)
        parts += [data[end:begin], there[other] if isinstance(other, str) else other]
        end = begin + len(found)
    path.write_bytes(b"".join([*parts, data[end:]]))
    for entry in document["entries"]:
        for mine in entry["files"]:
            mine |= {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "size": path.stat().st_size}


def test_what_is_not_as_it_should_be_is_named(built: Built, tmp_path: Path, engine_python: str) -> None:
    """Another kernel's PTX, other flags, one changed constant, a source that computes something else; cubins in each
    other's places, and one from another ptxas."""
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
    swapped, assembled, changed, foreign, *exchanged = pointwise[:6]
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
    other = assembled_by_another(engine_python, evidence / foreign["lineage"]["ptx"], foreign["lineage"]["flags"])
    one, two = (kernel["sha256"] for kernel in exchanged)
    replace_cubins(directory, document, {foreign["sha256"]: other, one: two, two: one})
    foreign["sha256"] = hashlib.sha256(other).hexdigest()
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
    assert failures[foreign["sha256"]] == {"cubin-derived": "ptxas 12.9 makes another cubin of its PTX"}
    for kernel, place in zip(exchanged, reversed(exchanged), strict=True):
        where = f"{place['name']} with {place['lineage']['warps']} warps"
        assert failures[kernel["sha256"]] == {"cubin-derived": f"lies in the place of {where}"}
    [wrong] = [region for region in report["regions"] if region["failure"]]
    assert "times as far from float32 as eager execution" in wrong["failure"]


def torch_project(place: Path, factory: str) -> Path:
    """A recipe with `selfcheck = true` for programs/gates.py, compiled with plain torch: a few seconds."""
    (place / "program").mkdir(parents=True)
    shutil.copy(PROGRAMS / "gates.py", place / "program")
    (place / "pyproject.toml").write_text(
        f"""[build-system]
requires = ["hatchling", "hatch-model-cache"]
build-backend = "hatchling.build"
[project]
name = "model-cache-gates-h100-sxm5-80gb"
version = "1.0.0"
requires-python = ">=3.11"
[tool.hatch.build.hooks.model-cache]
engine = "torch==2.14.0"
model = "example/gates"
config = "program"
factory = "gates:{factory}"
targets = ["h100-sxm5-80gb"]
selfcheck = true
""",
        "utf-8",
    )
    return place


def build(project: Path, engine_python: str) -> subprocess.CompletedProcess[str]:
    """The wheel of a recipe that has no artifacts yet: compiled, checked, packed."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    environment = {**os.environ, "MODEL_CACHE_PYTHON": engine_python}
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_kernel_that_is_wrong_stops_the_build(tmp_path: Path, engine_python: str) -> None:
    project = torch_project(tmp_path / "recipe", "make_with_a_wrong_compiler")
    before = sorted(project.rglob("*"))
    done = build(project, engine_python)
    assert done.returncode == 6
    assert "the check of the kernels failed" in done.stderr
    told = re.search(
        r"triton_per_fused_\w+ \([0-9a-f]{12}\): source-checked: its region: with \d+ tokens: .*", done.stderr
    )
    assert told, done.stderr
    assert "times as far from float32 as eager execution" in told[0]
    assert [path for path in sorted(project.rglob("*")) if path not in before and path.is_file()] == []


def test_a_kernel_that_is_unchecked_is_counted_and_stops_nothing(tmp_path: Path, engine_python: str) -> None:
    project = torch_project(tmp_path / "recipe", "make")
    done = build(project, engine_python)
    assert done.returncode == 0, done.stderr
    [wheel] = (project / "dist").glob("*.whl")
    status, report, _ = selfcheck(wheel, engine_python)
    counts = report["counts"]
    assert (status, counts["checked"], counts["unchecked"], counts["failed"]) == (0, 1, 2, 0)
    unchecked = [kernel for kernel in report["kernels"] if not kernel["checked"]]
    assert {kernel["name"] for kernel in unchecked} == {"triton_poi_fused_sin_1"}, "in two configurations"
    assert all(kernel["passed"] == ["source-checked", "cubin-derived"] for kernel in unchecked)
    assert all(list(kernel["reasons"]) == ["ptx-checked"] for kernel in unchecked)


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
