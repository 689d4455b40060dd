"""What every known version of vLLM shows, and what a new one has to show before it is known.

One adapter knows all versions (`hatch_model_cache.compile.engines.vllm`), so each is asked the same: what is replaced
is there; what is compiled for a GPU that is not there is loaded by an unmodified start, with the plug-in and without
it, also for other weights; and `check` says before a start what it will be. docs/guides/engine-version.md tells how a
new version comes in.

`make versions` makes the environments of all versions. Without that only the newest is there, which is never skipped.
About twelve engine processes for each version.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.hosts import SERVE_ARGS, Built, Host, compile_recipe, pack, serving_environment, write_recipe
from hatch_model_cache import targets
from hatch_model_cache.checking import check
from hatch_model_cache.checking.verdict import Answer, judge
from hatch_model_cache.compile import engines
from hatch_model_cache.compiling.progress import Silent
from hatch_model_cache.compiling.rehearsal import Report
from model_cache.wheel.manifest import parse

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests" / "data" / "models"
SCRIPT = Path(__file__).parent / "scripts" / "patched_attributes.py"
H100, A100 = "h100-sxm5-80gb", "a100-sxm4-80gb"
VERSIONS = sorted(engines.adapter("vllm").VERSIONS, reverse=True)
FORCED = {"VLLM_FORCE_AOT_LOAD": "1"}
SOURCE = {"VLLM_USAGE_SOURCE": "production-docker-image"}


@dataclass(frozen=True)
class Engine:
    """One version. python: what compiles; serving: the same at another path, with this project installed."""

    version: str
    python: str
    serving: Path


@pytest.fixture(scope="module", params=VERSIONS)
def engine(request: pytest.FixtureRequest, own_wheel: Path) -> Engine:
    """Every version whose environment is there."""
    version: str = request.param
    if version == VERSIONS[0]:
        return Engine(version, request.getfixturevalue("engine_python"), request.getfixturevalue("serving"))
    name = f"vllm-{version}"
    python = ROOT / ".engines" / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"NOT SHOWN for vllm {version}: there is no .engines/{name}; `make versions` makes it")
    return Engine(version, str(python), serving_environment(name, own_wheel))


@pytest.fixture(scope="module")
def llama(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(engine, "llama-tiny", tmp_path_factory.mktemp(f"llama-{engine.version}"))


@pytest.fixture(scope="module")
def moe(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(engine, "qwen3-moe-tiny", tmp_path_factory.mktemp(f"moe-{engine.version}"))


def build(engine: Engine, model: str, place: Path) -> Built:
    """A model compiled for an H100 and an A100, in one wheel."""
    served = (f"example/{model}", f"./{model}")
    project = write_recipe(
        place / "recipe", MODELS / model, served[0], served, [H100, A100], engine=f"vllm=={engine.version}"
    )
    done = compile_recipe(project, place / "artifacts", engine.python)
    assert done.returncode == 0, done.stdout + done.stderr
    return Built(project, place / "artifacts", pack(project, place / "artifacts"), *served)


@pytest.fixture
def host(engine: Engine, own_wheel: Path, tmp_path: Path) -> Host:
    (tmp_path / "host" / "home").mkdir(parents=True)
    return Host(engine.serving, tmp_path / "host")


@contextmanager
def installed(built: Built, host: Host, own_wheel: Path) -> Iterator[None]:
    """The wheel is installed on the host, and the model is in its working directory."""
    host.pip_install(built.wheel, own_wheel)
    shutil.copytree(built.project / "model", host.work / built.directory)
    try:
        yield
    finally:
        host.pip_uninstall(built.name)


def test_what_is_replaced_is_there_and_is_asked_in_the_same_way(engine: Engine, tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "VLLM_CACHE_ROOT": str(tmp_path / "vllm"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "MODEL_CACHE_DISABLE": "1",
    }
    command = [engine.python, "-s", str(SCRIPT), str(ROOT / "hatch_plugin"), A100, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) > 180, "the script has lost sight of the patches"
    assert [f"{owner}.{name}: {wrong}" for owner, name, wrong in found if wrong] == []


def test_the_manifest_names_the_versions_that_it_is_for(engine: Engine, llama: Built) -> None:
    manifest = parse(json.dumps(llama.manifest()).encode())
    done = subprocess.run(
        [engine.python, "-c", "import importlib.metadata as m; print(m.version('torch'), m.version('triton'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    torch, triton = done.stdout.split()
    assert (manifest.engine.name, manifest.engine.version) == ("vllm", engine.version)
    assert ((manifest.engine.torch or "").partition("+")[0], manifest.engine.triton) == (
        torch.partition("+")[0],
        triton,
    )
    assert {(e.target, e.prefix) for e in manifest.entries} == {(H100, "backbone"), (A100, "backbone")}
    assert {kernel.arch for kernel in manifest.kernels} == {"sm_90a", "sm_80"}


@pytest.mark.parametrize("model", ["llama", "moe"])
def test_a_deployed_wheel_is_loaded_and_nothing_is_compiled(
    model: str, request: pytest.FixtureRequest, host: Host, own_wheel: Path
) -> None:
    built: Built = request.getfixturevalue(model)
    with installed(built, host, own_wheel):
        deploy(host, A100)
        report = host.serve(built.directory, A100, environment=FORCED)
    assert report.warm, report
    assert report.loaded == 1


def test_the_plug_in_deploys_and_tells_what_the_engine_has_loaded(llama: Built, host: Host, own_wheel: Path) -> None:
    with installed(llama, host, own_wheel):
        report, log, wheel = start(host, llama.directory)
    assert report.warm, report
    assert "model-cache: deployed" in log
    assert "model-cache: hit backbone rank 0_0 in" in log
    assert "could not be compared" not in log
    assert (wheel["name"], wheel["used"], wheel["intact"], wheel["unsafe"]) == (llama.name, True, True, False)
    [found] = wheel["looked_up"]
    assert (found["prefix"], found["rank"], found["hit"], found["parts"]) == ("backbone", "0_0", True, report.parts)
    # the engine has looked for the key that the build has written down
    entries = [e for e in llama.manifest()["entries"] if (e["target"], e["served_as"]) == (H100, llama.directory)]
    assert [found["key"]] == [entry["key"] for entry in entries]


def test_the_plug_in_adopts_what_was_built_for_other_weights(moe: Built, host: Host, own_wheel: Path) -> None:
    with installed(moe, host, own_wheel):
        shutil.copytree(moe.project / "model", host.work / "fine-tune")
        report, log, wheel = start(host, "./fine-tune")
    assert report.warm, report
    assert "model-cache: adopted backbone rank 0_0 in" in log
    [found] = wheel["looked_up"]
    assert (found["adopted"], found["hit"]) == (True, True)


def test_check_foresees_a_hit(llama: Built, host: Host, own_wheel: Path) -> None:
    """That it is one shows `test_the_plug_in_deploys_and_tells_what_the_engine_has_loaded`."""
    with installed(llama, host, own_wheel):
        code, document = checked(llama, host)
    assert (code, document["verdict"], document["wheels"][0]["reasons"]) == (0, "hit", [])


def test_a_miss_by_flag_and_variable_is_a_cold_start(llama: Built, host: Host, own_wheel: Path) -> None:
    """A01: an environment that differs is named, with both values, before the start."""
    arguments = [word.replace("1024", "256") for word in SERVE_ARGS]
    with installed(llama, host, own_wheel):
        code, document = checked(llama, host, *arguments, **SOURCE)
        deploy(host, H100)
        report = host.serve(llama.directory, H100, arguments=arguments, environment=SOURCE)
    assert (code, document["verdict"]) == (10, "miss")
    reasons = {r["factor"]: (r["wheel"], r["host"], r["change"]) for r in document["wheels"][0]["reasons"]}
    assert reasons == {
        "env.VLLM_USAGE_SOURCE": ("production", "production-docker-image", "unset VLLM_USAGE_SOURCE"),
        "scheduler.max_num_seqs": ("1024", "256", "give --max-num-seqs 1024"),
    }
    assert not report.warm
    assert report.inductor_compiles > 0
    assert report.ptxas_runs > 0


def test_a11_another_chip_under_the_same_name_would_be_loaded_and_is_unsafe(
    llama: Built, host: Host, own_wheel: Path
) -> None:
    """A11: the engine's key is that of a warm start, and the check says what it does not hold."""
    manifest = parse(json.dumps(llama.manifest()).encode())
    with installed(llama, host, own_wheel):
        seen = check.observe(
            check.Command("vllm", (llama.directory, *SERVE_ARGS)),
            {**targets.load(H100).as_dict(), "sm_count": 114},
            str(host.python),
            environment=surroundings(host),
            directory=str(host.work),
            progress=Silent(),
        )
    found = judge(manifest, seen, engines.adapter("vllm").rules(seen.engine["version"]))
    assert found.answer is Answer.UNSAFE
    assert [(r.factor, r.wheel, r.host) for r in found.reasons] == [("sm_count", "132", "114")]
    assert found.keys["backbone"] in {entry.key for entry in manifest.entries}


def deploy(host: Host, target: str) -> None:
    """What is installed, for a pretended GPU."""
    done = host.model_cache("deploy", "--assume-target", target, "--root", str(host.cache_root))
    assert done.returncode == 0, done.stdout + done.stderr


def start(host: Host, model: str) -> tuple[Report, str, dict[str, Any]]:
    """`vllm serve` with the plug-in on: the report, the log, and what `status` then says of the one wheel."""
    on = {"MODEL_CACHE_DISABLE": "0", "MODEL_CACHE_ASSUME_TARGET": H100, **FORCED}
    report = host.serve(model, H100, environment=on)
    told = host.model_cache("status", "--root", str(host.cache_root), "--json")
    [wheel] = json.loads(told.stdout)["wheels"]
    return report, (host.place / "engine.log").read_text(), wheel


def surroundings(host: Host) -> dict[str, str]:
    """What `vllm serve` is started with on a host."""
    return {
        "PATH": f"{host.python.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(host.place / "home"),
        "LANG": "C.UTF-8",
        "MODEL_CACHE_PYTHON": str(host.python),
    }


def checked(built: Built, host: Host, *arguments: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """`model-cache check --json`, as a user runs it before the start. It leaves nothing in TMPDIR."""
    temporary = host.place / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "model_cache", "check", str(built.wheel), "--target", H100, "--json"]
    done = subprocess.run(
        [*command, "--", "vllm", "serve", built.directory, *(arguments or SERVE_ARGS)],
        env=surroundings(host) | environment | {"TMPDIR": str(temporary)},
        cwd=host.work,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode in (0, 10, 11, 12), done.stdout + done.stderr
    assert list(temporary.iterdir()) == []
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document
