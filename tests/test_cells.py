"""The table of docs/coverage.md: its rows are whole, a cell is never silently untested."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from answers import family
from cells import cell, rows, table
from hatch_model_cache.recipe.checks import speculative_models

ROWS = rows.load()


def test_every_row_names_a_model_that_is_there() -> None:
    for row in ROWS:
        assert (rows.MODELS / row.model / "config.json").is_file(), row.title
        assert set(speculative_models(row.serve_args)) == set(row.drafts), row.title
    shown = {name for one in (*ROWS, *family.load()) for name in (one.model, one.draft) if name}
    assert shown == {p.name for p in rows.MODELS.iterdir()}


def test_a_row_is_written_as_a_model(tmp_path: Path) -> None:
    [row] = [row for row in ROWS if row.title == "Llama, AWQ"]
    row.write_model(tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "awq"
    assert config["architectures"] == ["LlamaForCausalLM"]


def test_an_answer_is_for_one_row_and_target() -> None:
    row = ROWS[0]
    digests = {row.digest(column.target) for column in rows.GPUS.values()}
    digests |= {dataclasses.replace(row, arguments=("--seed", "1")).digest("b200")}
    digests |= {dataclasses.replace(row, config={"hidden_size": 1}).digest("b200")}
    assert len(digests) == len(rows.GPUS) + 2


def test_a_cell_without_an_answer_says_so() -> None:
    row = dataclasses.replace(ROWS[0], title="Some model", part="A part")
    answers = {
        (row.name, "H100"): cell.Answer(prefixes=["backbone", "eagle_head"], ranks=2, kernels=7),
        (row.name, "A100"): cell.Answer("a100-sxm4-80gb rank 0: the engine says no", "compile"),
        (row.name, "B200"): None,
    }
    text = table.document([row], answers)
    assert "3 cells: 1 hits, 1 refused, 1 not run yet." in text
    assert "| Some model | hit (backbone, eagle_head; 2 ranks; 7) | refused (1) | not run yet |" in text
    assert "1. Some model (compile): the engine says no" in text


def test_a_llama_has_cells_of_older_engines_too() -> None:
    llamas = [row for row in ROWS if row.title.startswith("Llama")]
    answers = {(row.name, column): cell.Answer(kernels=1) for row in ROWS for column in row.columns}
    text = table.document(ROWS, answers)
    assert f"{len(ROWS) * len(rows.GPUS) + len(llamas) * len(rows.OLDER)} cells: " in text
    assert text.count("| Llama") == 2 * len(llamas)
    assert "not run yet |" not in text


@pytest.mark.parametrize(
    "answer", [cell.Answer(), cell.Answer("why", "serve", ["backbone"], 1, 2, 3, 0.5, {"load": 1.0})]
)
def test_an_answer_is_kept(tmp_path: Path, answer: cell.Answer) -> None:
    path = tmp_path / "answers" / "one.json"
    assert cell.kept(path) is None
    cell.keep(answer, path)
    assert cell.kept(path) == answer
