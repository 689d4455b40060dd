"""`model-cache diff`: what differs between two wheels is named, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from factories import ENTRY_ONE, make_document, make_wheel, sha
from hatch_model_cache import cli, cubin
from hatch_model_cache.checking.difference import Difference, Side, differences
from model_cache.wheel.archive import WheelPayload

CUBIN = (Path(__file__).parent / "data/cubins/sm_90a-ptxas.cubin").read_bytes()
KERNEL = "triton_poi_fused_add"


def compare(first: Path, second: Path) -> list[Difference]:
    with WheelPayload(str(first)) as one, WheelPayload(str(second)) as other:
        return differences(Side.of(one), Side.of(other))


def with_cubin(data: bytes, around: bytes = b"around it") -> tuple[dict[str, Any], dict[str, Any]]:
    """Contents with one file that holds a cubin, and the changes that say so in the manifest."""
    contents = {ENTRY_ONE: {"rank_0_0/model": around + data}}
    return contents, {
        "kernels.0.sha256": sha(data),
        "entries.0.ranks": ["0_0"],
        "model.served_as": ["test-org/Synthetic-1B"],
    }


def changed(data: bytes, section: str) -> bytes:
    """The same cubin with one byte of a section changed."""
    content = cubin.sections(data)[section]
    at = data.index(content)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_equal_wheels_do_not_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = make_wheel(tmp_path / "a"), make_wheel(tmp_path / "b")
    assert compare(first, second) == []
    assert cli.main(["diff", str(first), str(second)]) == 0
    assert capsys.readouterr().out == "nothing differs (2 entries compared)\n"


def test_values_are_compared_one_by_one(tmp_path: Path) -> None:
    changes = {
        "engine.torch": "2.15.0+cu130",
        "targets.0.sm_count": 114,
        "host_answers.nvcc": "13.0",
        "serve.environment": {},
        "factors.f": {"model.dtype": "float16"},
    }
    found = compare(make_wheel(tmp_path / "a"), make_wheel(tmp_path / "b", changes=changes))
    assert {(d.area, d.what, d.first, d.second) for d in found} == {
        ("engine", "torch", "2.14.0+cu130", "2.15.0+cu130"),
        ("target", "h100-sxm5-80gb.sm_count", "132", "114"),
        ("host", "nvcc", "null", "13.0"),
        ("serve", "environment.VLLM_USAGE_SOURCE", "image", None),
        ("factor", "model.dtype", "bfloat16", "float16"),
    }


def test_a_factor_of_one_key_only_says_which(tmp_path: Path) -> None:
    overrides = {**make_document()["entries"][1]["factor_overrides"], "model.seed": "1"}
    second = make_wheel(tmp_path / "b", changes={"entries.1.factor_overrides": overrides})
    [found] = compare(make_wheel(tmp_path / "a"), second)
    assert found == Difference(
        "factor", "model.seed", None, "1", "only backbone for h100-sxm5-80gb as /models/synthetic"
    )


def test_a_key_is_named_with_what_it_is_for(tmp_path: Path) -> None:
    second = make_wheel(
        tmp_path / "b",
        changes={"entries.0.key": "a" * 64, "entries.0.directory": ENTRY_ONE.replace("1" * 64, "a" * 64)},
    )
    found = [d for d in compare(make_wheel(tmp_path / "a"), second) if d.area == "key"]
    assert [(d.what, d.first, d.second) for d in found] == [
        ("backbone for h100-sxm5-80gb as test-org/Synthetic-1B", "1" * 64, "a" * 64)
    ]


@pytest.mark.parametrize(
    ("kind", "note"),
    [(".text.", "the machine code differs"), (".nv.info", "the same machine code; differs in .nv.info")],
)
def test_a_kernel_is_compared_down_to_its_machine_code(tmp_path: Path, kind: str, note: str) -> None:
    section = next(name for name in cubin.sections(CUBIN) if name.startswith(kind))
    other = changed(CUBIN, section)
    wheels = []
    for folder, data in (("a", CUBIN), ("b", other)):
        contents, changes = with_cubin(data)
        wheels.append(make_wheel(tmp_path / folder, contents, changes=changes))
    kernel, file = compare(*wheels)
    assert (kernel.area, kernel.what, kernel.note) == ("kernel", f"{KERNEL} (h100-sxm5-80gb)", note)
    assert (kernel.first, kernel.second) == (sha(CUBIN)[:12], sha(other)[:12])
    assert file.area == "file"
    assert file.note.endswith("0 kernels in it are the same, 1 are not")


def test_bytes_around_the_same_kernels_are_told_apart_from_them(tmp_path: Path) -> None:
    wheels = []
    for folder, around in (("a", b"guard 1"), ("b", b"guard 22")):
        contents, changes = with_cubin(CUBIN, around)
        wheels.append(make_wheel(tmp_path / folder, contents, changes=changes))
    [found] = compare(*wheels)
    assert found.area == "file"
    assert found.note.endswith("the same 1 kernels in it, the rest differs")


def test_the_command_says_so_by_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = make_wheel(tmp_path / "a"), make_wheel(tmp_path / "b", changes={"engine.torch": "2.15.0\u001b[31m"})
    assert cli.main(["diff", str(first), str(second)]) != 0
    second = make_wheel(tmp_path / "c", changes={"engine.torch": "2.15.0"})
    capsys.readouterr()
    assert cli.main(["diff", str(first), str(second)]) == 10
    assert capsys.readouterr().out == "engine\n  torch: 2.14.0+cu130 → 2.15.0\n"
    assert cli.main(["diff", "--json", str(first), str(second)]) == 10
    answer = json.loads(capsys.readouterr().out)
    assert answer["equal"] is False
    assert [d["what"] for d in answer["differences"]] == ["torch"]


def test_a_damaged_wheel_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def tamper(files: dict[str, bytes]) -> None:
        name = next(name for name in files if "/blobs/" in name)
        files[name] = files[name][:-1] + b"!"

    first, second = make_wheel(tmp_path / "a"), make_wheel(tmp_path / "b", edit_late=tamper)
    assert cli.main(["diff", str(first), str(second)]) == 3
    assert "does not agree with its manifest" in capsys.readouterr().err
    assert cli.main(["diff", str(first), str(tmp_path / "none.whl")]) == 5
