"""The whole road with the real vLLM: recipe → compile → wheel → pip → deploy → an unmodified `vllm serve` loads it.

The GPU is pretended on both sides, with another HOME, working directory, cache root and virtual environment path. These
tests show that the engine finds the artifacts under the keys it computes itself, and compiles nothing. What every
version of the engine has to show, with the tiny Llama and Qwen3-MoE, is in `test_conformance`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import shown
from engine.hosts import SERVE_ARGS, Built, Host, compile_recipe, pack, write_recipe
from model_cache.wheel.manifest import parse

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
H100, A100 = "h100-sxm5-80gb", "a100-sxm4-80gb"
MODELS = ROOT / "tests" / "data" / "models"


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory, engine_python: str) -> Built:
    """The tiny Qwen3 compiled for an H100 and an A100, in one wheel."""
    name = "qwen3-tiny"
    project = tmp_path_factory.mktemp(name) / "recipe"
    write_recipe(project, MODELS / name, f"example/{name}", [f"example/{name}", f"./{name}"], [H100, A100])
    artifacts = project.parent / "artifacts"
    done = compile_recipe(project, artifacts, engine_python)
    assert done.returncode == 0, done.stdout + done.stderr
    return Built(project, artifacts, pack(project, artifacts), f"example/{name}", f"./{name}")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory, engine_python: str) -> Built:
    """The tiny Llama for an H100, under two names."""
    project = tmp_path_factory.mktemp("one") / "recipe"
    served = ["example/llama-tiny", "./llama-tiny"]
    write_recipe(project, MODELS / "llama-tiny", "example/llama-tiny", served, [H100])
    artifacts = project.parent / "artifacts"
    done = compile_recipe(project, artifacts, engine_python)
    assert done.returncode == 0, done.stdout + done.stderr
    return Built(project, artifacts, pack(project, artifacts), served[0], served[1])


@pytest.fixture
def host(serving: Path, tmp_path: Path) -> Host:
    return Host(serving, tmp_path / "host")


@pytest.fixture
def installed(qwen3: Built, host: Host, own_wheel: Path) -> Iterator[Host]:
    """A host with the wheel installed and the model in its working directory."""
    host.pip_install(qwen3.wheel, own_wheel)
    shutil.copytree(qwen3.project / "model", host.work / qwen3.directory)
    yield host
    host.pip_uninstall(qwen3.name)


@pytest.mark.parametrize("target", [H100, A100])
def test_a_deployed_wheel_is_loaded_and_nothing_is_compiled(qwen3: Built, installed: Host, target: str) -> None:
    done = installed.model_cache("deploy", "--assume-target", target, "--root", str(installed.cache_root), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = installed.serve(qwen3.directory, target, environment={"VLLM_FORCE_AOT_LOAD": "1"})
    assert report.error is None
    assert report.loaded == 1
    assert report.parts > 0
    assert (report.inductor_compiles, report.ptxas_runs) == (0, 0)


class TestOneWheel:
    """What is the same for every model is shown on the tiny Llama."""

    def test_the_manifest_describes_what_was_built(self, llama: Built) -> None:
        document = llama.manifest()
        manifest = parse(json.dumps(document).encode())
        assert {e.served_as for e in manifest.entries} == {llama.hub_id, llama.directory}
        # the Hub id has two keys: with a Hub that answers and with one that does not
        assert sorted(e.served_as for e in manifest.entries) == ["./llama-tiny", *["example/llama-tiny"] * 2]
        assert len({f.sha256 for e in manifest.entries for f in e.files}) == 1
        assert len(document["kernels"]) > 5
        assert {k["arch"] for k in document["kernels"]} == {"sm_90a"}
        assert all(k["registers"] > 0 for k in document["kernels"])
        [factors] = document["factors"].values()
        assert sum(name.startswith("env.") for name in factors) > 200
        assert factors["scheduler.max_num_batched_tokens"] == "8192"
        assert factors["inductor.system.device.name"] == "NVIDIA H100 80GB HBM3"
        text = json.dumps(document)
        assert str(ROOT) not in text
        assert "/tmp" not in text

    def test_no_path_of_the_build_is_in_the_payload(self, llama: Built, engine_python: str) -> None:
        [model] = (llama.artifacts / "files").rglob("model")
        data = model.read_bytes()
        for path in (str(ROOT), str(Path(engine_python).parent.parent), str(llama.project), str(Path.home()) + "/"):
            assert path.encode() not in data, path

    def test_what_readme_says_after_a_start(self, llama: Built, host: Host, own_wheel: Path) -> None:
        host.pip_install(llama.wheel, own_wheel)
        shutil.copytree(llama.project / "model", host.work / "llama-tiny")
        try:
            on = {"MODEL_CACHE_DISABLE": "0", "MODEL_CACHE_ASSUME_TARGET": H100, "VLLM_FORCE_AOT_LOAD": "1"}
            report = host.serve("./llama-tiny", H100, environment=on)
            [status] = as_shown(host, shown.commands("README.md", "model-cache status"))
        finally:
            host.pip_uninstall(llama.name)
        assert report.warm, report
        assert once(status.command.output or "") <= once(status.output)

    def test_what_readme_says_beforehand(self, llama: Built, host: Host, own_wheel: Path) -> None:
        host.pip_install(llama.wheel, own_wheel)
        shutil.copytree(llama.project / "model", host.work / "llama-tiny")
        check, rehearse = shown.commands("README.md", "model-cache check", "model-cache rehearse")
        served = shlex.join(["vllm", "serve", "./llama-tiny", *SERVE_ARGS, "--skip-tokenizer-init"])
        here = {
            "model-cache check": f"model-cache check --target {H100}",  # there is no GPU to look at
            "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 …": served,
        }
        try:
            checked, rehearsed = as_shown(host, [check, rehearse], swap=here, codes={check.text: 10})
        finally:
            host.pip_uninstall(llama.name)
        assert checked.output == check.output
        assert rehearsed.output.startswith("warm start under a pretended NVIDIA H100 80GB HBM3: 1 artifact loaded")

    def test_another_target_is_refused_with_both_values_and_nothing_written(
        self, llama: Built, host: Host, own_wheel: Path
    ) -> None:
        root = host.place / "cache"
        host.pip_install(llama.wheel, own_wheel)
        try:
            done = host.model_cache("deploy", "--assume-target", "h200", "--root", str(root))
        finally:
            host.pip_uninstall(llama.name)
        assert done.returncode == 4, done.stdout + done.stderr
        assert "h200" in done.stderr
        assert H100 in done.stderr
        assert not root.exists()

    def test_another_directory_user_and_time_zone_give_the_same_keys(
        self, llama: Built, tmp_path: Path, engine_python: str
    ) -> None:
        shutil.copytree(llama.project, tmp_path / "elsewhere")
        # a user namespace: the process is uid 65534 to itself, and may still read the interpreter
        other_user = ["unshare", "--user", "--map-user=65534", "--map-group=65534"]
        changed = {"TZ": "Asia/Tokyo", "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "USER": "nobody"}
        done = compile_recipe(tmp_path / "elsewhere", tmp_path / "a", engine_python, prefix=other_user, **changed)
        assert done.returncode == 0, done.stdout + done.stderr
        again, first = (json.loads((d / "artifacts.json").read_text()) for d in (tmp_path / "a", llama.artifacts))
        assert [e["key"] for e in again["entries"]] == [e["key"] for e in first["entries"]]
        assert again["factors"] == first["factors"]
        assert again["kernels"] == first["kernels"]

    def test_no_weight_file_is_opened(self, llama: Built, tmp_path: Path, engine_python: str) -> None:
        project = tmp_path / "recipe"
        shutil.copytree(llama.project, project, ignore=shutil.ignore_patterns("dist"))
        for name in ("model.safetensors", "pytorch_model.bin"):
            (project / "model" / name).write_bytes(b"not weights: whoever reads this fails")
        trace = tmp_path / "trace"
        wrapper = tmp_path / "python"
        wrapper.write_text(
            f'#!/bin/sh\nexec strace -f -qq -e trace=open,openat,openat2 -o "{trace}" "{engine_python}" "$@"\n'
        )
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        done = compile_recipe(project, tmp_path / "artifacts", str(wrapper))
        assert done.returncode == 0, done.stdout + done.stderr
        opened = re.findall(r'open(?:at2?)?\([^"]*"([^"]*)"', trace.read_text(errors="replace"))
        assert sum(path.endswith("/config.json") for path in opened) > 0
        weights = [p for p in opened if re.search(r"\.(safetensors|bin|pt|pth|gguf)$", p) and "site-packages" not in p]
        assert not [p for p in weights if "/packages/" not in p], weights

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (('"--max-num-seqs", "1024"', '"--no-such-flag"'), "--no-such-flag"),
        ],
    )
    def test_a_compile_that_cannot_work_says_why_and_leaves_nothing(
        self, llama: Built, tmp_path: Path, engine_python: str, change: tuple[str, str], said: str
    ) -> None:
        project = tmp_path / "recipe"
        shutil.copytree(llama.project, project)
        recipe = project / "pyproject.toml"
        assert change[0] in recipe.read_text()
        recipe.write_text(recipe.read_text().replace(*change))
        done = compile_recipe(project, tmp_path / "artifacts", engine_python)
        assert done.returncode == 6, done.stdout + done.stderr
        message = json.loads(done.stdout)["error"]["message"]
        assert said in message
        [log] = re.findall(r"\S+\.log", message)
        assert Path(log).stat().st_size > 0
        assert not (tmp_path / "artifacts").exists()
        Path(log).unlink()

    def test_python_m_build_compiles_through_the_hook(
        self, llama: Built, tmp_path: Path, engine_python: str, own_wheel: Path
    ) -> None:
        project = tmp_path / "recipe"
        shutil.copytree(llama.project, project, ignore=shutil.ignore_patterns("dist"))
        environment = {**os.environ, "MODEL_CACHE_PYTHON": engine_python, "PIP_FIND_LINKS": str(own_wheel.parent)}
        done = subprocess.run(
            [sys.executable, "-m", "build", str(project)], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        names = sorted(path.name for path in (project / "dist").iterdir())
        assert names == [llama.wheel.name, llama.wheel.name.replace("-cp311-none-any.whl", ".tar.gz")]
        again = Built(project, project, project / "dist" / names[0], llama.hub_id, llama.directory)
        keys = [[entry["key"] for entry in one.manifest()["entries"]] for one in (again, llama)]
        assert keys[0] == keys[1]


def test_the_real_llama_8b_compiles(tmp_path: Path, engine_python: str) -> None:
    config = ROOT / "examples" / "llama-3.1-8b" / "model"
    project = write_recipe(tmp_path / "recipe", config, "meta-llama/Llama-3.1-8B", ["./llama"], [H100])
    done = compile_recipe(project, tmp_path / "artifacts", engine_python)
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads((tmp_path / "artifacts" / "logs" / "measured.json").read_text())
    assert measured[f"{H100}-rank0"]["peak_rss_bytes"] < 3 << 30
    assert len(json.loads(done.stdout)["entries"]) == 1


def test_every_rank_of_tensor_parallel_2_is_compiled_and_loaded(
    tmp_path: Path, engine_python: str, host: Host, own_wheel: Path
) -> None:
    """The rehearsal is that of docs/guides/ranks-and-drafts.md."""
    arguments = ("--tensor-parallel-size", "2", *SERVE_ARGS)
    project = write_recipe(
        tmp_path / "recipe", MODELS / "llama-tiny", "example/llama", ["./llama"], [H100], serve_args=arguments
    )
    done = compile_recipe(project, tmp_path / "artifacts", engine_python)
    assert done.returncode == 0, done.stdout + done.stderr
    [entry] = json.loads((tmp_path / "artifacts" / "artifacts.json").read_text())["entries"]
    assert entry["ranks"] == ["0_0", "1_0"]
    assert [file["path"] for file in entry["files"]] == ["rank_0_0/model", "rank_1_0/model"]
    assert len({file["sha256"] for file in entry["files"]}) == 2

    host.pip_install(pack(project, tmp_path / "artifacts"), own_wheel)
    shutil.copytree(project / "model", host.work / "llama")
    rest = shlex.join([*SERVE_ARGS, "--skip-tokenizer-init"])
    try:
        command = shown.commands("ranks-and-drafts.md", "model-cache rehearse")
        [rehearsed] = as_shown(host, command, swap={"…": rest})
    finally:
        host.pip_uninstall(f"model-cache-llama-{H100}")
    assert without_times(rehearsed.output) == without_times(rehearsed.command.output or "")


def as_shown(host: Host, commands: Sequence[shown.Command], **options: Any) -> list[shown.Ran]:
    """Run commands of a page where the engine of `host` is started."""
    path = f"{host.python.parent}{os.pathsep}{os.environ['PATH']}"
    (host.place / "home").mkdir(exist_ok=True)
    variables = {"PATH": path, "HOME": str(host.place / "home"), "VLLM_CACHE_ROOT": str(host.cache_root)}
    variables["CI"] = "true"  # as in a pipeline, which speaks of another host
    return shown.run(commands, host.work, **variables, **options)


def without_times(text: str) -> str:
    return re.sub(r"[\d.]+ s\b", "SECONDS", text)


def once(text: str) -> set[str]:
    """The lines that `status` prints, without what differs from run to run."""
    text = re.sub(r"used by \d+ process(es)?", "used by processes", without_times(text))
    return set(re.sub(r"\([0-9a-f]{12}…\)", "(KEY…)", text).splitlines())
