"""The engine's own Triton kernels (`components = ["triton"]`): compiled ahead without a GPU, found by a start with
another HOME, cache root and path of the packages, which then runs ptxas not once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine.hosts import ROOT, SERVE_ARGS, Built, compile_recipe, pack, write_recipe
from factories import install, make_host, run
from model_cache.store import groups

pytestmark = pytest.mark.engine

MODELS = ROOT / "tests" / "data" / "models"
TARGET = "h100-sxm5-80gb"
MODEL = "./llama-tiny"
OF_EVERY_START = {"_compute_slot_mappings_kernel", "_gather_block_tables_kernel", "_prepare_pos_seq_lens_kernel"}
OF_SAMPLING = {"_apply_grammar_bitmask_kernel", "_min_p_kernel", "_penalties_kernel", "_topk_log_softmax_kernel"}


@pytest.fixture(scope="module")
def built(engine_python: str, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The tiny Llama with the engine's own kernels, and what its other kernels were made from."""
    place = tmp_path_factory.mktemp("warmup")
    project = write_recipe(
        place / "recipe", MODELS / "llama-tiny", "example/llama-tiny", [MODEL], [TARGET], components=["triton"]
    )
    with (project / "pyproject.toml").open("a") as recipe:
        recipe.write('keep = ["ptx"]\n')
    done = compile_recipe(project, place / "artifacts", engine_python)
    assert done.returncode == 0, done.stdout + done.stderr
    return Built(project, place / "artifacts", pack(project, place / "artifacts"), "example/llama-tiny", MODEL)


@pytest.fixture(scope="module")
def site(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel is installed."""
    return install(built.wheel, tmp_path_factory.mktemp("site") / "site-packages")


@pytest.fixture
def root(built: Built, site: Path, tmp_path: Path) -> Path:
    """A cache root with the wheel in it."""
    engine = built.manifest()["engine"]
    versions = {name: engine[name] for name in ("torch", "cuda", "triton", "python")}
    run(site, tmp_path / "root", make_host(assumed=TARGET, **versions), built.name)
    return tmp_path / "root"


def start(engine_python: str, built: Built, root: Path, place: Path) -> dict[str, Any]:
    """One start of the engine to the end of its warm-up."""
    shutil.copytree(built.project / "model", place / "work" / MODEL)
    for name in ("home", "scratch"):
        (place / name).mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(place / "home"),
        "VLLM_CACHE_ROOT": str(root),
        "PYTHONPATH": str(ROOT / "hatch_plugin"),
    }
    script = ROOT / "tests/engine/scripts/warm_start.py"
    command = [engine_python, str(script), TARGET, str(place / "scratch"), MODEL, *SERVE_ARGS, "--skip-tokenizer-init"]
    done = subprocess.run(
        command, env=environment, cwd=place / "work", capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def names(kernels: dict[str, bool]) -> set[str]:
    return {kernel.partition(" ")[0] for kernel in kernels}


def test_a_start_finds_every_kernel_of_its_own_and_compiles_none(
    built: Built, root: Path, engine_python: str, tmp_path: Path
) -> None:
    found = start(engine_python, built, root, tmp_path / "host")
    assert found["loaded"] == 1
    assert Path(found["place"]).is_relative_to(root), "Triton looks in the directory of the compiled model"
    assert names(found["kernels"]) >= OF_EVERY_START | OF_SAMPLING
    assert [kernel for kernel, hit in found["kernels"].items() if not hit] == []
    assert found["ptxas_runs"] == 0


def test_without_the_files_that_name_their_place_none_is_found(
    built: Built, root: Path, engine_python: str, tmp_path: Path
) -> None:
    written = list(root.rglob(f"{groups.PREFIX}*"))
    for file in written:
        file.unlink()
    found = start(engine_python, built, root, tmp_path / "host")
    assert found["loaded"] == 1
    assert not any(found["kernels"].values())
    assert found["ptxas_runs"] == len(found["kernels"]) == len(written) > 10


def test_the_manifest_says_which_files_are_the_engines_kernels(built: Built) -> None:
    [entry] = built.manifest()["entries"]
    own = [file for file in entry["files"] if file["kind"] == groups.KIND]
    assert {file["path"].rpartition(".")[2] for file in own} == {"cubin", "json"}
    assert len(own) == 2 * len({file["path"].rpartition("/")[0] for file in own})
    stand_ins = {item["site"] for item in built.manifest()["build"]["stand_ins"]}
    assert "vllm.async_copy_to_np" in stand_ins


def test_no_path_of_the_build_is_in_them(built: Built, engine_python: str) -> None:
    for path in (built.artifacts / "files").rglob("*.json"):
        data = path.read_text()
        for place in (str(ROOT), str(Path(engine_python).parents[1]), str(built.project), str(Path.home()) + "/"):
            assert place not in data, (path, place)
