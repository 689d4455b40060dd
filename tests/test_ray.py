"""A real Ray cluster of one machine: `model-cache matrix build --on ray`, and the Ray Serve application of a project.

Only the engines are fakes: fakes/fake_engine.py compiles, fakes/vllm_command.py serves.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from build_factories import CONFIG
from fakes import fake_engine, vllm_command
from hatch_model_cache.recipe.file import load_recipe
from model_cache import cli
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.verify import verify

pytestmark = pytest.mark.fleet

MATRIX = """
engines = ["vllm==0.33.0"]
targets = ["h100-sxm5-80gb", "a100-sxm4-80gb"]
[models."org/M"]
config = "model"
environment = { FAKE_ENGINE = "success" }
[models."org/Broken"]
config = "model"
targets = ["h200"]
environment = { FAKE_ENGINE = "error" }
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster with two cores, in processes of its own."""
    from ray.cluster_utils import Cluster

    running = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2,
            "include_dashboard": False,
            "num_gpus": 1,
            "memory": 8 << 30,
            "object_store_memory": 128 << 20,
        },
    )
    yield running.address
    running.shutdown()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "matrix.toml").write_text(MATRIX)
    fake_engine.interpreter(tmp_path)
    return tmp_path


def build(directory: Path, address: str, **more: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "model_cache", "matrix", "build", str(directory), "--on", "ray", "--json"]
    variables = {**os.environ, "RAY_ADDRESS": address, "MODEL_CACHE_PYTHON": str(directory / "fake-python"), **more}
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, timeout=240, check=False)
    answer: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, answer


def test_cells_are_built_by_tasks_and_their_wheels_come_back(directory: Path, cluster: str) -> None:
    code, answer = build(directory, cluster)
    assert code == 6, answer
    assert {wheel["name"]: wheel["state"] for wheel in answer["wheels"]} == {
        "model-cache-m-h100-sxm5-80gb": "built",
        "model-cache-m-a100-sxm4-80gb": "built",
        "model-cache-broken-h200": "failed",
    }
    [problem] = answer["error"]["problems"]
    assert "ValueError: the model's head size is odd" in problem
    wheels = list((directory / "dist").iterdir())
    assert len(wheels) == 2
    for wheel in wheels:
        with WheelPayload(str(wheel)) as payload:
            assert verify(payload).manifest.engine.name == "vllm"


def test_a_signing_key_does_not_travel(directory: Path, cluster: str) -> None:
    code, answer = build(directory, cluster, MODEL_CACHE_SIGNING_KEY="/a/key.pem")
    assert (code, answer["error"]["kind"]) == (2, "usage")
    assert "sign the wheels here" in answer["error"]["message"]


def test_no_cluster_is_one_line(directory: Path) -> None:
    code, answer = build(directory, "127.0.0.1:1")
    assert (code, answer["error"]["kind"]) == (2, "usage")
    assert answer["error"]["message"].startswith("no Ray cluster answers at RAY_ADDRESS=127.0.0.1:1: ")


PORT = 18_123


def fetched(url: str, data: bytes | None = None) -> bytes:
    """The answer, as soon as somebody answers."""
    until = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=30) as answer:
                found: bytes = answer.read()
                return found
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def test_the_ray_serve_application_serves(tmp_path: Path, cluster: str) -> None:
    project = tmp_path / "project"
    arguments = ["new", str(project), "--target", "h100-sxm5-80gb", "--engine", "vllm==0.33.0", "--with", "ray-serve"]
    line = ["--env", "NOTE=a 'b'", "--", "vllm", "serve", "org/M", "--max-model-len", "512"]
    assert cli.main([*arguments, *line]) == 0
    folder = project / "deploy/ray_serve"
    # nodes have `vllm` on their PATH and the port is free; here neither is so
    command = vllm_command.command(tmp_path)
    (folder / "app.py").write_text((folder / "app.py").read_text().replace("'vllm',", f"{str(command)!r},"))
    config = (folder / "serve.yaml").read_text().replace("0.0.0.0", "127.0.0.1").replace("8000", str(PORT))
    (folder / "serve.yaml").write_text(config)
    serve = Path(sys.executable).with_name("serve")
    server = subprocess.Popen(
        [serve, "run", "--working-dir", "deploy/ray_serve", "deploy/ray_serve/serve.yaml"],
        cwd=project,
        env={**os.environ, "RAY_ADDRESS": cluster},
    )
    try:
        seen = json.loads(fetched(f"http://127.0.0.1:{PORT}/v1/models?x=1"))
        expected = ["serve", "org/M", *load_recipe(project).serve_args]
        assert seen["arguments"][: len(expected)] == expected
        assert (seen["note"], seen["path"]) == ("a 'b'", "/v1/models?x=1")
        assert fetched(f"http://127.0.0.1:{PORT}/v1/completions", b"hello" * 99_999) == b"hello" * 99_999
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=60)
