"""What changes the engine's key: a wheel's verdict on many configurations against what the real engine does.

    python tests/matrix/key_factors.py [--no-starts] [--only TEXT]

Compiles the tiny Llama once, asks the real vLLM about every configuration (`configurations`) under a pretended GPU, and
compares the verdict that `model-cache check` would give with what the engine's own look-up then does with the wheel:
it loads the artifact, or it does not. Applies the advice where it is a flag, a variable or a name, and asks again. A
dozen are started for real (`vllm serve` under the pretended GPU). Answers are kept in ``.matrix/``, so that a run that
was stopped goes on where it was; a change of the wheel or of the adapter asks everything again.

Writes docs/key-factors.md. Exit status 1 on a wrong prediction, a failed question, or fewer than 60 configurations.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from hatch_model_cache import targets  # noqa: E402
from hatch_model_cache.checking.changes import CommandLine  # noqa: E402
from hatch_model_cache.checking.verdict import Observation, judge  # noqa: E402
from hatch_model_cache.compile import engines  # noqa: E402
from hatch_model_cache.compiling import compiler, rehearsal  # noqa: E402
from hatch_model_cache.packing import artifacts  # noqa: E402
from hatch_model_cache.packing.pack import pack  # noqa: E402
from hatch_model_cache.recipe.file import parse  # noqa: E402
from matrix import advice, table  # noqa: E402
from matrix.configurations import BASE, BASE_FLAGS, H100, HUB_ID, MODEL, Configuration, everything  # noqa: E402
from matrix.row import Row  # noqa: E402
from matrix.server import Server, serving  # noqa: E402
from model_cache.engine.lookups import CACHE  # noqa: E402
from model_cache.wheel.manifest import Manifest, Serve  # noqa: E402

PLACE = ROOT / ".matrix"
PYTHON = Path(os.environ.get("MODEL_CACHE_TEST_ENGINE") or ROOT / ".engines" / "vllm-0.33.0" / "bin" / "python")
LEAST = 60


class Matrix:
    """One run.

    Attributes:
        manifest: of the base wheel.
        rows: title → row, filled as the engine answers.
    """

    def __init__(self) -> None:
        self.work, self.cache = PLACE / "work", PLACE / "cache"
        self.manifest = base_wheel(self.cache)
        self.rows: dict[str, Row] = {}
        self._answers = PLACE / "answers"
        self._answers.mkdir(exist_ok=True)
        sources = [*(ROOT / "hatch_plugin/hatch_model_cache/compile").rglob("*.py")]
        self._stamps = {
            "asked": self._digest(sources),
            "started": self._digest([path for path in sources if "engines" not in path.parts]),
        }
        make_work(self.work)

    def environment(self) -> dict[str, str]:
        """The environment that configurations change."""
        return {
            "PATH": f"{PYTHON.parent}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "HOME": str(PLACE / "home"),
            "LANG": "C.UTF-8",
            "VLLM_CACHE_ROOT": str(self.cache),
            "HF_HOME": str(PLACE / "hub"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "MODEL_CACHE_DISABLE": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "CUDA_CACHE_DISABLE": "1",
        }

    def ask(self, configuration: Configuration, server: Server | None) -> dict[str, Any] | None:
        """The engine's answer, from the last run if it is known; None if it is not and there is no server."""
        path = self._kept(configuration, "asked")
        if path.is_file():
            known: dict[str, Any] = json.loads(path.read_text())
            return known
        if server is None:
            return None
        answer = server.ask(configuration.arguments, configuration.environment, self.work)
        path.write_text(json.dumps(answer))
        return answer

    def _digest(self, sources: list[Path]) -> str:
        """Of the wheel and of sources."""
        content = b"".join(path.read_bytes() for path in sorted(sources))
        return hashlib.sha256(self.manifest.to_json_bytes() + content).hexdigest()

    def _kept(self, configuration: Configuration, what: str) -> Path:
        """The file of an answer that depends on nothing else than this."""
        identity = [self._stamps[what], what, configuration.arguments, configuration.environment, configuration.target]
        identity += [configuration.gpu, configuration.against]
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
        return self._answers / f"{digest}.json"

    def lies_there(self, key: str) -> bool:
        """Whether the engine finds an artifact under a key."""
        return (self.cache / CACHE / key / "rank_0_0" / "model").is_file()

    def wheel_of(self, configuration: Configuration) -> Manifest:
        """The wheel that a configuration is compared with.

        Of another configuration than the base it is made from that one's answer, with the base's artifact under its
        key: the engine loads what lies there, which is the point of an unsafe verdict.
        """
        if configuration.against is None:
            return self.manifest
        other = self.rows[configuration.against]
        [look_up] = other.observation.look_ups
        [entry] = self.manifest.entries[:1]
        directory = f"{CACHE}/{look_up['key']}"
        if not (self.cache / directory).exists():
            shutil.copytree(self.cache / entry.directory, self.cache / directory)
        return dataclasses.replace(
            self.manifest,
            entries=(
                dataclasses.replace(entry, directory=directory, key=look_up["key"], factors="f", factor_overrides={}),
            ),
            factors={"f": look_up["factors"]},
            unkeyed=look_up["unkeyed"],
            serve=Serve(tuple(other.configuration.arguments[1:]), other.configuration.environment),
        )

    def note(self, configuration: Configuration, answer: Mapping[str, Any]) -> Row:
        """The row of an answer."""
        record = record_of(configuration)
        if "error" in answer:
            row = Row(configuration, error=answer["error"], seconds=answer.get("seconds", 0))
        else:
            environment = {**self.environment(), **configuration.environment}
            command = CommandLine(configuration.arguments, environment, answer["flags"], answer["options"])
            facts = (answer[n] for n in ("engine", "host_answers", "look_ups", "why_nothing"))
            seen = Observation(record, *facts, command)
            rules = engines.adapter("vllm").rules(seen.engine["version"])
            row = Row(
                configuration,
                verdict=judge(self.wheel_of(configuration), seen, rules),
                observation=seen,
                found=[self.lies_there(look_up["key"]) for look_up in seen.look_ups],
                loaded=answer["loaded"],
                parts=answer["parts"],
                seconds=answer["seconds"],
            )
        self.rows[configuration.title] = row
        return row

    def advise(self, row: Row, server: Server | None) -> None:
        """Apply the advice of a row, and ask again."""
        changed = advice.apply(row.configuration, [r.change for r in row.reasons])
        if changed is None:
            return
        answer = self.ask(changed, server)
        if answer is None:
            row.advised = None
        elif "error" in answer:
            row.advised = answer["error"]
        else:
            wanted = {e.key for e in self.wheel_of(row.configuration).entries}
            row.advised = all(u["key"] in wanted for u in answer["look_ups"]) and all(answer["loaded"])

    def start(self, configuration: Configuration) -> bool:
        """Start a real `vllm serve`, unless that was done; whether it loaded everything and compiled nothing."""
        kept = self._kept(configuration, "started")
        if kept.is_file():
            return bool(json.loads(kept.read_text()))
        root = PLACE / "start"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.cache, root)
        environment = {**self.environment(), **configuration.environment, "VLLM_CACHE_ROOT": str(root)}
        environment["PYTHONPATH"] = str(ROOT / "hatch_plugin")
        command = [str(PYTHON.with_name("vllm")), "serve", *configuration.arguments, "--port", "8768"]
        log = PLACE / "start.log"
        report = rehearsal.rehearse(command, configuration.target, environment=environment, cwd=self.work, log=log)
        if report.error:
            raise SystemExit(f"{configuration.title}: {report.error}; log: {log}")
        assert report.warm or report.inductor_compiles > 0, report
        kept.write_text(json.dumps(report.warm))
        return report.warm


def base_wheel(cache: Path) -> Manifest:
    """Compile the base recipe, unless it is there; put its artifacts where the engine looks; its manifest."""
    out, project = PLACE / "artifacts", PLACE / "recipe"
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(ROOT / "tests/data/models/llama-tiny", project / "model")
    recipe = parse(
        {
            "engine": "vllm==0.33.0",
            "model": HUB_ID,
            "config": "model",
            "served-as": [MODEL],
            "targets": [H100],
            "serve-args": [word for pair in BASE_FLAGS.items() for word in pair],
        },
        project_dir=project,
    )
    if not (out / "artifacts.json").is_file() or artifacts.read(out).recipe_digest != recipe.digest():
        shutil.rmtree(out, ignore_errors=True)
        os.environ["MODEL_CACHE_PYTHON"] = str(PYTHON)
        compiler.compile_recipe(recipe, out)
    found = artifacts.read(out)
    shutil.rmtree(cache, ignore_errors=True)
    for entry, file, source in found.files():
        place = cache / entry.directory / file.path
        place.parent.mkdir(parents=True)
        shutil.copyfile(found.path(source), place)
    return pack(found, recipe, name=recipe.distribution_name, version="1.0.0").manifest


def make_work(work: Path) -> None:
    """The serving host's directory: the model twice, and a Hub cache with it."""
    model = ROOT / "tests/data/models/llama-tiny"
    hub = PLACE / "hub" / "hub" / f"models--{HUB_ID.replace('/', '--')}"
    for place in (work / "llama-tiny", work / "copies/llama-tiny", hub / "snapshots" / ("0" * 40)):
        shutil.copytree(model, place, dirs_exist_ok=True)
    (hub / "refs").mkdir(exist_ok=True)
    (hub / "refs/main").write_text("0" * 40)
    (PLACE / "home").mkdir(exist_ok=True)


def record_of(configuration: Configuration) -> dict[str, Any]:
    """The GPU of a configuration, as a target's record."""
    return {**targets.load(configuration.target).as_dict(), **configuration.gpu}


def groups(configurations: list[Configuration]) -> Iterator[list[Configuration]]:
    """Configurations that one server can answer; those of the base's server last."""
    found: dict[str, list[Configuration]] = {}
    for one in configurations:
        key = [one.target, sorted(one.gpu.items()), sorted(one.environment.items()) if one.at_import else []]
        found.setdefault(json.dumps(key), []).append(one)
    yield from sorted(found.values(), key=lambda group: BASE in group)


def run(matrix: Matrix, configurations: list[Configuration]) -> None:
    """Ask the engine about everything that is not known yet."""
    for group in groups(configurations):
        if all(matrix.ask(one, None) for one in group) and BASE not in group:
            for one in group:
                say(matrix.note(one, matrix.ask(one, None) or {}))
            continue
        first = group[0]
        environment = {**matrix.environment(), **(first.environment if first.at_import else {})}
        with serving(PYTHON, record_of(first), environment, PLACE / "server.log") as server:
            for one in group:
                matrix.wheel_of(one)  # its artifact has to be there before the engine looks
                answer = matrix.ask(one, server)
                assert answer is not None
                say(matrix.note(one, answer))
            if BASE in group:
                for row in matrix.rows.values():
                    matrix.advise(row, server)


def say(row: Row) -> None:
    told = row.error or f"{row.verdict.answer if row.verdict else '?'}, the engine: {row.engine}"
    print(f"{row.seconds:5.1f} s  {row.configuration.title}: {told}", flush=True)
    for reason in row.reasons:
        print(f"           {reason}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--no-starts", action="store_true", help="start no `vllm serve`")
    parser.add_argument("--only", default="", metavar="TEXT", help="configurations with this in their title; no table")
    arguments = parser.parse_args()
    PLACE.mkdir(exist_ok=True)
    matrix = Matrix()
    configurations = [c for c in everything() if c is BASE or arguments.only in c.title]
    run(matrix, configurations)
    if not arguments.no_starts:
        for one in configurations:
            if one.start:
                row = matrix.rows[one.title]
                row.started = matrix.start(one)
                print(f"started: {one.title}: {'warm' if row.started else 'cold'}", flush=True)
    rows = [matrix.rows[one.title] for one in configurations]
    wrong = [problem for row in rows for problem in row.problems()]
    if not arguments.only:
        (ROOT / "docs" / "key-factors.md").write_text(table.document(rows, wrong), "utf-8")
        if len(rows) < LEAST:
            wrong.append(f"only {len(rows)} configurations")
    print("\n".join([f"{len(rows)} configurations", *wrong, f"{len(wrong)} wrong"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
