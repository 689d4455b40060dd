"""A fixed sample of the table in docs/coverage.md: a quantized model, latent attention, a multimodal model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cells import forked, rows
from cells.cell import Bench

pytestmark = pytest.mark.engine

H100 = rows.GPUS["H100"]


ALONE = ["Llama, AWQ", "Llama, from an object store"]
FORKED = ["DeepSeek-V2 (MLA)", "Qwen2.5-VL, vision encoder compiled"]
"""Compiled as `make coverage` does, by forks of a process that has imported the engine."""


@pytest.fixture(scope="module")
def forking(engine_python: str) -> Iterator[str]:
    with forked.engine(engine_python, H100.target) as stand_in:
        yield stand_in


@pytest.mark.parametrize("title", ALONE)
def test_a_cell_is_a_hit(title: str, engine_python: str, serving: Path, tmp_path: Path) -> None:
    _run(title, Bench(engine_python, serving, tmp_path, ()))


@pytest.mark.parametrize("title", FORKED)
def test_a_cell_compiled_in_a_fork_is_a_hit(title: str, forking: str, serving: Path, tmp_path: Path) -> None:
    _run(title, Bench(forking, serving, tmp_path, ()))


def _run(title: str, bench: Bench) -> None:
    [row] = [row for row in rows.load() if row.title == title]
    answer = bench.run(row, H100)
    assert answer.hit, answer
    assert answer.ranks == 1
    assert answer.kernels > 0
