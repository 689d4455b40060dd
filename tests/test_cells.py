"""The table of docs/coverage.md: its rows are whole, a cell is never silently untested."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from answers import family
from cells import cell, forked, rows, table
from cells.answers import Answers
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
def test_an_answer_is_kept_until_its_row_changes(tmp_path: Path, answer: cell.Answer) -> None:
    row, other = ROWS[:2]
    answers = Answers(tmp_path / "coverage.json")
    assert set(answers.read(ROWS[:2]).values()) == {None}
    answers.keep(row, "A100", answer)
    answers.keep(other, "A100", answer)
    answers.keep(row, "B200", answer)
    kept = {place for place, found in answers.read(ROWS[:2]).items() if found == answer}
    assert kept == {(row.name, "A100"), (other.name, "A100"), (row.name, "B200")}
    assert not any(answers.read([dataclasses.replace(row, config={"hidden_size": 1})]).values())


def test_the_table_is_what_the_kept_answers_say() -> None:
    document = rows.HERE.parents[1] / "docs" / "coverage.md"
    answers = Answers(document.with_suffix(".json")).read(ROWS)
    assert sum(answer is not None and answer.hit for answer in answers.values()) >= 80
    assert table.document(ROWS, answers) == document.read_text("utf-8")


def test_only_a_compile_is_forked(tmp_path: Path) -> None:
    received: list[object] = []

    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, connection.makefile("r") as request:
            _, (out, error, events), _, _ = socket.recv_fds(connection, 1, 3)
            received.extend(json.load(request)[0])
            os.write(events, b"an event")
            os.write(out, b"from the child")
            for descriptor in (out, error, events):
                os.close(descriptor)

    client = [sys.executable, "-I", "-S", "-c", forked.CLIENT, str(tmp_path / "socket"), sys.executable]
    asked = subprocess.run([*client, "-I", "-c", "print('the real one')"], capture_output=True, check=True)
    assert asked.stdout == b"the real one\n"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        thread = threading.Thread(target=serve, args=[server])
        thread.start()
        reading, writing = os.pipe()
        compile_process = [*client, "-s", "-P", "bootstrap.py", "job.json", str(writing)]
        done = subprocess.run(compile_process, capture_output=True, check=True, pass_fds=[writing], timeout=30)
        thread.join()
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"an event"
    assert done.stdout == b"from the child"
    assert received == ["job.json"]
