"""cubin.py against real cubins (tests/data/cubins, assembled by build.py there) and what cuobjdump says of them."""

from __future__ import annotations

import contextlib
import functools
import json
import pickle
import random
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hatch_model_cache import cubin, targets

DATA = Path(__file__).parent / "data" / "cubins"
RECORD: dict[str, Any] = json.loads((DATA / "cuobjdump.json").read_text("utf-8"))["cubins"]
NAMES = sorted(RECORD)


@functools.cache
def real(name: str) -> bytes:
    """The bytes of one checked-in cubin."""
    return (DATA / name).read_bytes()


def test_every_cubin_is_recorded() -> None:
    assert sorted(path.name for path in DATA.glob("*.cubin")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_architecture_is_what_cuobjdump_says_and_what_was_asked_for(name: str) -> None:
    assert cubin.architecture(real(name)) == RECORD[name]["architecture"] == RECORD[name]["built_for"]


@pytest.mark.parametrize("name", NAMES)
def test_resources_are_what_cuobjdump_says(name: str) -> None:
    said = RECORD[name]["kernels"]
    assert set(said) == {"add_one", "spill"}
    assert said["spill"]["stack"] > 0, "the kernel that is to spill does not: raise ALIVE in build.py"
    for kernel, expected in said.items():
        assert cubin.resources(real(name), kernel) == (expected["registers"], expected["stack"] // 4)


def test_the_suffix_is_told_apart_in_every_layout() -> None:
    """The same arch with and without the suffix differs only where the layout keeps it."""
    for bare, suffixed in (
        ("sm_100-ptxas.cubin", "sm_100a-ptxas.cubin"),
        ("sm_100-ptxas-blackwell.cubin", "sm_100a-ptxas-blackwell.cubin"),
        ("sm_90-ptxas-blackwell.cubin", "sm_90a-ptxas-blackwell.cubin"),
    ):
        assert cubin.architecture(real(suffixed)) == cubin.architecture(real(bare)) + "a"


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("t4", "sm_75-ptxas.cubin"),
        ("a100-sxm4-80gb", "sm_80-ptxas.cubin"),
        ("l4", "sm_89-ptxas.cubin"),
        ("h100-sxm5-80gb", "sm_90a-ptxas.cubin"),
        ("b200", "sm_100a-ptxas-blackwell.cubin"),
        ("rtx-5090", "sm_120a-ptxas-blackwell.cubin"),
    ],
)
def test_a_target_names_the_arch_that_tritons_assembler_writes_for_it(target: str, name: str) -> None:
    assert cubin.architecture(real(name)) == targets.load(target).ptx_arch


def test_a_kernel_that_is_not_there() -> None:
    with pytest.raises(cubin.CubinError, match="'absent'"):
        cubin.resources(real("sm_80-ptxas.cubin"), "absent")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a 64-bit"),
        (b"\x7fELF\x02\x01" + b"\0" * 20, "not a 64-bit"),
        (b"\x7fELF\x01\x01" + b"\0" * 200, "not a 64-bit"),
        (b"\x7fELF\x02\x01" + b"\0" * 12 + struct.pack("<H", 62) + b"\0" * 100, "not for an NVIDIA GPU"),
    ],
)
def test_what_is_no_cubin(data: bytes, message: str) -> None:
    with pytest.raises(cubin.CubinError, match=message):
        cubin.architecture(data)


def test_embedded_finds_each_cubin_in_random_bytes() -> None:
    source = random.Random(7)
    data, expected = source.randbytes(1001), []
    for name in NAMES:
        data += real(name) + source.randbytes(source.randrange(300))
        expected.append(real(name))
    assert list(cubin.embedded(data)) == expected


@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))
def test_embedded_finds_each_cubin_in_a_pickle(protocol: int) -> None:
    bundle = {name: {"cubin": real(name), "metadata": {"shared": 0}} for name in NAMES}
    assert list(cubin.embedded(pickle.dumps(bundle, protocol))) == [real(name) for name in NAMES]


def test_embedded_finds_cubins_that_touch() -> None:
    one = real("sm_80-ptxas.cubin")
    assert list(cubin.embedded(one + one)) == [one, one]


def test_embedded_passes_over_elf_files_of_a_cpu_and_magic_without_a_header() -> None:
    other = bytearray(real("sm_80-ptxas.cubin"))
    struct.pack_into("<H", other, 0x12, 62)
    assert list(cubin.embedded(bytes(other) + b"\x7fELF\x02\x01")) == []


def test_embedded_passes_over_a_header_that_promises_no_section() -> None:
    """Such a thing once came out as a "cubin" of a few bytes, which then had no architecture."""
    header = bytearray(real("sm_80-ptxas.cubin")[:64])
    struct.pack_into("<QQ", header, 0x20, 0, 5)
    struct.pack_into("<HH", header, 0x38, 0, 0)
    struct.pack_into("<H", header, 0x3C, 0)
    assert list(cubin.embedded(bytes(header) + b"x" * 100)) == []


def test_embedded_is_quick_where_every_byte_looks_like_a_beginning() -> None:
    begun = time.process_time()
    assert list(cubin.embedded(cubin.ELF_MAGIC * 100_000)) == []
    assert time.process_time() - begun < 5


def readable(data: bytes) -> None:
    """Ask everything; only CubinError may come."""
    for ask in (
        lambda: cubin.architecture(data),
        lambda: cubin.resources(data, "add_one"),
        lambda: cubin.resources(data, "spill"),
    ):
        with contextlib.suppress(cubin.CubinError):
            ask()
    found = list(cubin.embedded(data))
    assert sum(map(len, found)) <= len(data)
    for one in found:
        assert one in data
        with contextlib.suppress(cubin.CubinError):
            cubin.architecture(one)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(NAMES), st.data())
def test_truncated_cubins_raise_nothing_else(name: str, data: st.DataObject) -> None:
    whole = real(name)
    readable(whole[: data.draw(st.integers(0, len(whole) - 1))])


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=8)), max_size=6),
    st.lists(st.tuples(st.integers(0, 63), st.binary(min_size=1, max_size=8)), max_size=3),
)
def test_damaged_cubins_raise_nothing_else(
    name: str, anywhere: list[tuple[float, bytes]], in_header: list[tuple[int, bytes]]
) -> None:
    damaged = bytearray(real(name))
    places = [(int(share * len(damaged)), value) for share, value in anywhere]
    for at, value in places + in_header:
        damaged[at : at + len(value)] = value
    readable(bytes(damaged))


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from([0, 4, 8, 16, 24, 32, 40]),
    st.sampled_from([0, 1, 0xFFFF, 2**31, 2**32 - 1, 2**63, 2**64 - 1]),
)
def test_damaged_section_headers_raise_nothing_else(name: str, share: float, field: int, value: int) -> None:
    """Extreme offsets, sizes, links and name positions in one entry of the section table."""
    damaged = bytearray(real(name))
    table = struct.unpack_from("<Q", damaged, 0x28)[0]
    count = struct.unpack_from("<H", damaged, 0x3C)[0]
    at = table + 64 * int(share * count) + field
    wide = field in (8, 16, 24, 32)
    struct.pack_into("<Q" if wide else "<I", damaged, at, value if wide else value & 0xFFFFFFFF)
    readable(bytes(damaged))
