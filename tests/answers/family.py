"""One family: compile without weights → wheel → pip install → an unmodified engine with real weights loads it."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.cpu_hosts import SERVE_ARGS, Outcome, Start, compile_wheel, make_host, write_weights
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.verify import read_manifest

HERE = Path(__file__).resolve().parent
MODELS = HERE.parent / "data" / "models"
NO_WHEEL = {"MODEL_CACHE_DISABLE": "1"}

LENGTHS = (5, 2, 120, 127, 128, 129, 300)
"""Of the prompts, in tokens. A block of the engine's KV cache holds 128 (vllm/platforms/cpu.py, 0.32.0), so answers to
the third cross into the next one; all of them are more than one step takes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """One row; see families.toml for the fields."""

    title: str
    model: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    draft: str | None = None
    ranks: int = 1

    @property
    def name(self) -> str:
        """What the model is called: letters, digits, dashes."""
        return "-".join("".join(c if c.isalnum() else " " for c in self.title.lower()).split())

    @property
    def serve_args(self) -> tuple[str, ...]:
        """Everything after ``vllm serve MODEL``."""
        return (*SERVE_ARGS, *self.arguments)

    @property
    def models(self) -> int:
        """How many models the engine compiles."""
        return 2 if self.draft else 1

    def digest(self) -> str:
        """What an answer depends on, but for this project's own code."""
        files = [MODELS / name / "config.json" for name in (self.model, self.draft) if name]
        options = [self.serve_args, dict(self.environment), LENGTHS, [file.read_text("utf-8") for file in files]]
        return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Answer:
    """What came of a family.

    Attributes:
        wrong: what is not as it has to be; empty if all is right.
        vectors: whether numbers of vectors were compared and not tokens.
        compared: how many.
        cold, warm: seconds of the engine's initialization, without and with the wheel.
        compiles, lowered: g++ runs that compile and graphs that Inductor lowered: (without, with the wheel).
        kernels: shared objects in the wheel.
        hits: look-ups that have loaded from the wheel, in all ranks.
    """

    wrong: list[str]
    vectors: bool
    compared: int
    cold: float
    warm: float
    compiles: tuple[int, int]
    lowered: tuple[int, int]
    kernels: int
    hits: int


def load() -> list[Family]:
    """Every family, in the file's order."""
    table = tomllib.loads((HERE / "families.toml").read_text("utf-8"))
    rows = [{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()} for row in table["family"]]
    return [Family(**row) for row in rows]


def prompts() -> list[list[int]]:
    """Token ids; the longer ones begin with the shorter ones, so the engine may share their blocks."""
    return [[4 + (7 * i * i + 3 * i) % 1000 for i in range(length)] for length in LENGTHS]


def run(family: Family, engine: str, own: Path, work: Path) -> Answer:
    """Run a family from its recipe on; nothing of an earlier run is used.

    Args:
        engine: the interpreter that compiles.
        own: this project's wheel, which every other one needs.
        work: an empty directory.
    """
    served, drafts = f"./{family.name}", {f"./{family.draft}": MODELS / family.draft} if family.draft else {}
    wheel = compile_wheel(
        engine,
        MODELS / family.model,
        work / "recipe",
        served,
        family.serve_args,
        environment=family.environment,
        drafts=drafts,
    )
    with WheelPayload(str(wheel)) as payload:
        manifest = read_manifest(payload).manifest
    (work / "host").mkdir()
    host = make_host(engine, work / "host", own, wheel)
    write_weights(engine, MODELS / family.model, host.work / served)
    for name, config in drafts.items():
        write_weights(engine, config, host.work / name, kind="eagle")
    cold, warm = host.starts_in_turn(
        *(
            Start(name, work / name, {**family.environment, **more}, True, served, family.serve_args, prompts())
            for name, more in (("cold", NO_WHEEL), ("warm", {}))
        )
    )
    shared = {file.sha256 for entry in manifest.entries for file in entry.files if "shared-object" in file.contains}
    return Answer(
        [*problems(family, cold, warm)],
        vectors="pooling" in family.arguments,
        compared=sum(len(answer) for how in warm.answers.values() for answer in how),
        cold=cold.init_seconds,
        warm=warm.init_seconds,
        compiles=(cold.compiles, warm.compiles),
        lowered=(cold.answer["lowered"], warm.answer["lowered"]),
        kernels=len(shared),
        hits=_hits(warm),
    )


def problems(family: Family, cold: Outcome, warm: Outcome) -> Iterator[str]:
    """What is not as it has to be, of a start without the wheel and one with it."""
    for how, answers in cold.answers.items():
        for number, answer in enumerate(answers):
            if warm.answers[how][number] != answer:
                yield f"{how}, prompt {number}: other answers than without the wheel"
        if len({tuple(answer) for answer in answers}) < len(LENGTHS):
            yield f"{how}: the same answer to different prompts; these weights mean nothing"
    if not (cold.compiles and cold.answer["lowered"]):
        yield "nothing was compiled without the wheel, so nothing is shown"
    if warm.compiles or warm.answer["lowered"]:
        yield f"with the wheel {warm.compiles} runs of g++, {warm.answer['lowered']} graphs lowered"
    if not any(line.startswith("deployed ") for line in warm.said):
        yield "the plug-in has deployed no wheel"
    if _hits(warm) != family.ranks * family.models:
        yield f"{_hits(warm)} hits in {family.ranks} ranks with {family.models} models"


def _hits(outcome: Outcome) -> int:
    return sum(line.startswith("hit ") for line in outcome.said)
