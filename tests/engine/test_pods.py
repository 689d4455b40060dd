"""The scripts of the Kubernetes templates, run as they are with the real vLLM: the Job's, then the init container's.

Only the places differ (`/scratch`, `/recipe`, `/tmp`, `/cache` are folders of this test), and `python3 -m pip` is
another environment's pip, for the engine's has none. The package index is a folder, and pypiserver for the upload.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hatch_model_cache.recipe.file import load_recipe
from model_cache import cli
from package_indexes import PASSWORD, USER, pypiserver

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests" / "data" / "models" / "llama-tiny"


def script(path: Path, place: Path, engine: Path) -> str:
    """The shell script in a resource, with its absolute places below `place`, told only which python3 there is."""
    document = next(iter(yaml.safe_load_all(path.read_text())))
    pod = document["spec"]["template"]["spec"]
    container = pod.get("initContainers", pod["containers"])[0]
    assert container["command"] == ["/bin/sh", "-ec"]
    text = re.sub(r"(?<![\w.])/(scratch|recipe|tmp|cache)\b", rf"{place}/\1", container["args"][0])
    pip = f"{shlex.quote(sys.executable)} -m pip --python {shlex.quote(str(engine))}"
    shim = f'python3() {{ if [ "$1 $2" = "-m pip" ]; then shift 2; {pip} "$@"; else {engine} "$@"; fi; }}\n'
    return shim + text


def run(text: str, place: Path, **more: str) -> None:
    kept = {name: value for name, value in os.environ.items() if name == "PATH" or name.startswith("PIP_")}
    variables = {**kept, "HOME": str(place / "scratch"), "PIP_FIND_LINKS": str(place / "links"), **more}
    subprocess.run(["/bin/sh", "-ec", text], env=variables, check=True, timeout=900)


def test_the_job_builds_and_the_init_container_deploys(engine_python: str, tmp_path: Path) -> None:
    engine, project = Path(engine_python), tmp_path / "project"
    for name in ("scratch", "recipe", "tmp", "cache", "links"):
        (tmp_path / name).mkdir()
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path / "links"), str(ROOT)], check=True
    )
    arguments = [
        "--target",
        "h100-sxm5-80gb",
        "--engine",
        "vllm==0.33.0",
        "--config",
        str(MODEL),
        "--with",
        "kubernetes",
    ]
    assert cli.main(["new", str(project), *arguments, "--", "vllm", "serve", "org/M", "--max-model-len", "512"]) == 0
    for file in (project / "pyproject.toml", project / "README.md", project / "model/config.json"):
        shutil.copy(file, tmp_path / "recipe")  # as a ConfigMap of these files is mounted

    with pypiserver(tmp_path / "index") as index:
        secrets = {"TWINE_REPOSITORY_URL": index.upload, "TWINE_USERNAME": USER, "TWINE_PASSWORD": PASSWORD}
        run(script(project / "deploy/kubernetes/build-job.yaml", tmp_path, engine), tmp_path, **secrets)
    [wheel] = (tmp_path / "scratch/recipe/dist").glob("*.whl")
    assert list((tmp_path / "index").rglob(wheel.name)), "uploaded"

    shutil.copy(wheel, tmp_path / "links")
    deploying = script(project / "deploy/kubernetes/serve.yaml", tmp_path, engine)
    run(deploying, tmp_path, MODEL_CACHE_TRUST_PLACE="1")
    entries = list((tmp_path / "cache/vllm/torch_compile_cache/torch_aot_compile").iterdir())
    assert len(entries) == len(load_recipe(project).served_as) * 2, "a Hub id has two keys"
