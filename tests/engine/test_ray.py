"""`model-cache matrix build --on ray` on a real Ray cluster of one machine. Only the engine is fakes/fake_engine.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from build_factories import CONFIG
from fakes import fake_engine
from model_cache.archive import WheelPayload
from model_cache.verify import verify

pytestmark = pytest.mark.engine  # no engine, and too slow for the fast tests all the same

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
        head_node_args={"num_cpus": 2, "include_dashboard": False, "memory": 8 << 30, "object_store_memory": 128 << 20},
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
