"""The shipped targets, their loader, the probe and the `targets` commands."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hatch_model_cache import probe, targets
from hatch_model_cache.commands import targets as targets_commands
from hatch_model_cache.targets import CpuTarget, Target, TargetFileError, UnknownTarget
from model_cache.errors import NotFoundError, UsageError
from model_cache.machine import cpu, host

NAMES = [
    "a10", "a100-pcie-80gb", "a100-sxm4-40gb", "a100-sxm4-80gb", "a10g", "b200", "gh200", "h100-nvl",
    "h100-pcie", "h100-sxm5-80gb", "h200", "l4", "l40s", "rtx-4090", "rtx-5090", "t4",
]  # fmt: skip
CPU_NAMES = ["x86-64-amx", "x86-64-avx2", "x86-64-avx512"]

# By compute capability: KiB of shared memory (per block, opted in, per SM); registers, threads of an SM.
PER_CAPABILITY = {
    "7.5": (48, 64, 64, 65536, 1024),
    "8.0": (48, 163, 164, 65536, 2048),
    "8.6": (48, 99, 100, 65536, 1536),
    "8.9": (48, 99, 100, 65536, 1536),
    "9.0": (48, 227, 228, 65536, 2048),
    "10.0": (48, 227, 228, 65536, 2048),
    "12.0": (48, 99, 100, 65536, 1536),
}

ENGINES = Path(__file__).parent.parent / ".engines"
SHIPPED = targets.load_gpus()
CPUS = {name: target for name, target in targets.load_all().items() if isinstance(target, CpuTarget)}
each_target = pytest.mark.parametrize("target", SHIPPED.values(), ids=list(SHIPPED))


def h100(**changes: Any) -> dict[str, Any]:
    data = targets.load("h100-sxm5-80gb").as_dict(sources=True)
    data.update(changes)
    return {key: value for key, value in data.items() if value is not None}


# --- the files


def test_all_targets_load() -> None:
    assert targets.names() == list(targets.load_all()) == NAMES + CPU_NAMES
    assert (list(SHIPPED), list(CPUS)) == (NAMES, CPU_NAMES)
    assert all(name == target.name for name, target in targets.load_all().items())


def test_device_names_are_unique() -> None:
    assert len({target.device_name for target in SHIPPED.values()}) == len(SHIPPED)


@each_target
def test_every_field_has_a_source_or_is_unverified(target: Target) -> None:
    # Read here without the loader, which enforces the same.
    data = tomllib.loads((Path(targets.__file__).parent / f"{target.name}.toml").read_text(encoding="utf-8"))
    sourced = {field for group in data["sources"] for field in group.split()}
    fields = {field.name for field in dataclasses.fields(Target)}
    fields -= {"name", "kind", "vendor", "unverified", "sources"}
    assert fields - sourced <= set(data["unverified"])
    assert "device_name" in sourced
    assert "device_name" not in data["unverified"]


@each_target
def test_sources_can_be_followed(target: Target) -> None:
    places = ("github.com/", "github.io/", "vLLM 0.33.0", "CUDA Toolkit", "CuTe DSL", "/torchcodec")
    for field, text in target.sources.items():
        assert any(place in text for place in places), (field, text)
        assert "/work/" not in text
        assert "site-packages" not in text


def tuned_kernel_devices() -> set[str]:
    found = set()
    for config in ENGINES.glob("vllm-0.33.0/lib/python3*/site-packages/vllm/**/*device_name=*.json"):
        match = re.search(r"device_name=([^,]+?)(,|\.json)", config.name)
        assert match
        found.add(match[1])
    return found


@each_target
def test_device_name_has_a_source_that_a_driver_stands_behind(target: Target) -> None:
    source = target.sources["device_name"]
    assert "vLLM 0.33.0" in source or re.search(r"(deviceQuery|listing) in [a-z.]*github\.", source)


@pytest.mark.engine
def test_the_device_names_from_vllm_are_in_vllm() -> None:
    engine = tuned_kernel_devices()
    assert engine, "no vLLM 0.33.0: run `make engines`"
    named = [t for t in SHIPPED.values() if "vLLM 0.33.0" in t.sources["device_name"]]
    assert len(named) > 5
    assert not [t.name for t in named if t.device_name.replace(" ", "_") not in engine]


@each_target
def test_values_are_physically_possible(target: Target) -> None:
    kib = 1024
    block, optin, sm, registers, threads = PER_CAPABILITY[target.compute_capability]
    assert target.shared_memory_per_block == block * kib
    assert target.shared_memory_per_block_optin == optin * kib
    assert target.shared_memory_per_multiprocessor == sm * kib
    assert target.registers_per_multiprocessor == registers
    assert target.max_threads_per_multiprocessor == threads
    assert target.max_threads_per_block == 1024
    assert target.warp_size == 32
    assert 10 * 2**30 < target.total_memory < 300 * 2**30
    assert 2**20 < target.l2_cache_size < 2**28
    assert 1_000_000 < target.clock_rate < 3_500_000
    assert 1_000_000 < target.memory_clock_rate < 20_000_000
    assert target.memory_bus_width % 64 == 0
    bandwidth = 2 * target.memory_clock_rate * 1000 * target.memory_bus_width / 8
    assert 2.5e11 < bandwidth < 1e13


@pytest.mark.parametrize(
    ("name", "gigabytes_per_second"),  # as NVIDIA states it for the card
    [
        ("t4", 320), ("l4", 300), ("l40s", 864), ("a10", 600), ("a100-sxm4-40gb", 1555),
        ("a100-sxm4-80gb", 2039), ("h100-sxm5-80gb", 3350), ("h200", 4800),
        ("b200", 7700), ("rtx-4090", 1008), ("rtx-5090", 1792),
    ],
)  # fmt: skip
def test_clock_and_bus_give_the_stated_bandwidth(name: str, gigabytes_per_second: int) -> None:
    target = SHIPPED[name]
    bandwidth = 2 * target.memory_clock_rate * target.memory_bus_width / 8 / 1e6
    assert bandwidth == pytest.approx(gigabytes_per_second, rel=0.03)


# --- Target


def test_derived_names() -> None:
    assert (SHIPPED["h100-sxm5-80gb"].sm, SHIPPED["h100-sxm5-80gb"].ptx_arch) == ("sm90", "sm_90a")
    assert (SHIPPED["a100-sxm4-80gb"].sm, SHIPPED["a100-sxm4-80gb"].ptx_arch) == ("sm80", "sm_80")
    assert (SHIPPED["b200"].sm, SHIPPED["b200"].ptx_arch) == ("sm100", "sm_100a")
    assert (SHIPPED["rtx-5090"].sm, SHIPPED["rtx-5090"].ptx_arch) == ("sm120", "sm_120a")
    assert SHIPPED["l4"].capability == (8, 9)


def test_as_dict_is_json_without_sources() -> None:
    data = SHIPPED["h200"].as_dict()
    assert json.loads(json.dumps(data)) == data
    assert "sources" not in data
    assert data["unverified"] == list(SHIPPED["h200"].unverified)
    assert set(data) == {field.name for field in dataclasses.fields(Target)} - {"sources"}
    assert SHIPPED["h200"].as_dict(sources=True)["sources"] == dict(SHIPPED["h200"].sources)


def test_target_is_frozen_hashable_and_travels() -> None:
    target = targets.load("l4")
    with pytest.raises(dataclasses.FrozenInstanceError):
        target.sm_count = 1
    assert {target: 1}[targets.load("l4")] == 1
    assert pickle.loads(pickle.dumps(target)) == target


def test_package_loads_beside_the_serving_side_only() -> None:
    """As in the engine's interpreter: nothing but the standard library and model_cache.errors."""
    program = (
        "import sys; from hatch_model_cache import targets; targets.load_all();"
        "tops = ('hatchling', 'packaging', 'torch', 'model_cache');"
        "print([m for m in sys.modules if m.partition('.')[0] in tops])"
    )
    root = Path(targets.__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "['model_cache', 'model_cache.errors']"


# --- names that do not exist


@pytest.mark.parametrize(
    ("name", "near"), [("h100", "h100-sxm5-80gb"), ("H200", "h200"), ("a100-sxm5-80gb", "a100-sxm4-80gb")]
)
def test_unknown_target_lists_near_names(name: str, near: str) -> None:
    with pytest.raises(UnknownTarget) as caught:
        targets.load(name)
    assert isinstance(caught.value, UsageError)
    assert caught.value.exit_code == 2
    assert f"Unknown target `{name}`" in str(caught.value)
    assert near in str(caught.value)


@pytest.mark.parametrize("name", ["", "zzzzzz", "../targets/h200", "h200.toml"])
def test_unknown_target_is_never_a_path(name: str) -> None:
    with pytest.raises(UnknownTarget):
        targets.load(name)


def test_unknown_target_far_from_all_lists_all() -> None:
    with pytest.raises(UnknownTarget) as caught:
        targets.load("zzzzzz")
    assert all(name in str(caught.value) for name in NAMES)


# --- malformed files


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sm_cuont": 1}, "`sm_cuont`: unknown key"),
        ({"sm_count": None}, "`sm_count`: missing"),
        ({"sm_count": "132"}, "`sm_count`: must be a positive integer, not '132'"),
        ({"sm_count": True}, "`sm_count`: must be a positive integer, not True"),
        ({"sm_count": 0}, "`sm_count`: must be a positive integer, not 0"),
        ({"sm_count": 1.5}, "`sm_count`: must be a positive integer, not 1.5"),
        ({"device_name": "NVIDIA H100 "}, "`device_name`: must be a non-empty string without surrounding"),
        ({"device_name": 5}, "`device_name`: must be a non-empty string"),
        ({"compute_capability": 9.0}, "`compute_capability`: must be a non-empty string"),
        ({"compute_capability": "sm_90"}, "`compute_capability`: must look like \"9.0\", not 'sm_90'"),
        ({"kind": "tpu"}, "`kind`: must be one of cpu, gpu, not 'tpu'"),
        ({"vendor": "acme"}, "`vendor`: must be one of nvidia, not 'acme'"),
        ({"name": "H100 SXM"}, "`name`: must be lower-case words joined by `-`"),
        ({"unverified": "total_memory"}, "`unverified`: must be a list of field names"),
        ({"unverified": ["memory"]}, "`unverified`: `memory` is no field that can be unverified"),
        ({"unverified": ["sm_count", "sm_count"]}, "`unverified`: `sm_count` is listed twice"),
        ({"sources": "a datasheet"}, "`sources`: must be a table"),
        ({"sources": {}}, "`device_name`: has no line in [sources] and is not listed in `unverified`"),
        ({"sources": {"sm_count": ""}}, "`sources.sm_count`: must be a non-empty string"),
        ({"sources": {"sm_count nonsense": "x"}}, "`sources.sm_count nonsense`: `nonsense` is no field"),
        ({"sources": {"sm_count": "x", "sm_count warp_size": "y"}}, "`sm_count` has a source already"),
    ],
)
def test_malformed_target_names_the_key(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(TargetFileError) as caught:
        targets.from_mapping(h100(**changes), where="some/file.toml")
    assert caught.value.exit_code == 2
    assert "some/file.toml" in str(caught.value)
    assert str(caught.value).count(problem) == 1
    assert any(problem in found for found in caught.value.problems), caught.value.problems


def test_all_problems_at_once() -> None:
    with pytest.raises(TargetFileError) as caught:
        targets.from_mapping(h100(sm_count=None, warp_size="x", colour="red"), where="f.toml")
    assert len(caught.value.problems) == 3


def test_file_name_must_be_the_name(tmp_path: Path) -> None:
    path = tmp_path / "my-gpu.toml"
    path.write_text(probe.to_toml(SHIPPED["h200"]), encoding="utf-8")
    with pytest.raises(TargetFileError, match=r"my-gpu\.toml: `name` is `h200`, but must equal .* `my-gpu`"):
        targets.load_file(path)


@pytest.mark.parametrize("content", [b"name = ", b"\xff\xfe", None])
def test_unreadable_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "gpu.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TargetFileError, match=re.escape(str(path))):
        targets.load_file(path)


# --- TOML and probe


@each_target
def test_toml_round_trip(target: Target, tmp_path: Path) -> None:
    path = tmp_path / f"{target.name}.toml"
    path.write_text(probe.to_toml(target), encoding="utf-8")
    again = targets.load_file(path)
    assert again == target
    assert again.sources == target.sources


def test_toml_escapes(tmp_path: Path) -> None:
    odd = dataclasses.replace(SHIPPED["l4"], name="odd", device_name='A "GPU" \\ \x7f\t é')
    path = tmp_path / "odd.toml"
    path.write_text(probe.to_toml(odd), encoding="utf-8")
    assert targets.load_file(path) == odd


def test_differences() -> None:
    shipped = SHIPPED["h200"]
    assert probe.differences(shipped, shipped) == []
    probed = dataclasses.replace(shipped, sm_count=114, warp_size=1, name="other", unverified=())
    assert probe.differences(probed, shipped) == [("sm_count", 132, 114), ("warp_size", 32, 1)]


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA GeForce RTX 3060 Ti", "rtx-3060-ti"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("NVIDIA", "nvidia"),
        ("®", "gpu"),
    ],
)
def test_name_for_unshipped_devices(device: str, name: str) -> None:
    assert probe.name_for(device) == name


def gpu_like(target: Target, **changes: Any) -> host.Gpu:
    fields = {field.name: getattr(target, field.name) for field in dataclasses.fields(host.Gpu)}
    return host.Gpu(**{**fields, **changes})


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[host.Gpu]:
    """What the driver answers; a test fills it."""
    found: list[host.Gpu] = []

    def probe_gpus(timeout: float | None = None) -> host.Gpus:
        return host.Gpus(tuple(found), None if found else "no libcuda.so.1")

    monkeypatch.setattr(host, "probe_gpus", probe_gpus)
    return found


def test_gpu_record_has_every_field_of_a_target() -> None:
    assert {field.name for field in dataclasses.fields(host.Gpu)} == {*targets.DATA_FIELDS, "vendor"}


def test_probe_of_a_shipped_gpu_takes_its_name(gpus: list[host.Gpu]) -> None:
    gpus.append(gpu_like(SHIPPED["h200"]))
    (probed,) = probe.probe_host()
    assert probed == dataclasses.replace(SHIPPED["h200"], unverified=())
    assert set(probed.sources) == set(targets.DATA_FIELDS)


def test_probe_without_a_gpu(gpus: list[host.Gpu]) -> None:
    with pytest.raises(NotFoundError, match=r"No GPU to probe on this host: no libcuda\.so\.1") as caught:
        probe.probe_host()
    assert caught.value.exit_code == 5


def test_probe_of_an_impossible_gpu_names_the_field(gpus: list[host.Gpu]) -> None:
    gpus.append(gpu_like(SHIPPED["h200"], clock_rate=0))
    with pytest.raises(TargetFileError, match=r"(?s)of this host .*`clock_rate`: must be a positive"):
        probe.probe_host()


# --- the commands


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser(prog="model-cache")
    targets_commands.add_parsers(parser.add_subparsers())
    namespace = parser.parse_args(["targets", *arguments])
    status = namespace.run(namespace)
    assert isinstance(status, int)
    return status


@pytest.mark.parametrize("arguments", [(), ("list",)])
def test_list(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 0
    listed, cpus = capsys.readouterr().out.split("\n\n")
    header, *lines = listed.splitlines()
    assert header.split() == ["NAME", "DEVICE", "NAME", "CC", "SMS", "MEMORY", "GIB", "UNVERIFIED"]
    assert [line.split()[0] for line in lines] == NAMES
    assert lines[NAMES.index("h200")].split() == ["h200", "NVIDIA", "H200", "9.0", "132", "139.8", "4"]
    assert max(len(line) for line in [header, *lines]) <= 100
    header, *lines = cpus.splitlines()
    assert header.split() == ["NAME", "VECTORIZED", "FOR", "CAPABILITY", "FLAGS"]
    assert [line.split()[0] for line in lines] == CPU_NAMES
    assert lines[-1].split() == ["x86-64-avx512", "avx512", "avx512_vnni", "AVX512", "8"]


@pytest.mark.parametrize("arguments", [("--json",), ("list", "--json"), ("--json", "list")])
def test_list_json(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 0
    listed = json.loads(capsys.readouterr().out)["targets"]
    assert [target["name"] for target in listed] == NAMES + CPU_NAMES
    assert listed[0] == SHIPPED["a10"].as_dict()


def test_show_is_a_target_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("show", "b200") == 0
    path = tmp_path / "b200.toml"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    assert targets.load_file(path) == SHIPPED["b200"]


def test_show_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "t4", "--json") == 0
    assert json.loads(capsys.readouterr().out) == SHIPPED["t4"].as_dict(sources=True)


def test_show_unknown_is_left_to_the_caller() -> None:
    with pytest.raises(UnknownTarget):
        run("show", "t5")


def test_probe_prints_a_file_and_the_differences(
    gpus: list[host.Gpu], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    gpus += [gpu_like(SHIPPED["h200"], total_memory=150_000_000_000, sm_count=120)] * 2
    assert run("probe") == 0
    out = capsys.readouterr().out
    assert "# 2 such GPUs." in out
    assert "# Differs from the shipped target h200:" in out
    assert "#   sm_count: shipped 132, here 120" in out
    assert "#   total_memory: shipped 150109945856 (unverified there), here 150000000000" in out
    (tmp_path / "h200.toml").write_text(out, encoding="utf-8")
    assert targets.load_file(tmp_path / "h200.toml").sm_count == 120


def test_probe_of_equal_and_unknown_gpus(gpus: list[host.Gpu], capsys: pytest.CaptureFixture[str]) -> None:
    gpus += [gpu_like(SHIPPED["l4"]), gpu_like(SHIPPED["l4"], device_name="NVIDIA L5")]
    assert run("probe") == 0
    out = capsys.readouterr().out
    assert "# Equal to the shipped target l4." in out
    assert 'name = "l5"' in out
    assert "# No shipped target has this device name." in out


def test_probe_json(gpus: list[host.Gpu], capsys: pytest.CaptureFixture[str]) -> None:
    gpus += [gpu_like(SHIPPED["l4"], sm_count=57), gpu_like(SHIPPED["l4"], device_name="NVIDIA L5")]
    assert run("probe", "--json") == 0
    first, second = json.loads(capsys.readouterr().out)["gpus"]
    assert (first["shipped"], first["count"], first["target"]["sm_count"]) == ("l4", 1, 57)
    assert first["differences"] == [{"field": "sm_count", "shipped": 58, "probed": 57}]
    assert (second["shipped"], second["differences"]) == (None, [])


# --- CPUs

ZEN4 = ["fma", "f16c", "avx2", "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"]
SAPPHIRE_RAPIDS = [*ZEN4, "amx_bf16", "amx_tile", "amx_int8"]
SKYLAKE = [flag for flag in ZEN4 if flag not in ("avx512_vnni", "avx512_bf16")]


@pytest.mark.parametrize(
    ("flags", "environment", "name"),
    [
        (ZEN4, {}, "x86-64-avx512"),
        (SAPPHIRE_RAPIDS, {}, "x86-64-amx"),
        (SAPPHIRE_RAPIDS, {"ATEN_CPU_CAPABILITY": "avx512"}, "x86-64-amx"),
        (SAPPHIRE_RAPIDS, {"ATEN_CPU_CAPABILITY": "avx2"}, "x86-64-avx2"),
        (["fma", "f16c", "avx2"], {}, "x86-64-avx2"),
        (SKYLAKE, {}, None),
        (SKYLAKE, {"ATEN_CPU_CAPABILITY": "avx2"}, "x86-64-avx2"),
        (ZEN4, {"ATEN_CPU_CAPABILITY": "default"}, None),
        (["sse2"], {}, None),
    ],
)
def test_which_target_a_cpu_is(flags: list[str], environment: dict[str, str], name: str | None) -> None:
    here = cpu.parse(f"model name: A CPU\nflags: {' '.join(flags)}\n", "x86_64", environment, amx=lambda: True)
    found = probe.cpu_target(environment, here)
    assert (found.name if found else None) == name
    assert probe.cpu_target(environment, dataclasses.replace(here, machine="aarch64")) is None


def avx512(**changes: Any) -> dict[str, Any]:
    data = targets.load("x86-64-avx512").as_dict(sources=True) | changes
    return {key: value for key, value in data.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"kind": None}, "`kind`: missing"),
        ({"machine": "riscv64"}, "`machine`: must be one of x86_64, not 'riscv64'"),
        ({"vec_isa": ""}, "`vec_isa`: must be a non-empty string"),
        ({"cpu_capability": "avx512"}, "`cpu_capability`: must be one of AVX2, AVX512, not 'avx512'"),
        ({"flags": "avx2"}, "`flags`: must be a list of flags, not 'avx2'"),
        ({"flags": []}, "`flags`: must be a list of flags, not []"),
        ({"flags": ["avx2", "-mfma"]}, "`flags`: '-mfma' is no flag of /proc/cpuinfo"),
        ({"flags": ["fma", "avx2"]}, "`flags`: must be sorted, each once"),
        ({"sm_count": 132}, "`sm_count`: unknown key"),
        ({"sources": {"vec_isa flags": "torch"}}, "`cpu_capability`: has no line in [sources]"),
    ],
)
def test_malformed_cpu_target_names_the_key(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(TargetFileError) as caught:
        targets.from_mapping(avx512(**changes), where="some/file.toml")
    assert [found for found in caught.value.problems if problem in found], caught.value.problems
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("name", CPU_NAMES)
def test_cpu_toml_round_trip(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.toml"
    path.write_text(probe.to_toml(CPUS[name]), encoding="utf-8")
    again = targets.load_file(path)
    assert again == CPUS[name]
    assert again.sources == CPUS[name].sources
    assert set(again.sources) == {"vec_isa", "cpu_capability", "flags"}


def test_a_cpu_cannot_be_pretended() -> None:
    assert targets.load_gpu("h200") == SHIPPED["h200"]
    with pytest.raises(UsageError, match="`x86-64-amx` is a CPU, which is never pretended"):
        targets.load_gpu("x86-64-amx")


def test_probe_names_the_cpu(
    gpus: list[host.Gpu], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def be(flags: list[str]) -> None:
        here = cpu.parse(f"flags: {' '.join(flags)}\n", "x86_64", {}, amx=lambda: False)
        monkeypatch.setattr(cpu, "read", lambda environment: here)

    be(ZEN4)
    assert run("probe") == 0
    assert capsys.readouterr().out == "# No GPU.\n\n# The CPU is of the shipped target x86-64-avx512.\n"
    assert run("probe", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"cpu": "x86-64-avx512", "gpus": []}
    be(["sse2"])
    with pytest.raises(NotFoundError, match="No GPU to probe"):
        run("probe")
