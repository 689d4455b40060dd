"""Engine `torch`, mode "standalone": a compiled function without guards, and who may call it. And for both modes: two
builds of one recipe are the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engine import cpu_hosts
from engine.hosts import compile_recipe, pack
from engine.torch_programs import Program, project, record_in
from model_cache.wheel import contents
from model_cache.wheel.lookup import open_payload
from model_cache.wheel.verify import verify

pytestmark = pytest.mark.engine

MODES = ("mega", "standalone")


@pytest.fixture(scope="module")
def host(cpu_engine_python: str, own_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> cpu_hosts.CpuHost:
    return cpu_hosts.make_host(cpu_engine_python, tmp_path_factory.mktemp("host"), own_wheel)


@pytest.fixture(scope="module")
def blocks(
    host: cpu_hosts.CpuHost, cpu_engine_python: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Mode → the example's wheel."""

    def made(mode: str) -> Path:
        return Program(project(tmp_path_factory.mktemp(mode), "block", mode), host).compile(cpu_engine_python)

    with ThreadPoolExecutor(len(MODES)) as pool:
        return dict(zip(MODES, pool.map(made, MODES), strict=True))


def test_a_bound_function_answers_at_once_and_refuses_what_it_was_not_compiled_for(
    blocks: dict[str, Path], host: cpu_hosts.CpuHost, tmp_path: Path
) -> None:
    with open_payload(str(blocks["standalone"])) as payload:
        [looked] = contents.look(payload, verify(payload).manifest)
    assert looked.report.pickles > 0
    assert looked.problems == ()
    record = record_in(blocks["standalone"])
    assert (list(record.sources), record.functions) == (["block"], ("block:Block.forward", "block:normed"))

    block = Program(project(tmp_path, "block", "standalone"), host)
    warm = block.run(tmp_path / "warm", str(blocks["standalone"]))
    mega = block.run(tmp_path / "mega", str(blocks["mega"]))
    print(json.dumps({"standalone": warm, "mega": mega}))
    assert (warm["compiles"], warm["use"], warm["parts"]) == (0, {"hits": 1, "misses": 0}, {"standalone": 1})
    assert warm["kernels"] > 0
    assert warm["error"] < 1e-3
    assert warm["result"] == mega["result"], "bit for bit"
    assert warm["seconds"] < mega["seconds"], "no trace, no look-up"

    found = block.run(tmp_path / "misuse", str(blocks["standalone"]), "torch_misuse.py")
    print(json.dumps(found))
    assert found["compiles"] == 0
    assert max(found["errors"]) < 1e-3, "other numbers of tokens"
    refused = {**found["bind"], **found["call"]}
    assert not {case: said for case, said in refused.items() if said == ["NOT REFUSED"] or not said}
    told: dict[str, str] = {
        "bias": "out.bias is there, compiled was none such",
        "method": "forward was set on the object",
        "method set": "forward was set on the object",
        "function": "block.normed has been replaced by another function",
        "class": "down is ",
        "one token": "dimension 0 is 1, compiled was from 2 to ",
        "integers": "input 0 is torch.int64, compiled was torch.float32",
        "gradients": "gradients are on: call it under torch.no_grad()",
        "number": "the inputs: ",
        "mode": "a mode of torch is on",
        "autocast": "autocast is on for cpu",
        "tied": "one and the same tensor",
        "hook": "down has hooks",
    }
    assert not {case: refused[case] for case, text in told.items() if not any(text in line for line in refused[case])}
    assert len(found["bind"]["dtype"]) > 5, "every difference at once"
    assert found["or_module"] == 0
    assert found["use"] == [4, 1]
    assert found["replaced"] < 1e-3 < found["replaced moved"], "the weights are those of the module now"
    assert found["written"] < 1e-3
    assert found["back"] < 1e-3


def test_another_source_is_another_program(blocks: dict[str, Path], host: cpu_hosts.CpuHost, tmp_path: Path) -> None:
    block = Program(project(tmp_path, "block", "standalone"), host)
    source = block.project / "program" / "block.py"
    source.write_text(source.read_text().replace("functional.silu", "functional.gelu"))
    done, compiles = block.start(tmp_path / "other", str(blocks["standalone"]))
    assert done.returncode == 1
    assert "the source of block is another one than at the build" in done.stderr
    assert compiles == 0


def test_a_qwen3_of_transformers(host: cpu_hosts.CpuHost, cpu_engine_python: str, tmp_path: Path) -> None:
    qwen3 = Program(project(tmp_path, "qwen3", "standalone"), host)
    warm: dict[str, Any] = qwen3.run(tmp_path / "warm", str(qwen3.compile(cpu_engine_python)))
    print(json.dumps(warm))
    assert (warm["compiles"], warm["use"]) == (0, {"hits": 1, "misses": 0})
    assert warm["error"] < 1e-3 * warm["largest"]


def test_why_there_is_no_mode_aot(host: cpu_hosts.CpuHost, tmp_path: Path) -> None:
    """The reasons that docs/guides/torch.md gives."""
    block = Program(project(tmp_path, "block"), host)
    found = block.run(tmp_path / "aot", "-", "torch_aot.py")
    print(json.dumps(found))
    assert "to be a tensor type, ' but found <class 'torch.nn.parameter.Parameter'>" in found["guards"]
    assert found["right"] < 1e-5
    assert found["another module"] > 0.01, "without guards it computes what the module was"
    assert found["another type"] > 0.01


def another_user() -> tuple[str, ...]:
    """A command that runs another as a user of another number, where this kernel lets anybody be one."""
    command = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], check=False).returncode:
        print("the other build is by the same user")
        return ()
    return command


def test_another_user_s_builds_in_another_place_are_the_same_bytes(
    blocks: dict[str, Path], cpu_engine_python: str, tmp_path: Path
) -> None:
    """Another directory, HOME, language, umask, age of the files, and number of the user."""
    prefix = (*another_user(), "sh", "-c", 'umask 077; exec "$@"', "sh")

    def made(mode: str) -> Path:
        elsewhere = tmp_path / "somebody else's" / mode
        copy = project(elsewhere, "block", mode)
        for path in copy.rglob("*"):
            os.utime(path, (10**9, 10**9))
        out = elsewhere / "artifacts"
        done = compile_recipe(copy, out, cpu_engine_python, prefix, HOME=str(elsewhere), LANG="C")
        assert done.returncode == 0, done.stdout + done.stderr
        return pack(copy, out)

    with ThreadPoolExecutor(len(MODES)) as pool:
        again = list(pool.map(made, MODES))
    for wheel, before in zip(again, map(blocks.__getitem__, MODES), strict=True):
        command = [sys.executable, "-m", "model_cache", "diff", str(before), str(wheel)]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        assert told.returncode == 0, told.stdout + told.stderr
        assert wheel.read_bytes() == before.read_bytes(), wheel
        assert wheel.name == before.name
