"""`model-cache check` against what an unmodified `vllm serve` then does: one wheel, four hosts, the real vLLM.

Six engine processes: a compile, three look-ups, two starts (the GPU that is unsafe has the name, and so the key, of the
one that is started). Many more configurations are in tests/matrix.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.hosts import SERVE_ARGS, Host, compile_recipe, pack, write_recipe
from factories import make_host
from hatch_model_cache import targets
from hatch_model_cache.checking import check
from hatch_model_cache.checking.verdict import Answer, judge
from hatch_model_cache.compile import engines
from hatch_model_cache.compiling.progress import Silent
from hatch_model_cache.compiling.rehearsal import Report
from model_cache.store.deploy import deploy
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.manifest import Manifest
from model_cache.wheel.verify import read_manifest

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests" / "data" / "models" / "llama-tiny"
H100 = "h100-sxm5-80gb"
SOURCE = {"VLLM_USAGE_SOURCE": "production-docker-image"}


@dataclass(frozen=True)
class Served:
    """A wheel, and a host with it deployed."""

    wheel: Path
    host: Host

    @property
    def manifest(self) -> Manifest:
        """The wheel's."""
        with WheelPayload(str(self.wheel)) as payload:
            return read_manifest(payload).manifest

    def environment(self) -> dict[str, str]:
        """What `vllm serve` is started with here."""
        return {
            "PATH": f"{self.host.python.parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.host.place / "home"),
            "LANG": "C.UTF-8",
            "MODEL_CACHE_PYTHON": str(self.host.python),
        }

    def check(self, *arguments: str, environment: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        """`model-cache check --json`, as a user runs it before the start."""
        command = [sys.executable, "-m", "model_cache", "check", str(self.wheel), "--target", H100, "--json"]
        done = subprocess.run(
            [*command, "--", "vllm", "serve", "./llama-tiny", *arguments],
            env=self.environment() | (environment or {}),
            cwd=self.host.work,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode in (0, 10, 11, 12), done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return done.returncode, document

    def serve(self, *arguments: str, environment: dict[str, str] | None = None) -> Report:
        """The same start for real."""
        whole = {"PYTHONPATH": str(ROOT / "hatch_plugin"), **(environment or {})}
        return self.host.serve("./llama-tiny", H100, arguments=arguments, environment=whole)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, engine_python: str) -> Served:
    place = tmp_path_factory.mktemp("check")
    project = write_recipe(place / "recipe", MODEL, "example/llama-tiny", ["./llama-tiny"], [H100])
    done = compile_recipe(project, place / "artifacts", engine_python)
    assert done.returncode == 0, done.stdout + done.stderr
    host = Host(Path(engine_python), place / "host")
    shutil.copytree(MODEL, host.work / "llama-tiny")
    (host.place / "home").mkdir()
    found = Served(pack(project, place / "artifacts"), host)
    versions = {
        name: getattr(found.manifest.engine, name) for name in ("torch", "triton", "cuda", "python", "platform")
    }
    with WheelPayload(str(found.wheel)) as payload:
        deploy(payload, str(host.cache_root), make_host(**versions))
    return found


def test_a_hit_is_a_warm_start(served: Served) -> None:
    code, document = served.check(*SERVE_ARGS)
    assert (code, document["verdict"], document["wheels"][0]["reasons"]) == (0, "hit", [])
    report = served.serve(*SERVE_ARGS, environment={"VLLM_FORCE_AOT_LOAD": "1"})
    assert report.warm, report


def test_a_miss_by_flag_and_variable_is_a_cold_start(served: Served) -> None:
    """A01: an environment that differs is named, with both values, before the start."""
    arguments = [word.replace("1024", "256") for word in SERVE_ARGS]
    code, document = served.check(*arguments, environment=SOURCE)
    assert (code, document["verdict"]) == (10, "miss")
    reasons = {r["factor"]: (r["wheel"], r["host"], r["change"]) for r in document["wheels"][0]["reasons"]}
    assert reasons == {
        "env.VLLM_USAGE_SOURCE": ("production", "production-docker-image", "unset VLLM_USAGE_SOURCE"),
        "scheduler.max_num_seqs": ("1024", "256", "give --max-num-seqs 1024"),
    }
    report = served.serve(*arguments, environment=SOURCE)
    assert not report.warm
    assert report.inductor_compiles > 0


def test_a11_another_chip_under_the_same_name_would_be_loaded_and_is_unsafe(served: Served) -> None:
    """A11: the engine's key is that of the warm start above, and the check says what it does not hold."""
    manifest, record = served.manifest, {**targets.load(H100).as_dict(), "sm_count": 114}
    seen = check.observe(
        check.Command("vllm", ("./llama-tiny", *SERVE_ARGS)),
        record,
        str(served.host.python),
        environment=served.environment(),
        directory=str(served.host.work),
        progress=Silent(),
    )
    found = judge(manifest, seen, engines.adapter("vllm").rules(seen.engine["version"]))
    assert found.answer is Answer.UNSAFE
    assert [(r.factor, r.wheel, r.host) for r in found.reasons] == [("sm_count", "132", "114")]
    assert found.keys["backbone"] in {entry.key for entry in manifest.entries}
