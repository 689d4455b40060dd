"""What is compiled for a CPU without weights is what a real start writes: same keys, same sources, same instructions.

This is the proof for the whole method, since here the real start can be had: the engine without any of this project in
its environment, with real weights, in another environment at another path.
"""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.cpu_hosts import MODEL, SERVE_ARGS, Start, make_host, write_weights

pytestmark = pytest.mark.engine

CONFIG = Path(__file__).resolve().parents[1] / "data/models/llama-tiny"
AOT = "torch_compile_cache/torch_aot_compile"


@pytest.fixture(scope="module")
def real(cpu_engine_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache root after a start of the unmodified engine with real weights."""
    host = make_host(cpu_engine_python, tmp_path_factory.mktemp("real"))
    write_weights(cpu_engine_python, CONFIG, host.work / MODEL)
    root = host.place / "root"
    [outcome] = host.starts(Start("real", root))
    assert outcome.tokens
    assert not outcome.said, "this project is in the environment"
    return root


@pytest.fixture(scope="module")
def manifest(cpu_wheel: Path) -> dict[str, Any]:
    with zipfile.ZipFile(cpu_wheel) as archive:
        [name] = [n for n in archive.namelist() if n.endswith("/manifest.json")]
        found: dict[str, Any] = json.loads(archive.read(name))
        return found


@pytest.fixture(scope="module")
def shipped(cpu_wheel: Path, manifest: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's entries, as a deploy lays them out."""
    root = tmp_path_factory.mktemp("shipped")
    with zipfile.ZipFile(cpu_wheel) as archive:
        blobs = {name.rpartition("/")[2]: name for name in archive.namelist() if "/blobs/" in name}
        for entry in manifest["entries"]:
            for file in entry["files"]:
                path = root / entry["directory"] / file["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(blobs[file["sha256"]]))
    return root


def keys(root: Path) -> set[str]:
    return {path.parents[1].name for path in (root / AOT).glob("*/rank_0_0/model")}


def kernels(root: Path) -> dict[str, Path]:
    """Source → shared object, of every kernel."""
    return {path.read_text(): path.with_suffix(".so") for path in root.rglob("*.main.cpp")}


def instructions(shared: Path) -> Iterator[str]:
    """The machine code in words, without addresses: they shift with the length of the paths in the read-only data."""
    command = ["objdump", "--disassemble", "--no-show-raw-insn", "--no-addresses", "--section=.text", str(shared)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(".text:", 1)[1]
    for line in listed.splitlines():
        yield re.sub(r"#.*|<[^>]*>|0x[0-9a-f]+\(%rip\)|^(\t(?:call|j\w+)\s+)[0-9a-f]+", r"\1", line).rstrip()


def test_the_keys_are_equal(real: Path, shipped: Path) -> None:
    assert len(keys(real)) == 1
    assert keys(real) < keys(shipped), "the wheel is for other names, too"


def test_the_kernels_have_the_same_sources(real: Path, shipped: Path) -> None:
    assert len(kernels(real)) >= 10
    assert kernels(real).keys() == kernels(shipped).keys()


def test_the_kernels_have_the_same_instructions(real: Path, shipped: Path) -> None:
    ours = kernels(shipped)
    for source, shared in kernels(real).items():
        real_code = list(instructions(shared))
        assert len(real_code) > 300
        assert list(instructions(ours[source])) == real_code, shared.name


def test_instructions_tell_kernels_apart(real: Path) -> None:
    """That the comparison above can fail."""
    code = {tuple(instructions(shared)) for shared in kernels(real).values()}
    assert len(code) == len(kernels(real))


def test_every_file_of_the_wheel_is_the_artifact_or_a_kernel(shipped: Path, manifest: dict[str, Any]) -> None:
    """No trial of an instruction set, no lock, no header, no cache of graphs."""
    for entry in manifest["entries"]:
        paths = {file["path"] for file in entry["files"]}
        code = {path for path in paths if path.endswith((".main.so", ".main.cpp"))}
        assert paths - code == {"rank_0_0/model"}
        assert {Path(path).with_suffix("") for path in code if path.endswith(".so")} == {
            Path(path).with_suffix("") for path in code if path.endswith(".cpp")
        }


def test_no_path_of_the_builder_is_in_the_wheel(
    cpu_engine_python: str, shipped: Path, manifest: dict[str, Any]
) -> None:
    environment = str(Path(cpu_engine_python).parents[1]).encode()
    for path in [path for path in shipped.rglob("*") if path.is_file()]:
        data = path.read_bytes()
        assert environment not in data, path
        assert str(Path.home()).encode() + b"/" not in data, path
        assert b".debug_line" not in data, path


def test_the_manifest_says_what_the_machine_was(manifest: dict[str, Any]) -> None:
    from hatch_model_cache.probe import cpu_target
    from model_cache.machine import cpu

    here, target = cpu.read(), cpu_target()
    assert target is not None
    [recorded] = manifest["targets"]
    assert recorded == target.as_dict()
    assert manifest["build"]["mode"] == "native"
    assert manifest["kernels"] == []
    assert manifest["serve"]["arguments"] == list(SERVE_ARGS)
    unkeyed = manifest["unkeyed"]
    assert unkeyed["cpu.vec_isa"] == here.vec_isa == target.vec_isa
    assert unkeyed["cpu.capability"] == here.capability
    assert (unkeyed["cpu.amx"], unkeyed["cpu.bf16"]) == (here.amx, here.bf16)
    used = set(unkeyed["cpu.instructions"].split())
    assert set(target.flags) <= used <= here.flags
    assert unkeyed["compiler"] == cpu.read_compiler().version
    assert unkeyed["cpu.march"]
    assert unkeyed["attention.backends"] == "CPUAttentionBackend"
