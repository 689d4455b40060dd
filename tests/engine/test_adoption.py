"""A wheel for one name and other weights of the same model, with the real vLLM under a pretended GPU.

What a real CPU engine answers with an adopted artifact is in `test_adoption_cpu`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.hosts import SERVE_ARGS, Host, compile_recipe, pack, write_recipe
from factories import install
from hatch_model_cache.compiling.rehearsal import Report

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests" / "data" / "models" / "llama-tiny"
H100 = "h100-sxm5-80gb"
WHEEL = "model-cache-llama-tiny-h100-sxm5-80gb"


@dataclass(frozen=True)
class Serving:
    """A host with the wheel and the plug-in installed beside the engine, in `site`."""

    host: Host
    site: Path

    def start(self, model: str, *arguments: str, root: str = "cache", **environment: str) -> tuple[Report, str]:
        """`vllm serve` with the plug-in on; the report, and what the log says of model caches."""
        on = {"PYTHONPATH": str(self.site), "MODEL_CACHE_DISABLE": "0", "MODEL_CACHE_ASSUME_TARGET": H100}
        report = self.host.serve(
            model, H100, arguments=arguments or SERVE_ARGS, root=self.host.place / root, environment=on | environment
        )
        log = (self.host.place / "engine.log").read_text()
        return report, "\n".join(line for line in log.splitlines() if "model-cache:" in line)

    def model_cache(self, *arguments: str, root: str = "cache") -> dict[str, Any]:
        """The command `model-cache` of this host, as JSON."""
        command = [str(self.host.python), "-m", "model_cache", *arguments, "--root", str(self.host.place / root)]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.host.place / "home"), "PYTHONPATH": str(self.site)}
        done = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def fine_tune(self, name: str, **changes: object) -> str:
        """A directory with the model's configuration, with `changes`; its weights are read by nobody here."""
        place = self.host.work / name
        shutil.copytree(MODEL, place)
        if changes:
            config = json.loads((place / "config.json").read_text())
            (place / "config.json").write_text(json.dumps({**config, **changes}))
        return f"./{name}"


TWO = (*SERVE_ARGS, "--tensor-parallel-size", "2")


def serving_with(place: Path, engine_python: str, serve_args: Sequence[str]) -> Serving:
    """A host with a wheel for example/llama-tiny, served with these arguments."""
    names = ["example/llama-tiny"]
    project = write_recipe(place / "recipe", MODEL, *names, names, [H100], serve_args=serve_args)
    done = compile_recipe(project, place / "artifacts", engine_python)
    assert done.returncode == 0, done.stdout + done.stderr
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(place / "own"), str(ROOT)], check=True)
    [own] = (place / "own").glob("*.whl")
    site = install(pack(project, place / "artifacts"), install(own, place / "site"))
    host = Host(Path(engine_python), place / "host")
    (host.place / "home").mkdir(parents=True)
    return Serving(host, site)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, engine_python: str) -> Serving:
    return serving_with(tmp_path_factory.mktemp("adoption"), engine_python, SERVE_ARGS)


def test_other_weights_with_the_same_config_start_warm(serving: Serving) -> None:
    """A wheel built as example/llama-tiny, served as a local directory."""
    model = serving.fine_tune("fine-tune")
    report, log = serving.start(model, VLLM_FORCE_AOT_LOAD="1")
    assert report.warm, report
    assert (report.inductor_compiles, report.ptxas_runs) == (0, 0)
    assert "model-cache: adopted backbone rank 0_0 in" in log
    assert "same config.json, and all else but the name is equal" in log
    assert "unsafe" not in log
    assert "could not be compared" not in log

    [wheel] = serving.model_cache("status")["wheels"]
    assert (wheel["name"], wheel["used"], wheel["intact"]) == (WHEEL, True, True)
    [found] = wheel["looked_up"]
    assert (found["adopted"], found["hit"]) == (True, True)

    # a second start finds it like any other entry, also where nothing may be adopted
    again = {"VLLM_FORCE_AOT_LOAD": "1", "MODEL_CACHE_ADOPT": "0"}
    report, log = serving.start(model, **again)
    assert report.warm, report
    assert "model-cache: adopted backbone rank 0_0 in" in log
    assert "same config.json" not in log

    # and one for other code loads it too; Triton, in whose own key the variable is, compiles some kernels again (none
    # to three were seen before the start ended), and the others are the wheel's
    report, log = serving.start(model, **again, TRITON_DEFAULT_FP_FUSION="0")
    assert (report.loaded, report.inductor_compiles) == (1, 0)
    why = "triton.environment is TRITON_DEFAULT_FP_FUSION=0 here, not set in the wheel; these variables change what"
    assert f"; unsafe: {why} Triton" in log
    [wheel] = serving.model_cache("status")["wheels"]
    assert wheel["unsafe"]

    removed = serving.model_cache("remove", WHEEL)
    assert len(list((serving.host.place / "cache").glob("torch_compile_cache/torch_aot_compile/*/rank_0_0/model"))) == 0
    assert removed["wheels"][0]["name"] == WHEEL


def test_nothing_is_adopted_when_that_is_off(serving: Serving) -> None:
    report, log = serving.start(serving.fine_tune("off"), root="off", MODEL_CACHE_ADOPT="0")
    assert not report.warm
    assert report.inductor_compiles > 0
    assert (
        f"model-cache: miss backbone rank 0_0: model ./off here, example/llama-tiny in {WHEEL} "
        "(not adopted: MODEL_CACHE_ADOPT=0)"
    ) in log


def test_a_miss_names_what_differs(serving: Serving) -> None:
    arguments = [word.replace("8192", "4096") for word in SERVE_ARGS]
    report, log = serving.start(serving.fine_tune("flags"), *arguments, root="flags", VLLM_USAGE_SOURCE="elsewhere")
    assert not report.warm
    assert "model-cache: miss backbone rank 0_0: " in log
    for difference in (
        "max-num-batched-tokens 4096 here, 8192",
        "VLLM_USAGE_SOURCE elsewhere here, production",
        "model ./flags here, example/llama-tiny",
    ):
        assert difference in log
    [missed] = serving.model_cache("status", root="flags")["misses"]
    told = {d["factor"]: (d["wheel"], d["here"]) for d in missed["differences"]}
    assert told["max-num-batched-tokens"] == ("8192", "4096")


def test_another_config_is_another_model(serving: Serving) -> None:
    report, log = serving.start(serving.fine_tune("other", rms_norm_eps=1e-6), root="other")
    assert not report.warm
    assert f"model-cache: miss backbone rank 0_0: no installed wheel is for this model; {WHEEL} is for another" in log


def test_all_ranks_adopt_at_the_same_moment(tmp_path: Path, engine_python: str) -> None:
    """Two worker processes look for one entry, and each needs its own rank of it."""
    serving = serving_with(tmp_path, engine_python, TWO)
    report, log = serving.start(serving.fine_tune("fine-tune"), *TWO, VLLM_FORCE_AOT_LOAD="1")
    assert report.warm, report
    assert report.ranks == ("0_0", "1_0")
    for rank in report.ranks:
        assert f"model-cache: adopted backbone rank {rank} in" in log
    [wheel] = serving.model_cache("status")["wheels"]
    assert (wheel["intact"], wheel["processes"], len(wheel["adopted"])) == (True, 2, 1)
