"""A fixed sample of the table in docs/coverage.md: a quantized model, latent attention, a multimodal model."""

from __future__ import annotations

from pathlib import Path

import pytest

from cells import rows
from cells.cell import Bench

pytestmark = pytest.mark.engine

H100 = rows.GPUS["H100"]


SAMPLE = ["Llama, AWQ", "DeepSeek-V2 (MLA)", "Qwen2.5-VL, vision encoder compiled", "Llama, from an object store"]


@pytest.mark.parametrize("title", SAMPLE)
def test_a_cell_is_a_hit(title: str, engine_python: str, serving: Path, tmp_path: Path) -> None:
    [row] = [row for row in rows.load() if row.title == title]
    answer = Bench(engine_python, serving, tmp_path, ()).run(row, H100)
    assert answer.hit, answer
    assert answer.ranks == 1
    assert answer.kernels > 0
