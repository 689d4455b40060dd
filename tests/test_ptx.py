"""The PTX interpreter: every instruction, the order of threads, memory, and what is refused."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hatch_model_cache.compile.selfcheck.ptx import (
    FaultError,
    TrapError,
    UnsupportedError,
    instructions,
    machine,
    numbers,
)
from hatch_model_cache.compile.selfcheck.ptx.memory import GlobalMemory
from hatch_model_cache.compile.selfcheck.ptx.program import parse

INF, NAN = float("inf"), float("nan")
SMALL = 1e-40  # subnormal as float32
F32, U32, U64, S32, S64, U16 = np.float32, np.uint32, np.uint64, np.int32, np.int64, np.uint16


def bits(value: float) -> int:
    """The bit pattern of a float32."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


COMPUTED: list[tuple[str, list[Any], list[Any]]] = [
    ("abs.f32", [[-1.5, 2.0]], [1.5, 2.0]),
    ("abs.s32", [[-3, 3]], [3, 3]),
    ("add.f32", [[1.0, 1e8], [2.0, 1.0]], [3.0, 1e8]),
    ("add.ftz.f32", [[SMALL], [0.0]], [0.0]),
    ("add.s32", [[2**31 - 1], [1]], [-(2**31)]),
    ("add.s64", [[2**40], [-1]], [2**40 - 1]),
    ("and.b32", [[0b1100], [0b1010]], [0b1000]),
    ("and.pred", [[True, True], [True, False]], [True, False]),
    ("bfe.s32", [[0b1011_0000, 0b0011_0000], [4, 4], [4, 4]], [-5, 3]),
    ("bfe.u32", [[0b1011_0000], [4], [4]], [0b1011]),
    ("copysign.f32", [[-0.0, 1.0], [2.0, -3.0]], [-2.0, 3.0]),
    ("cos.approx.f32", [[0.0]], [1.0]),
    ("cvt.f32.bf16", [[0x3F80, 0xC020]], [1.0, -2.5]),
    ("cvt.f32.f16", [[1.5]], [1.5]),
    ("cvt.f32.f64", [[1.5]], None),
    ("cvt.f64.f32", [[1.5]], [1.5]),
    ("cvt.ftz.sat.f32.f32", [[-1.0, 0.25, 7.0, NAN, SMALL]], [0.0, 0.25, 1.0, 0.0, 0.0]),
    ("cvt.rn.bf16.f32", [[1.0, 1.00390625, 1.01171875, NAN]], [0x3F80, 0x3F80, 0x3F82, 0x7FFF]),
    ("cvt.rn.bf16x2.f32", [[2.0], [1.0]], [0x40003F80]),
    ("cvt.rn.f16.f32", [[2049.0]], [2048.0]),
    ("cvt.rn.f16x2.f32", [[2.0], [1.0]], [0x40003C00]),
    ("cvt.rn.f16x2.e4m3x2", [[0x3840]], [0x3C004000]),
    ("cvt.rn.f32.f64", [[1.0 + 2**-30]], [1.0]),
    ("cvt.rn.f32.s32", [[2**24 + 1, -3]], [2**24, -3.0]),
    ("cvt.rn.satfinite.e4m3x2.f32", [[1.0, 1e9], [2.0, -0.25]], [0x3840, 0x7EA8]),
    ("cvt.rn.satfinite.e5m2x2.f32", [[1.0], [2.0]], [0x3C40]),
    ("cvt.rni.f32.f32", [[2.5, 3.5]], [2.0, 4.0]),
    ("cvt.rmi.f32.f32", [[-2.5]], [-3.0]),
    ("cvt.rpi.f32.f32", [[-2.5]], [-2.0]),
    ("cvt.rzi.s32.f32", [[-2.7, 1e20, NAN]], [-2, 2**31 - 1, 0]),
    ("cvt.s64.s32", [[-1]], [-1]),
    ("cvt.u16.u32", [[0x12345]], [0x2345]),
    ("cvt.u64.u32", [[2**32 - 1]], [2**32 - 1]),
    ("cvt.u32.u64", [[2**40 + 7]], [7]),
    ("cvta.global.u64", [[77]], [77]),
    ("cvta.to.global.u64", [[77]], [77]),
    ("div.full.f32", [[1.0], [3.0]], [F32(1 / 3)]),
    ("div.s32", [[-7, 7], [2, 0]], [-3, -1]),
    ("div.u32", [[7], [2]], [3]),
    ("ex2.approx.ftz.f32", [[3.0, -200.0]], [8.0, 0.0]),
    ("fma.rn.f32", [[1.0 + 2**-12], [1.0 + 2**-12], [-1.0]], [2**-11 + 2**-24]),
    ("fma.rn.ftz.f32", [[SMALL], [1.0], [0.0]], [0.0]),
    ("fma.rm.ftz.f32", [[1.0], [1.0], [2**-30]], [1.0]),
    ("fma.rm.f32", [[-1.0], [1.0], [-(2**-30)]], [np.nextafter(F32(-1), F32(-2))]),
    ("lg2.approx.f32", [[8.0]], [3.0]),
    ("mad.lo.s32", [[3], [4], [5]], [17]),
    ("mad.wide.s32", [[-(2**20)], [2**20], [2**41]], [2**40]),
    ("mad.wide.u32", [[2**31], [2], [1]], [2**32 + 1]),
    ("max.f32", [[NAN, 1.0], [2.0, 3.0]], [2.0, 3.0]),
    ("max.NaN.f32", [[NAN], [2.0]], [NAN]),
    ("max.NaN.bf16", [[0x3F80, 0x7FC0], [0xC020, 0x3F80]], [0x3F80, 0x7FFF]),
    ("max.bf16", [[0x7FC0], [0x3F80]], [0x3F80]),
    ("max.NaN.bf16x2", [[0x3F80C020], [0xC0203F80]], [0x3F803F80]),
    ("max.s32", [[-1], [1]], [1]),
    ("min.f32", [[NAN, 1.0], [2.0, 3.0]], [2.0, 1.0]),
    ("min.u32", [[2**31], [1]], [1]),
    ("mov.b32", [[5]], [5]),
    ("mul.bf16x2", [[0x3F803F81], [0xC0203F81]], [0xC0203F82]),
    ("mul.f32", [[3.0], [0.1]], [F32(3) * F32(0.1)]),
    ("mul.hi.s32", [[-(2**31)], [3]], [-2]),
    ("mul.hi.u32", [[2**31], [3]], [1]),
    ("mul.hi.u64", [[2**63], [6]], [3]),
    ("mul.hi.s64", [[-(2**62)], [6]], [-2]),
    ("mul.lo.s32", [[2**30], [4]], [0]),
    ("mul.wide.s32", [[-(2**30)], [4]], [-(2**32)]),
    ("mul.wide.u16", [[2**15], [2]], [2**16]),
    ("neg.f32", [[0.0, 1.0]], [-0.0, -1.0]),
    ("neg.s32", [[5]], [-5]),
    ("not.b32", [[0]], [2**32 - 1]),
    ("not.pred", [[True]], [False]),
    ("or.b32", [[0b1100], [0b1010]], [0b1110]),
    ("popc.b32", [[0b1011]], [3]),
    ("prmt.b32", [[0x44332211], [0x88776655], [0x7410]], [0x88552211]),
    ("rcp.approx.ftz.f32", [[4.0]], [0.25]),
    ("rem.s32", [[-7, 7], [2, 4]], [-1, 3]),
    ("rsqrt.approx.ftz.f32", [[4.0]], [0.5]),
    ("selp.b32", [[1, 1], [2, 2], [True, False]], [1, 2]),
    ("selp.f32", [[1.0], [2.0], [False]], [2.0]),
    ("setp.lt.s32", [[-1], [1]], [True]),
    ("setp.lt.u32", [[2**32 - 1], [1]], [False]),
    ("setp.lo.u32", [[0], [1]], [True]),
    ("setp.eq.b32", [[1], [1]], [True]),
    ("setp.gt.f32", [[NAN, 2.0], [1.0, 1.0]], [False, True]),
    ("setp.gtu.f32", [[NAN, 0.0], [1.0, 1.0]], [True, False]),
    ("setp.neu.f32", [[NAN, 1.0], [1.0, 1.0]], [True, False]),
    ("setp.nan.f32", [[NAN, 1.0], [1.0, 1.0]], [True, False]),
    ("setp.num.f32", [[NAN, 1.0], [1.0, 1.0]], [False, True]),
    ("setp.eq.ftz.f32", [[SMALL], [0.0]], [True]),
    ("setp.ge.and.s32", [[1, 1], [1, 1], [True, False]], [True, False]),
    ("shf.l.wrap.b32", [[0x80000000], [1], [1]], [3]),
    ("shf.r.wrap.b32", [[2], [1], [1]], [0x80000001]),
    ("shl.b32", [[1, 1, 3], [4, 32, 31]], [16, 0, 2**31]),
    ("shr.b64", [[2**40], [8]], [2**32]),
    ("shr.s32", [[-8, -8], [1, 99]], [-4, -1]),
    ("shr.u32", [[2**31, 1], [31, 32]], [1, 0]),
    ("sin.approx.f32", [[0.0]], [0.0]),
    ("sqrt.rn.f32", [[2.0]], [F32(np.sqrt(2.0))]),
    ("sub.f32", [[3.0], [1.0]], [2.0]),
    ("sub.s64", [[1], [2]], [-1]),
    ("tanh.approx.f32", [[0.0, 50.0]], [0.0, 1.0]),
    ("xor.b32", [[0b1100], [0b1010]], [0b0110]),
]


@pytest.mark.parametrize(("name", "sources", "expected"), COMPUTED, ids=[name for name, *_ in COMPUTED])
def test_what_an_instruction_computes(name: str, sources: list[Any], expected: list[Any] | None) -> None:
    if expected is None:
        with pytest.raises(UnsupportedError, match=f"^{name}$"):
            instructions.form(name)
        return
    form = instructions.form(name)
    values = [np.array(v).astype(instructions.DTYPES[k]) for v, k in zip(sources, form.sources, strict=True)]
    with np.errstate(all="ignore"):
        found = np.asarray(form.compute(*values))
    assert found.dtype == instructions.DTYPES[form.result]
    wanted = np.array(expected).astype(instructions.DTYPES[form.result])
    np.testing.assert_array_equal(found, wanted)
    if found.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


def test_every_instruction_has_a_test() -> None:
    tested = {name.partition(".")[0] for name, *_ in COMPUTED} | set(RUN)
    assert tested == {*instructions.OPCODES, "cvt", *machine.KNOWN_SPECIAL}


RUN = {
    **dict.fromkeys(("ld", "st", "ret", "exit", "bra"), "test_threads_that_part_meet_again"),
    "call": "test_a_failed_assertion_is_a_fault",
    "ldmatrix": "test_matrices_are_spread_over_the_lanes",
    "trap": "test_a_trap_is_a_fault",
    "shfl": "test_a_shuffle_takes_another_lane_s_value",
    **dict.fromkeys(("bar", "barrier"), "test_shared_memory_needs_barriers"),
    **dict.fromkeys(
        ("createpolicy", "membar", "fence", "griddepcontrol", "discard", "prefetch", "pragma"),
        "test_hints_have_no_effect",
    ),
}
"""Opcodes of the machine's own → the test that runs them."""


def test_the_tests_that_run_an_instruction_are_there() -> None:
    assert all(callable(globals()[test]) for test in RUN.values())


HEAD = """.version 8.8
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.visible .entry kernel(
  .param .u64 .ptr .global .align 1 kernel_param_0,
  .param .u32 kernel_param_1
)
.reqntid THREADS
{
  .reg .pred %p<4>;
  .reg .b16 %rs<4>;
  .reg .b32 %r<16>;
  .reg .b64 %rd<8>;
  ld.param.b64 %rd1, [kernel_param_0];
  ld.param.b32 %r1, [kernel_param_1];
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %ctaid.x;
  mad.lo.s32 %r4, %r3, THREADS, %r2;
  mad.wide.s32 %rd2, %r4, 4, %rd1; // the thread's own word
BODY
  ret;
}
"""


def run(
    body: str, words: Sequence[int], *, threads: int = 32, blocks: int = 1, argument: int = 0, shared: int = 0
) -> list[int]:
    """The 32-bit words of one buffer after the kernel has run on it; every thread has one in %rd2."""
    program = parse(HEAD.replace("THREADS", str(threads)).replace("BODY", body))
    memory = GlobalMemory([np.array(words, U32).view(np.uint8)])
    machine.run(program, (blocks, 1, 1), [memory.addresses[0], argument], memory, shared)
    return [int(word) for word in memory.buffer(0).view(U32)]


def test_threads_that_part_meet_again() -> None:
    body = """
  setp.lt.s32 %p1, %r2, %r1;
  mov.u32 %r5, 0;
$loop:
  add.s32 %r5, %r5, 1;
  setp.le.s32 %p2, %r5, %r2;
  @%p2 bra $loop;
  @!%p1 bra $other;
  add.s32 %r5, %r5, 100;
  bra.uni $join;
$other:
  add.s32 %r5, %r5, 1000;
$join:
  st.global.b32 [%rd2+0], { %r5 };
  setp.eq.s32 %p3, %r2, 7;
  @%p3 exit;
  ld.global.b32 { %r6 }, [ %rd2 + 0 ];
  neg.s32 %r6, %r6;
  st.global.b32 [%rd2], %r6;
"""
    found = run(body, [0] * 64, blocks=2, argument=3)
    one = [-(lane + 1 + (100 if lane < 3 else 1000)) & 0xFFFFFFFF for lane in range(32)]
    one[7] = 1008
    assert found == [*one, *one]


def test_values_of_several_registers_at_once() -> None:
    body = """
  shl.b32 %r5, %r2, 4;
  cvt.s64.s32 %rd3, %r5;
  add.s64 %rd3, %rd1, %rd3;
  ld.global.v4.b32 {%r6, %r7, %r8, %r9}, [%rd3];
  mov.b64 %rd4, {%r6, %r9};
  mov.b64 {%r10, %r11}, %rd4;
  mov.b32 {%rs1, %rs2}, %r7;
  mov.b32 %r7, {%rs2, %rs1};
  st.global.v4.b32 [%rd3], {%r11, %r7, %r8, %r10};
"""
    found = run(body, [1, 0x00020003, 4, 5] * 4, threads=4)
    assert found == [5, 0x00030002, 4, 1] * 4


def test_special_registers() -> None:
    body = """
  mov.u32 %r5, %ntid.x;
  mov.u32 %r6, %nctaid.x;
  mov.u32 %r7, %laneid;
  mad.lo.s32 %r5, %r5, 1000, %r7;
  mad.lo.s32 %r5, %r6, 100000, %r5;
  st.global.b32 [%rd2], %r5;
"""
    assert run(body, [0] * 192, threads=64, blocks=3)[160] == 300000 + 64000


def test_immediates() -> None:
    body = """
  mov.b32 %r5, 0f3F800000;
  add.f32 %r5, %r5, 0f40000000;
  and.b32 %r6, %r2, -2;
  add.s32 %r5, %r5, %r6;
  xor.b32 %r5, %r5, 0x10;
  st.global.b32 [%rd2], %r5;
"""
    assert run(body, [0] * 32)[5] == (bits(3.0) + 4) ^ 0x10


@pytest.mark.parametrize(
    ("form", "operands", "expected"),
    [
        ("bfly", "1, 31", [lane ^ 1 for lane in range(32)]),
        ("idx", "5, 31", [5] * 32),
        ("down", "2, 31", [min(lane + 2, 31) if lane < 30 else lane for lane in range(32)]),
        ("up", "2, 0", [lane - 2 if lane >= 2 else lane for lane in range(32)]),
    ],
)
def test_a_shuffle_takes_another_lane_s_value(form: str, operands: str, expected: list[int]) -> None:
    found = run(f"  shfl.sync.{form}.b32 %r5, %r2, {operands}, -1;\n  st.global.b32 [%rd2], %r5;", [0] * 32)
    assert found == expected


def test_a_shuffle_needs_the_lanes_that_it_reads() -> None:
    body = "  setp.lt.s32 %p1, %r2, 16;\n  @%p1 shfl.sync.bfly.b32 %r5, %r2, 16, 31, -1;"
    with pytest.raises(FaultError, match="a lane that does not take part"):
        run(body, [0] * 32)


SWAP = """
  mov.b32 %r5, global_smem;
  mad.lo.s32 %r6, %r2, 4, %r5;
  st.shared.b32 [%r6], %r2;
FIRST
  xor.b32 %r7, %r2, 32;
  mad.lo.s32 %r7, %r7, 4, %r5;
  ld.shared::cta.b32 %r8, [%r7];
SECOND
  st.shared.b32 [%r6], %r8;
  ld.shared.b32 %r8, [%r6];
  st.global.b32 [%rd2], %r8;
"""


@pytest.mark.parametrize("barrier", ["bar.sync 0;", "barrier.sync 0;"])
def test_shared_memory_needs_barriers(barrier: str) -> None:
    body = SWAP.replace("FIRST", barrier).replace("SECOND", barrier)
    assert run(body, [0] * 128, threads=64, blocks=2, shared=256) == [lane ^ 32 for lane in range(64)] * 2


def test_a_barrier_needs_no_shared_memory() -> None:
    assert run("  bar.sync 0;\n  st.global.b32 [%rd2], %r2;", [0] * 64, threads=64) == list(range(64))


@pytest.mark.parametrize(("first", "second", "told"), [("", "bar.sync 0;", "read"), ("bar.sync 0;", "", "write")])
def test_a_race_in_shared_memory_is_a_fault(first: str, second: str, told: str) -> None:
    with pytest.raises(FaultError, match=f"race in shared memory: {told}"):
        run(SWAP.replace("FIRST", first).replace("SECOND", second), [0] * 64, threads=64, shared=256)


def test_several_writers_of_one_place_are_a_race() -> None:
    with pytest.raises(FaultError, match="race in shared memory: threads store"):
        run("  mov.b32 %r5, global_smem;\n  st.shared.b32 [%r5], %r2;", [0] * 32, shared=256)


@pytest.mark.parametrize("address", ["[%r6+256]", "[%r6+2]"])
def test_shared_memory_has_an_end_and_an_alignment(address: str) -> None:
    with pytest.raises(FaultError, match="shared memory"):
        run(f"  shl.b32 %r6, %r2, 2;\n  st.shared.b32 {address}, %r2;", [0] * 32, shared=256)


def test_matrices_are_spread_over_the_lanes() -> None:
    body = """
  shl.b32 %r6, %r2, 2;
  st.shared.b32 [%r6], %r2;
  st.shared.b32 [%r6+128], %r4;
  and.b32 %r7, %r2, 7;
  shl.b32 %r7, %r7, 4;
  shr.u32 %r8, %r2, 3;
  mad.lo.s32 %r7, %r8, 128, %r7;
  and.b32 %r7, %r7, 255;
  ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r9, %r10}, [%r7];
  mad.lo.s32 %r9, %r9, 100, %r10;
  st.global.b32 [%rd2], %r9;
"""
    assert run(body, [0] * 32, shared=256) == [101 * lane for lane in range(32)]


def test_a_matrix_is_loaded_by_whole_warps() -> None:
    body = "  setp.lt.s32 %p1, %r2, 8;\n  @%p1 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r2];"
    with pytest.raises(FaultError, match="part of a warp"):
        run(body, [0] * 32, shared=256)


def test_a_barrier_that_some_threads_miss_is_a_fault() -> None:
    with pytest.raises(FaultError, match="barrier"):
        run("  setp.lt.s32 %p1, %r2, 32;\n  @%p1 bar.sync 0;", [0] * 64, threads=64)


@pytest.mark.parametrize(
    ("address", "told"),
    [("[%rd2+128]", "out of bounds"), ("[%rd2+-4]", "out of bounds"), ("[%rd2+2]", "misaligned access of 4 bytes")],
)
def test_an_access_outside_of_a_buffer_is_a_fault(address: str, told: str) -> None:
    for instruction in (f"ld.global.b32 %r5, {address};", f"st.global.b32 {address}, %r2;"):
        with pytest.raises(FaultError, match=told):
            run(f"  {instruction}", [0] * 32)


def test_a_predicate_guards_an_access() -> None:
    body = "  setp.lt.s32 %p1, %r2, 8;\n  @%p1 st.global.b32 [%rd2], %r1;"
    assert run(body, [0] * 8, argument=9) == [9] * 8


def test_threads_may_store_the_same_and_nothing_else() -> None:
    assert run("  st.global.b32 [%rd1], %r1;", [0], argument=5) == [5]
    with pytest.raises(FaultError, match="different values"):
        run("  st.global.b32 [%rd1], %r2;", [0])


def test_a_trap_is_a_fault() -> None:
    with pytest.raises(TrapError, match="trap"):
        run("  trap;", [0] * 32)
    assert run("  setp.lt.s32 %p1, %r2, 0;\n  @%p1 trap;", [0] * 32) == [0] * 32


def test_a_failed_assertion_is_a_fault() -> None:
    body = """
  setp.eq.s32 %p1, %r1, 0;
  @%p1 bra $good;
  { .param .b64 param0;
  st.param.b64 [param0], %rd1;
  call.uni __assertfail, (param0); }
$good:
  st.global.b32 [%rd2], 1;
"""
    assert run(body, [0] * 32) == [1] * 32
    with pytest.raises(TrapError, match="an assertion of the kernel fails"):
        run(body, [0] * 32, argument=1)


def test_hints_have_no_effect() -> None:
    body = """
  createpolicy.fractional.L2::evict_last.b64 %rd3, 1.0;
  ld.global.L1::evict_last.L2::cache_hint.b32 { %r5 }, [ %rd2 + 0 ], %rd3;
  membar.gl;
  fence.acq_rel.gpu;
  griddepcontrol.wait;
  prefetch.global.L2 [%rd2];
  discard.global.L2 [%rd2], 128;
  pragma "nounroll";
  st.global.b32 [%rd2], %r5;
"""
    assert run(body, list(range(32))) == list(range(32))


@pytest.mark.parametrize(
    "name",
    [
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        *("add.rz.f32", "mul.f16x2", "lop3.b32", "atom.global.add.f32", "cvt.rz.f16.f32", "setp.lt.b32", "shl.s32"),
        *("fma.rp.f32", "max.xorsign.abs.f32", "mad.hi.s32", "frobnicate"),
    ],
)
def test_an_unknown_instruction_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError) as told:
        instructions.form(name)
    assert str(told.value) == name


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("shfl.sync.bfly.b32 %r5|%p1, %r2, 1, 31, -1;", "shfl.sync.bfly.b32 with"),
        ("bar.sync 1;", "bar.sync 1"),
        ("ld.local.b32 %r5, [%rd2];", "ld.local.b32"),
        ("st.global.mmio.b32 [%rd2], %r5;", "st.global.mmio.b32"),
        ("mov.b32 %r5, %clock;", "operand %clock"),
        ("add.f32 %r5, %r2, 1.5;", "operand 1.5"),
        ("bra $nowhere;", "bra"),
        ("add.s32 %r5, %r2;", "add.s32 with 1 sources"),
        ("?!;", "statement"),
        ("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r5}, [%r2];", "ldmatrix.sync.aligned.m8n8.x1.trans"),
    ],
)
def test_an_unknown_form_is_refused_by_name(statement: str, told: str) -> None:
    with pytest.raises(UnsupportedError) as error:
        run(f"  {statement}", [0] * 32)
    assert told in str(error.value)


def test_what_is_no_program_is_refused() -> None:
    two = HEAD.replace("THREADS", "32").replace("BODY", "")
    for text in ("", two + two, two.replace(".reqntid 32", ""), two.replace(".reqntid 32", ".reqntid 32, 2, 1")):
        with pytest.raises(UnsupportedError):
            parse(text)


def test_a_register_must_have_been_written_and_be_wide_enough() -> None:
    for body in ("  st.global.b32 [%rd2], %r9;", "  cvt.u16.u32 %rs1, %r2;\n  st.global.b32 [%rd2], %rs1;"):
        with pytest.raises(FaultError):
            run(body, [0] * 32)


def test_a_program_that_does_not_end_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_MOST_STEPS", 100)
    with pytest.raises(FaultError, match="does not end"):
        run("$again:\n  bra $again;", [0] * 32)


def test_a_large_grid_is_run_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_LANES_AT_ONCE", 64)
    assert run("  st.global.b32 [%rd2], %r3;", [9] * 160, blocks=5)[::32] == [0, 1, 2, 3, 4]


def test_the_narrow_floats_are_those_of_their_definitions() -> None:
    every = np.arange(256, dtype=np.uint8)
    for kind, largest, smallest in (("e4m3", 448.0, 2.0**-9), ("e5m2", 57344.0, 2.0**-16)):
        values = numbers.f8_to_f32(kind, every)
        finite = values[np.isfinite(values)]
        assert finite.max() == largest
        assert finite[finite > 0].min() == smallest
        there = np.isfinite(values)
        np.testing.assert_array_equal(numbers.f32_to_f8(kind, values[there]), every[there])
        middle = (finite[1] + finite[2]) / F32(2)  # a tie goes to the even pattern
        assert numbers.f32_to_f8(kind, np.array([middle], F32))[0] == 2
    rng = np.random.default_rng(0)
    floats = rng.standard_normal(10_000).astype(F32) * F32(2.0) ** rng.integers(-120, 120, 10_000).astype(F32)
    kept = numbers.bf16_to_f32(numbers.f32_to_bf16(floats))
    pattern = numbers.f32_to_bf16(floats)
    for step in (U16(1), U16(0xFFFF)):  # no neighbour is nearer
        assert (np.abs(numbers.bf16_to_f32(pattern + step) - floats) >= np.abs(kept - floats)).all()


def test_a_fused_multiply_add_rounds_once() -> None:
    from fractions import Fraction

    rng = np.random.default_rng(1)
    a, b, c = (rng.standard_normal(400).astype(F32) for _ in range(3))
    c[:200] = -(a[:200] * b[:200])  # what is left is the error of the product
    c[200:300] *= F32(2.0**-30)
    found = numbers.fma(a, b, c)
    for x, y, z, result in zip(a, b, c, found, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        up, down = (np.nextafter(result, F32(way)) for way in (np.inf, -np.inf))
        assert all(abs(Fraction(float(result)) - exact) <= abs(Fraction(float(n)) - exact) for n in (up, down))
