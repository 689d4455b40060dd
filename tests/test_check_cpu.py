"""What `check` says of an engine that runs on a CPU. What the engine then does is in docs/key-factors-cpu.md."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pytest

from factories import AVX512, CPU_UNKEYED, make_compiler, make_cpu, make_cpu_document
from hatch_model_cache.checking.verdict import Answer, Observation, Verdict, judge
from hatch_model_cache.commands.check import target_record
from hatch_model_cache.compile.engines.rule import Rule
from hatch_model_cache.compiling import interpreter
from model_cache.errors import UsageError
from model_cache.machine import cpu
from model_cache.wheel.manifest import from_dict

MANIFEST = from_dict(make_cpu_document())
ENTRY = MANIFEST.entries[0]
RULE = Rule("cpu.vec_isa", "another width", "build there", "measured", versions=frozenset({"0.32.0"}))


def verdict(
    here: cpu.Cpu | None = None, compiler: cpu.Compiler | None = None, unkeyed: Mapping[str, Any] | None = None
) -> Verdict:
    """Of an engine that looks for the wheel's first entry."""
    factors = {**MANIFEST.factors[ENTRY.factors], **ENTRY.factor_overrides}
    look_up = {"prefix": ENTRY.prefix, "key": ENTRY.key, "factors": factors}
    seen = Observation(
        AVX512,
        dict(vars(MANIFEST.engine)),
        {},
        [{**look_up, "unkeyed": {**CPU_UNKEYED, **(unkeyed or {})}}],
        cpu=(here or make_cpu(), compiler or make_compiler()),
    )
    return judge(MANIFEST, seen, [RULE])


def test_the_same_cpu_is_a_hit_and_one_that_can_more_too() -> None:
    assert verdict().answer is Answer.HIT
    more = make_cpu()
    assert verdict(make_cpu(flags=more.flags | {"amx_tile_not_used"})).answer is Answer.HIT


def test_an_instruction_set_that_is_missing_here_is_unsafe() -> None:
    needed = frozenset(str(CPU_UNKEYED["cpu.instructions"]).split())
    found = verdict(make_cpu(flags=make_cpu().flags - {"avx512_bf16", *needed}))
    assert found.answer is Answer.UNSAFE
    assert [reason.factor for reason in found.reasons] == ["AVX512-BF16", "CPU flags"]


def test_what_a_rule_compares_is_told_once() -> None:
    found = verdict(make_cpu(vec_isa="avx2"), unkeyed={"cpu.vec_isa": "avx2"})
    assert found.answer is Answer.UNSAFE
    assert [reason.factor for reason in found.reasons] == ["cpu.vec_isa"]


def test_an_older_compiler_is_unsafe() -> None:
    found = verdict(compiler=make_compiler("g++ (Old) 9.1.0"))
    assert (found.answer, [reason.factor for reason in found.reasons]) == (Answer.UNSAFE, ["compiler"])


def test_the_distribution_of_a_command_is_asked_of_its_interpreter() -> None:
    assert interpreter.has(sys.executable, ["no-such-distribution", "pytest"]) == "pytest"
    assert interpreter.has(sys.executable, ["no-such-distribution"]) is None


def test_a_cpu_is_the_one_that_is_here() -> None:
    here = cpu.read({})
    record = target_record(None, "cpu", {})
    assert (record["kind"], record["vec_isa"], record["machine"]) == ("cpu", here.vec_isa, here.machine)
    limited = target_record(None, "cpu", {"ATEN_CPU_CAPABILITY": "avx2"})
    assert limited["cpu_capability"] == "AVX2"


def test_another_cpu_cannot_be_named() -> None:
    with pytest.raises(UsageError, match="a CPU cannot be pretended"):
        target_record("x86-64-avx2", "cpu", {"ATEN_CPU_CAPABILITY": "avx512"})
    with pytest.raises(UsageError, match="h200 is a gpu, and the engine here runs on a cpu"):
        target_record("h200", "cpu", {})
    with pytest.raises(UsageError, match="x86-64-avx2 is a cpu, and the engine here runs on a gpu"):
        target_record("x86-64-avx2")
