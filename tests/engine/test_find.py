"""`model-cache find -- vllm serve …` on a real wheel in a static index: the real vLLM says whether it would load it.

Three engine processes: a compile, two look-ups.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.conftest import MODELS
from engine.hosts import SERVE_ARGS, compile_recipe, pack, write_recipe
from package_indexes import FileServer

pytestmark = pytest.mark.engine

MODEL = "test-org/llama-tiny"
H100 = "h100-sxm5-80gb"


@pytest.fixture(scope="module")
def dist(engine_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one wheel."""
    place = tmp_path_factory.mktemp("find")
    project = write_recipe(place / "recipe", MODELS / "llama-tiny", MODEL, [MODEL, "./llama-tiny"], [H100])
    done = compile_recipe(project, place / "artifacts", engine_python)
    assert done.returncode == 0, done.stderr
    return pack(project, place / "artifacts").parent


def test_find_says_what_vllm_would_load(engine_python: str, dist: Path, tmp_path: Path) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    shutil.copytree(MODELS / "llama-tiny", work / "llama-tiny")
    command = [sys.executable, "-m", "model_cache"]
    subprocess.run([*command, "index", "build", str(dist), "--out", str(site), "--quiet"], check=True)
    environment = {
        "PATH": f"{Path(engine_python).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "MODEL_CACHE_PYTHON": engine_python,
    }

    def find(server: FileServer, *arguments: str) -> tuple[int, dict[str, Any]]:
        words = ["find", MODEL, "--index", server.url, "--target", H100, "--json", "--", "vllm", "serve"]
        done = subprocess.run(
            [*command, *words, "./llama-tiny", *arguments],
            env=environment,
            cwd=work,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.stderr == ""
        answer: dict[str, Any] = json.loads(done.stdout)
        return done.returncode, answer

    with FileServer(site) as server:
        code, answer = find(server, *SERVE_ARGS)
        [wheel] = answer["wheels"]
        assert (code, wheel["standing"], wheel["reasons"]) == (0, "hit", [])
        assert wheel["install"] == answer["install"]
        code, answer = find(server, *SERVE_ARGS[:-1], "256")
        [wheel] = answer["wheels"]
        assert (code, wheel["standing"], answer["install"]) == (10, "miss", None)
        assert wheel["reasons"] == [
            "miss: scheduler.max_num_seqs is 256 here, 1024 in the wheel. Give --max-num-seqs 1024."
        ]
        assert not [path for path in server.asked if path.endswith(".whl")], "no wheel was downloaded"
