"""A fixed sample of docs/right-answers.md: a mixture of experts, and an embedding without products of oneDNN."""

from __future__ import annotations

from pathlib import Path

import pytest

from answers import family

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("title", ["Qwen3-MoE", "BERT, embedding"])
def test_answers_are_those_without_the_wheel(
    title: str, cpu_engine_python: str, own_wheel: Path, tmp_path: Path
) -> None:
    [one] = [one for one in family.load() if one.title == title]
    answer = family.run(one, cpu_engine_python, own_wheel, tmp_path)
    assert answer.wrong == []
    assert answer.hits == one.ranks * one.models
    assert answer.kernels > 0
    least = 128 if answer.vectors else 16
    assert answer.compared == 2 * len(family.LENGTHS) * least
