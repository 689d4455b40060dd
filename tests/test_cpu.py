"""What torch would find on a CPU, and whether a CPU wheel fits it. The texts of /proc/cpuinfo are made up."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from factories import (
    AVX2,
    AVX512,
    CPU_CONTENTS,
    CPU_NAME,
    CPU_UNKEYED,
    ENTRY_TWO,
    make_compiler,
    make_cpu,
    make_cpu_document,
    make_cpu_host,
    make_document,
    make_host,
)
from model_cache.machine import cpu, host
from model_cache.machine.cpu import Cpu, flags_of, major_version, parse, read_compiler
from model_cache.machine.fit import DoesNotFit, compare, require
from model_cache.wheel.manifest import Manifest, from_dict

HASWELL = "fpu sse sse2 pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand abm bmi1 avx2 bmi2"
SKYLAKE = f"{HASWELL} avx512f avx512dq avx512cd avx512bw avx512vl"
CASCADE = f"{SKYLAKE} avx512_vnni"
ZEN4 = f"{CASCADE} avx512_bf16 avx512_vbmi2 sse4a gfni"
SAPPHIRE = f"{CASCADE} avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8"
KNIGHTS = f"{HASWELL} avx512f avx512cd avx512er avx512pf"
OLD = "fpu sse sse2 pni ssse3 sse4_1 sse4_2 popcnt aes xsave avx"


def cpuinfo(flags: str, model: str = "Made-up CPU @ 2.00GHz") -> str:
    """As the kernel prints it, with two processors of which the second says something else."""
    one = f"processor\t: 0\nvendor_id\t: Nobody\nmodel name\t: {model}\nflags\t\t: {flags}\nbugs\t\t: spectre_v1\n"
    return f"{one}power management:\n\nprocessor\t: 1\nmodel name\t: other\nflags\t\t: none\n\n"


def seen(flags: str, machine: str = "x86_64", amx: bool = True, **environ: str) -> Cpu:
    return parse(cpuinfo(flags), machine, environ, lambda: amx)


@pytest.mark.parametrize(
    ("flags", "vec_isa", "capability", "amx", "bf16"),
    [
        (OLD, "INVALID_VEC_ISA", "DEFAULT", False, False),
        (HASWELL, "avx2", "AVX2", False, False),
        (SKYLAKE, "avx512", "AVX512", False, False),
        (CASCADE, "avx512 avx512_vnni", "AVX512", False, False),
        (ZEN4, "avx512 avx512_vnni", "AVX512", False, True),
        (SAPPHIRE, "avx512 avx512_vnni amx_tile", "AVX512", True, True),
        (KNIGHTS, "avx512", "AVX2", False, False),  # torch's two answers ask for different parts of AVX-512
        ("avx2", "avx2", "DEFAULT", False, False),  # no FMA
        ("", "INVALID_VEC_ISA", "DEFAULT", False, False),
    ],
)
def test_what_torch_would_say(flags: str, vec_isa: str, capability: str, amx: bool, bf16: bool) -> None:
    found = seen(flags)
    assert (found.vec_isa, found.capability, found.amx, found.bf16) == (vec_isa, capability, amx, bf16)
    assert found.model == "Made-up CPU @ 2.00GHz"
    assert found.flags == set(flags.split())
    assert not found.set_by


@pytest.mark.parametrize(
    ("value", "vec_isa", "capability"),
    [
        ("avx2", "avx2", "AVX2"),
        ("avx512", "avx512 avx512_vnni amx_tile", "AVX512"),
        ("default", "INVALID_VEC_ISA", "DEFAULT"),
        # measured with torch 2.13.0: all others are ignored
        ("AVX2", "avx512 avx512_vnni amx_tile", "AVX512"),
        (" avx2", "avx512 avx512_vnni amx_tile", "AVX512"),
        ("avx", "avx512 avx512_vnni amx_tile", "AVX512"),
        ("", "avx512 avx512_vnni amx_tile", "AVX512"),
    ],
)
def test_the_variable_counts_as_torch_reads_it(value: str, vec_isa: str, capability: str) -> None:
    found = seen(SAPPHIRE, ATEN_CPU_CAPABILITY=value)
    assert (found.vec_isa, found.capability) == (vec_isa, capability)
    assert found.set_by == (f"ATEN_CPU_CAPABILITY={value}" if value else "")


def test_a_capability_that_is_not_there_is_believed_by_the_operators_only() -> None:
    found = seen(HASWELL, ATEN_CPU_CAPABILITY="avx512")
    assert (found.vec_isa, found.capability) == ("avx2", "AVX512")


def test_vectorizing_can_be_turned_off() -> None:
    assert seen(ZEN4, TORCHINDUCTOR_VEC_ISA_OK="0").vec_isa == "INVALID_VEC_ISA"
    assert seen(ZEN4, TORCHINDUCTOR_VEC_ISA_OK="1").vec_isa == "avx512 avx512_vnni"


def test_amx_that_the_system_does_not_grant_is_not_used() -> None:
    assert seen(SAPPHIRE, amx=False).vec_isa == "avx512 avx512_vnni"


def test_another_machine_has_none_of_these() -> None:
    assert seen(ZEN4, machine="aarch64").vec_isa == "INVALID_VEC_ISA"


@pytest.mark.parametrize("text", ["", "\n\n", "flags", "flags\t\t:\n", ":::\n", "\x00\xff\n: x"])
def test_a_text_that_says_nothing_gives_a_cpu_without_flags(text: str) -> None:
    found = parse(text, "x86_64", {}, lambda: True)
    assert (found.flags, found.model, found.capability) == (frozenset(), "", "DEFAULT")


def test_this_cpu_is_read_and_only_its_first_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cpu.read().machine == os.uname().machine
    assert cpu.read().flags
    text = tmp_path / "cpuinfo"
    text.write_text(cpuinfo(HASWELL) + "x" * 10_000_000)
    monkeypatch.setattr(cpu, "_CPUINFO", str(text))
    assert cpu.read().flags == set(HASWELL.split())
    monkeypatch.setattr(cpu, "_CPUINFO", str(tmp_path / "none"))
    assert not cpu.read().flags


def test_whether_amx_is_granted_is_a_fact_that_can_be_asked() -> None:
    granted = cpu.amx_permitted()
    assert granted in ({True, False} if "amx_tile" in cpu.read().flags else {False})


# Instruction sets and compilers


@pytest.mark.parametrize(
    ("gcc", "linux"),
    [
        ("-mavx512bf16", "avx512_bf16"),
        ("avx512vnni", "avx512_vnni"),
        ("avx512f", "avx512f"),
        ("avx512vbmi", "avx512vbmi"),
        ("avx512vbmi2", "avx512_vbmi2"),
        ("amx-tile", "amx_tile"),
        ("avxvnni", "avx_vnni"),
        ("sse4.1", "sse4_1"),
        ("sse4", "sse4_2"),
        ("sse3", "pni"),
        ("ssse3", "ssse3"),
        ("lzcnt", "abm"),
        ("abm", "abm"),
        ("sha", "sha_ni"),
        ("pclmul", "pclmulqdq"),
        ("rdrnd", "rdrand"),
        ("prfchw", "3dnowprefetch"),
        ("sahf", "lahf_lm"),
        ("bmi", "bmi1"),
        ("bmi2", "bmi2"),
        ("crc32", "sse4_2"),
    ],
)
def test_the_names_of_gcc_are_those_of_linux(gcc: str, linux: str) -> None:
    assert flags_of([gcc]) == {linux}


def test_names_of_linux_stay_and_those_of_nobody_too() -> None:
    assert flags_of(["avx512_bf16", "sha_ni", "avx10.2"]) == {"avx512_bf16", "sha_ni", "avx10.2"}


def test_what_gives_no_instruction_in_a_kernel_is_left_out() -> None:
    assert not flags_of(["mwait", "shstk", "pku", "-mmwaitx"])


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0", 12),
        ("g++ (Ubuntu 9.4.0-1ubuntu1~20.04.2) 9.4.0", 9),
        ("g++ (GCC) 14.2.1 20240801 (Red Hat 14.2.1-1)", 14),
        ("Ubuntu clang version 18.1.3 (1ubuntu1)", 18),
        ("some compiler", None),
        ("", None),
    ],
)
def test_major_versions(text: str, major: int | None) -> None:
    assert major_version(text) == major


def script(folder: Path, name: str, body: str) -> Path:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return program


def test_the_compiler_is_the_one_that_torch_would_call(tmp_path: Path) -> None:
    script(tmp_path, "g++", "echo 'g++ (Test) 11.4.0'; echo more")
    other = script(tmp_path, "other", "echo other 17.0.1")
    assert read_compiler({"PATH": str(tmp_path)}).version == "g++ (Test) 11.4.0"
    assert read_compiler({"PATH": str(tmp_path), "CXX": str(other)}).version == "other 17.0.1"
    for environ in ({"PATH": str(tmp_path / "x")}, {"PATH": str(tmp_path), "CXX": "none"}, {"PATH": ""}):
        assert read_compiler(environ).version is None


@pytest.mark.parametrize("body", ["exit 1", "true", "kill -9 $$"])
def test_a_compiler_that_cannot_say_its_version_is_none(tmp_path: Path, body: str) -> None:
    script(tmp_path, "g++", body)
    assert read_compiler({"PATH": f"{tmp_path}:{os.environ['PATH']}"}).version is None


# Fit


def manifest(**options: Any) -> Manifest:
    return from_dict(make_cpu_document(**options))


def differences(here: Cpu, **options: Any) -> list[str]:
    return [str(difference) for difference in compare(manifest(**options), make_cpu_host(here)).differences]


def test_the_host_of_the_build_fits_and_no_gpu_is_asked_for() -> None:
    assert compare(manifest(), make_cpu_host()).targets == ("x86-64-avx512",)


def test_more_instructions_and_another_model_fit() -> None:
    more = make_cpu(model="Newer CPU", flags=make_cpu().flags | {"avx512_fp16", "gfni"})
    assert compare(manifest(), make_cpu_host(more)).fits


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"vec_isa": "avx2"}, "vec_isa is avx2, the wheel was built for avx512"),
        ({"vec_isa": "avx512 avx512_vnni"}, "vec_isa is avx512 avx512_vnni, the wheel was built for avx512"),
        ({"capability": "AVX2"}, "cpu_capability is AVX2, the wheel was built for AVX512"),
        (
            {"flags": make_cpu().flags - {"avx512_bf16"}},
            "AVX512-BF16 is not supported, the wheel was built for supported",
        ),
        ({"flags": make_cpu().flags | {"amx_tile"}}, "AMX is supported, the wheel was built for not supported"),
        ({"flags": make_cpu().flags - {"avx512vl"}}, "CPU flags is without it, the wheel was built for avx512vl"),
        (
            {"flags": make_cpu().flags - {"avx512vl", "fma"}},
            "CPU flags is without them, the wheel was built for avx512vl fma",
        ),
        ({"machine": "aarch64"}, "machine is aarch64, the wheel was built for x86_64"),
    ],
)
def test_each_thing_that_steers_the_code_is_one_line(changes: dict[str, Any], text: str) -> None:
    assert differences(make_cpu(**changes)) == [text]


@pytest.mark.parametrize(
    ("flags", "limit", "multiplied"),
    [
        (HASWELL, "", "float32"),
        (SKYLAKE, "", "bfloat16 float32"),
        (ZEN4, "", "bfloat16 float32"),
        (SAPPHIRE, "", "bfloat16 float16 float32"),
        (f"{HASWELL} avx_vnni avx_vnni_int8 avx_ne_convert", "", "bfloat16 float16 float32"),
        (f"{HASWELL} avx_vnni avx_vnni_int8 avx_ne_convert", "avx2", "float32"),
        # as measured: these on a CPU with all that ZEN4 has here
        *((ZEN4, limit, "float32") for limit in ("AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "SSE41")),
        *((ZEN4, f"AVX512_CORE{more}", "bfloat16 float32") for more in ("", "_VNNI", "_BF16", "_FP16")),
        (SAPPHIRE, "AVX512_CORE_BF16", "bfloat16 float32"),
        (SAPPHIRE, "AVX512_CORE_AMX", "bfloat16 float16 float32"),
    ],
)
def test_what_onednn_multiplies(flags: str, limit: str, multiplied: str) -> None:
    here = seen(flags, **({"ONEDNN_MAX_CPU_ISA": limit} if limit else {}))
    assert sorted(here.multiplied) == multiplied.split()


def test_another_library_for_the_matrix_product_is_refused() -> None:
    """The weight is in the graph of the one, and the engine throws it away for the other."""
    [text] = differences(make_cpu(multiplied=frozenset({"float32"}), set_by="ONEDNN_MAX_CPU_ISA=AVX2"))
    assert text == (
        "matrix product is bfloat16 by torch (ONEDNN_MAX_CPU_ISA=AVX2), the wheel was built for bfloat16 by oneDNN"
    )
    half = {**CPU_UNKEYED, "model.dtype": "float16", "cpu.onednn": False}
    assert differences(make_cpu(), changes={"unkeyed": half}) == []
    [text] = differences(make_cpu(multiplied=frozenset({"float16"})), changes={"unkeyed": half})
    assert text == "matrix product is float16 by oneDNN, the wheel was built for float16 by torch"


def test_a_program_without_an_engine_has_no_such_product() -> None:
    plain = {name: value for name, value in CPU_UNKEYED.items() if name not in ("model.dtype", "cpu.onednn")}
    assert differences(make_cpu(multiplied=frozenset()), changes={"unkeyed": plain}) == []


def test_what_has_set_the_instruction_set_is_told() -> None:
    here = make_cpu(vec_isa="avx2", capability="AVX2", set_by="ATEN_CPU_CAPABILITY=avx2")
    with pytest.raises(DoesNotFit, match=r"vec_isa is avx2 \(ATEN_CPU_CAPABILITY=avx2\), .*for avx512") as caught:
        require(manifest(), make_cpu_host(here), "x")
    assert caught.value.exit_code == 4
    assert len(caught.value.problems) == 2


def test_what_the_wheel_does_not_record_is_refused() -> None:
    named = {"cpu.amx": "AMX", "cpu.bf16": "AVX512-BF16", "cpu.onednn": "matrix product"}
    for fact, name in (*named.items(), ("cpu.instructions", "cpu.instructions")):
        unkeyed = {key: value for key, value in make_cpu_document()["unkeyed"].items() if key != fact}
        [text] = differences(make_cpu(), changes={"unkeyed": unkeyed})
        assert name in text
        assert "not recorded" in text


def test_the_nearest_of_several_targets_is_compared() -> None:
    contents = {**CPU_CONTENTS, ENTRY_TWO: {"inductor_cache/k.so": b"another"}}
    wheel = manifest(
        contents=contents,
        targets=(AVX512, AVX2),
        target_of=lambda directory: str((AVX2 if directory == ENTRY_TWO else AVX512)["name"]),
        changes={"unkeyed": {**CPU_UNKEYED, "cpu.instructions": "avx2 fma"}},
    )
    assert compare(wheel, make_cpu_host()).targets == ("x86-64-avx512",)
    assert compare(wheel, make_cpu_host(make_cpu(vec_isa="avx2", capability="AVX2"))).targets == ("x86-64-avx2",)


def test_a_host_without_a_compiler_is_refused_with_the_reason() -> None:
    fit = compare(manifest(), make_cpu_host(compiler=make_compiler(None)))
    [text] = map(str, fit.differences)
    assert text == (
        "compiler is not found (g++; the engine would not start), the wheel was built for g++ (Test) 12.2.0"
    )


@pytest.mark.parametrize(
    ("version", "fits"),
    [("g++ (Test) 12.9.0", True), ("g++ 13.1.0", True), ("g++ (Test) 9.4.0", False), ("something", False)],
)
def test_an_older_compiler_may_pick_a_smaller_instruction_set(version: str, fits: bool) -> None:
    assert compare(manifest(), make_cpu_host(compiler=make_compiler(version))).fits is fits


def test_a_cpu_can_be_assumed_but_no_compiler() -> None:
    def never() -> Cpu:
        raise AssertionError("the CPU was asked for")

    hardware = host.Hardware(never, never, make_compiler)
    assumed = make_cpu_host(assumed="x86-64-avx512", hardware=hardware)
    assert compare(manifest(), assumed).targets == ("x86-64-avx512",)
    hardware = host.Hardware(never, never, lambda: make_compiler(None))
    assert not compare(manifest(), make_cpu_host(assumed="x86-64-avx512", hardware=hardware)).fits
    assert not compare(manifest(), make_cpu_host(assumed="x86-64-avx2")).fits


def test_a_gpu_wheel_asks_for_neither_cpu_nor_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    here = make_host()
    assert compare(from_dict(make_document()), here).fits
    assert vars(here.hardware).keys() >= {"gpus"}
    assert not vars(here.hardware).keys() & {"cpu", "compiler"}


def test_versions_without_cuda_are_compared() -> None:
    assert [d.field for d in compare(manifest(), make_cpu_host(cuda="13.0")).differences] == ["cuda"]
    assert compare(manifest(changes={"engine.triton": None}), make_cpu_host(triton=None)).fits
    assert CPU_NAME.endswith(AVX512["name"])
    assert "torch" not in sys.modules
