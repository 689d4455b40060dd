"""The table of docs/right-answers.md: whatever is not right is named, and no family is silently untested."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from answers import family, table
from answers.family import Answer
from engine.cpu_hosts import Outcome
from hatch_model_cache.recipe.checks import speculative_models

FAMILIES = family.load()
LLAMA = FAMILIES[0]
SAID = "model-cache: deployed x\nmodel-cache: hit backbone rank 0_0 in 0.1 s\n"
RIGHT = Answer([], False, 224, 31.0, 1.3, (18, 0), (1, 0), 10, 1)


def outcome(log: str = SAID, compiles: int = 0, lowered: int = 0, changed: int = 0) -> Outcome:
    answers = [[n, n + 1] for n in range(len(family.LENGTHS))]
    answers[-1][-1] += changed
    return Outcome({"singly": answers, "together": answers, "lowered": lowered}, log, compiles)


COLD = outcome("", compiles=18, lowered=1)


def test_every_family_is_of_models_that_are_there() -> None:
    for one in FAMILIES:
        assert (family.MODELS / one.model / "config.json").is_file(), one.title
        assert set(speculative_models(one.serve_args)) == ({f"./{one.draft}"} if one.draft else set()), one.title
    assert len({one.name for one in FAMILIES}) == len(FAMILIES)


def test_an_answer_is_for_one_configuration() -> None:
    assert len({one.digest() for one in FAMILIES}) == len(FAMILIES)


def test_prompts_cross_a_block_and_share_one() -> None:
    asked = family.prompts()
    assert [len(prompt) for prompt in asked] == list(family.LENGTHS)
    assert {127, 128, 129} <= set(family.LENGTHS)
    assert asked[-1][:128] == asked[-2][:128]
    assert sum(family.LENGTHS) > int(LLAMA.serve_args[LLAMA.serve_args.index("--max-num-batched-tokens") + 1])


def test_nothing_is_wrong_with_equal_answers_and_a_hit() -> None:
    assert [*family.problems(LLAMA, COLD, outcome())] == []


@pytest.mark.parametrize(
    ("cold", "warm", "told"),
    [
        (COLD, outcome(changed=1), "singly, prompt 6: other answers than without the wheel"),
        (COLD, outcome(compiles=1), "with the wheel 1 runs of g++, 0 graphs lowered"),
        (COLD, outcome(lowered=1), "with the wheel 0 runs of g++, 1 graphs lowered"),
        (COLD, outcome(SAID.replace("hit ", "miss ")), "0 hits in 1 ranks with 1 models"),
        (COLD, outcome(SAID.replace("deployed ", "")), "the plug-in has deployed no wheel"),
        (outcome(""), outcome(), "nothing was compiled without the wheel, so nothing is shown"),
    ],
)
def test_what_is_wrong_is_told(cold: Outcome, warm: Outcome, told: str) -> None:
    assert told in family.problems(LLAMA, cold, warm)


def test_weights_that_mean_nothing_are_told() -> None:
    same = Outcome({how: [[1, 2]] * len(family.LENGTHS) for how in ("singly", "together")} | {"lowered": 0}, SAID, 0)
    assert any("these weights mean nothing" in told for told in family.problems(LLAMA, same, same))


def test_the_document_names_what_is_wrong_and_what_was_not_run() -> None:
    wrong = Answer(["singly, prompt 0: other answers"], False, 224, 31.0, 1.3, (18, 0), (1, 0), 10, 0)
    three = FAMILIES[:3]
    answers = dict(zip([one.title for one in three], [RIGHT, wrong, None], strict=True))
    text = table.document(three, answers, "x86-64-avx512")
    assert "3 families: 1 equal, 1 wrong, 1 not run yet." in text
    assert f"- {three[1].title}: singly, prompt 0: other answers" in text
    assert f"| {three[2].title} | not run yet |" in text


def test_the_document_is_of_these_families() -> None:
    text = (Path(__file__).resolve().parents[1] / "docs/right-answers.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [one.title for one in FAMILIES]
    assert len([row for row in rows if " | equal, " in row]) >= 6
    assert ", 0 wrong, " in text


def test_an_answer_is_written_and_read_again() -> None:
    from dataclasses import asdict

    again = Answer(**json.loads(json.dumps(asdict(RIGHT))))
    assert table.document([LLAMA], {LLAMA.title: again}, "x") == table.document([LLAMA], {LLAMA.title: RIGHT}, "x")
