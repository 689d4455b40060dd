"""vLLM's piecewise path, VLLM_USE_AOT_COMPILE=0: what is compiled here for a host whose engine lies elsewhere is found
there by an unmodified `vllm serve`, under another cache root and HOME."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.hosts import SERVE_ARGS, Built, Host, compile_recipe, pack, site_packages, write_recipe

pytestmark = pytest.mark.engine

MODELS = Path(__file__).resolve().parents[1] / "data" / "models"
TARGET = "h100-sxm5-80gb"
OFF = {"VLLM_USE_AOT_COMPILE": "0"}
MODEL = "./llama-tiny"


@pytest.fixture(scope="module")
def built(engine_python: str, serving: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Compiled by one environment for another one."""
    place = tmp_path_factory.mktemp("piecewise")
    project = write_recipe(
        place / "recipe",
        MODELS / "llama-tiny",
        "example/llama-tiny",
        [MODEL],
        [TARGET],
        environment=OFF,
        packages=site_packages(serving),
    )
    done = compile_recipe(project, place / "artifacts", engine_python)
    assert done.returncode == 0, done.stdout + done.stderr
    return Built(project, place / "artifacts", pack(project, place / "artifacts"), "example/llama-tiny", MODEL)


@pytest.fixture
def host(built: Built, serving: Path, own_wheel: Path, tmp_path: Path) -> Any:
    """A host with the wheel."""
    found = Host(serving, tmp_path / "host")
    (found.place / "home").mkdir(parents=True)
    found.pip_install(built.wheel, own_wheel)
    shutil.copytree(built.project / "model", found.work / MODEL)
    yield found
    found.pip_uninstall(built.name)


def test_every_piece_is_loaded_and_nothing_is_compiled(built: Built, host: Host) -> None:
    on = {"MODEL_CACHE_DISABLE": "0", "MODEL_CACHE_ASSUME_TARGET": TARGET, **OFF}
    report = host.serve(MODEL, TARGET, environment=on)
    assert report.warm, report
    assert (report.ranks, report.loaded) == (("0_0",), 1)
    log = (host.place / "engine.log").read_text()
    assert "model-cache: hit backbone rank 0_0 in" in log
    assert "could not be compared" not in log
    told = host.model_cache("status", "--root", str(host.cache_root), "--json")
    [wheel] = json.loads(told.stdout)["wheels"]
    assert (wheel["name"], wheel["used"], wheel["intact"], wheel["unsafe"]) == (built.name, True, True, False)
    [found] = wheel["looked_up"]
    [entry] = built.manifest()["entries"]
    assert (found["key"], found["parts"]) == (entry["key"], report.parts)
    assert entry["component"] == "vllm-piecewise"
    assert {file["kind"] for file in entry["files"]} == {"vllm-piece", "vllm-piecewise-index"}


def test_check_foresees_it_and_names_another_place_of_the_packages(
    built: Built, host: Host, engine_python: str
) -> None:
    assert checked(built, host, str(host.python))["verdict"] == "hit"
    elsewhere = checked(built, host, engine_python)
    assert elsewhere["verdict"] == "miss"
    [reason] = elsewhere["wheels"][0]["reasons"]
    here = site_packages(Path(engine_python))
    assert (reason["factor"], reason["wheel"], reason["host"]) == (
        "code.directory",
        site_packages(host.python),
        here,
    )
    assert f'build with `packages-directory = "{here}"`' in reason["change"]


def test_a_real_weight_is_traced_through_a_file_that_a_pretended_one_is_not(engine_python: str, tmp_path: Path) -> None:
    """What `vllm_piecewise._hidden_files` adds to the key: without it, no real engine would find what is built."""
    script = Path(__file__).parent / "scripts" / "traced_weight.py"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "MODEL_CACHE_DISABLE": "1"}
    done = subprocess.run(
        [engine_python, "-s", str(script)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["own"], found["plain"]) == ([found["file"]], [])


def checked(built: Built, host: Host, python: str) -> dict[str, Any]:
    """`model-cache check --json` of the wheel, for the engine of an interpreter."""
    command = [sys.executable, "-m", "model_cache", "check", str(built.wheel), "--target", TARGET, "--json"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(host.place / "home"), "MODEL_CACHE_PYTHON": python, **OFF}
    done = subprocess.run(
        [*command, "--", "vllm", "serve", MODEL, *SERVE_ARGS],
        env=environment,
        cwd=host.work,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode in (0, 10), document
    return document
