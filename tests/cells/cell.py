"""One cell: recipe → compile → wheel → pip install → deploy → a fresh, unmodified `vllm serve` loads it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.hosts import Host, compile_recipe, pack, site_packages, write_recipe
from model_cache.errors import CompileError, ModelCacheError
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.verify import read_manifest

from . import object_store
from .rows import Column, Row
from .uv_pip import pip

FORKED = {"VLLM_WORKER_MULTIPROC_METHOD": "fork"}
"""How the serving engine starts its core and its workers; in no key. Spares an import of vLLM for every rank."""

LONGEST = 500
"""Characters of an error that the table shows."""


@dataclass(frozen=True)
class Answer:
    """What came of a cell.

    Attributes:
        refused: why there is no hit; empty for one.
        stage: what said so: compile, pack, deploy or serve.
        prefixes: the engine's names of the compiled models in the wheel.
        ranks: how many ranks loaded.
        kernels: distinct GPU kernels in the wheel.
        stand_ins: host reads answered by a made-up value.
        megabytes: size of the wheel.
        seconds: of the compile, and of the engine's look-up.
    """

    refused: str = ""
    stage: str = ""
    prefixes: list[str] = field(default_factory=list)
    ranks: int = 0
    kernels: int = 0
    stand_ins: int = 0
    megabytes: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def hit(self) -> bool:
        """Everything that was compiled was loaded, and nothing was compiled again."""
        return not self.refused


@dataclass(frozen=True)
class Bench:
    """Where cells are run.

    Attributes:
        engine: the interpreter that compiles.
        serving: the interpreter of the serving environment, which has this project's wheel.
        place: an ignored directory for logs and scratch.
        through: command that engine processes are started through, for example a lock on a shared machine.
    """

    engine: str
    serving: Path
    place: Path
    through: tuple[str, ...]

    def run(self, row: Row, column: Column) -> Answer:
        """Run a cell from its recipe on; nothing of an earlier run is used."""
        target = column.target
        work = self.place / "work" / f"{row.name}-{target}"
        shutil.rmtree(work, ignore_errors=True)
        begun = time.monotonic()
        row.write_model(work / "configuration")
        served = row.url or f"./{row.name}"
        project = write_recipe(
            work / "recipe",
            work / "configuration",
            f"example/{row.name}",
            [served],
            [target],
            engine=f"vllm=={column.vllm}",
            serve_args=row.serve_args,
            environment=row.environment,
            drafts=row.drafts,
            # in the key of this path alone, and the serving environment is another one than that which compiles
            packages=site_packages(self.serving) if row.environment.get("VLLM_USE_AOT_COMPILE") == "0" else None,
        )
        artifacts = work / "artifacts"
        done = compile_recipe(project, artifacts, self.engine, self.through)
        compiled = round(time.monotonic() - begun, 1)
        if done.returncode == CompileError.exit_code:
            return Answer(_message(done), "compile", seconds={"compile": compiled})
        if done.returncode:
            raise RuntimeError(f"model-cache compile: {_message(done)}")
        wheel = pack(project, artifacts)
        with WheelPayload(str(wheel)) as payload:
            manifest = read_manifest(payload).manifest
        prefixes = sorted({f"{entry.prefix or entry.component}" for entry in manifest.entries})
        host = Host(self.serving, work / "host", self.through)
        pip("install", "--python", str(host.python), "--no-index", "--no-deps", str(wheel))
        try:
            refused, stage, ranks, load = self._serve(row, target, host, served, prefixes)
        finally:
            pip("uninstall", "--python", str(host.python), manifest.name)
        answer = Answer(
            refused,
            stage,
            prefixes,
            ranks,
            kernels=len({kernel.sha256 for kernel in manifest.kernels}),
            stand_ins=sum(item.count for item in manifest.build.stand_ins),
            megabytes=round(wheel.stat().st_size / 1e6, 2),
            seconds={"compile": compiled, "load": load},
        )
        if answer.hit:
            shutil.rmtree(work)
        return answer

    def _serve(
        self, row: Row, target: str, host: Host, served: str, prefixes: Sequence[str]
    ) -> tuple[str, str, int, float]:
        """Deploy and start the engine: why not (empty: a hit), what said so, ranks loaded, seconds of the look-up."""
        model = host.work / row.name
        row.write_model(model)
        for name, directory in row.drafts.items():
            shutil.copytree(directory, host.work / name)
        root = str(host.cache_root)
        done = host.model_cache("deploy", "--assume-target", target, "--root", root, "--json")
        if done.returncode:
            return _message(done), "deploy", 0, 0.0
        store = object_store.serving(row.url, model, self.place) if row.url else nullcontext(dict[str, str]())
        try:
            with store as address:
                report = host.serve(
                    served,
                    target,
                    arguments=row.serve_args,
                    environment={**FORKED, **row.environment, **address},
                    tokenizer=row.tokenizer,
                )
        except ModelCacheError as error:
            return _short(error.message), "serve", 0, 0.0
        if report.error:
            return _short(report.error), "serve", 0, report.load_seconds
        if not report.warm or report.loaded < len(prefixes):  # blocks of one class load the same one
            counts = f"loaded {report.loaded} of {len(prefixes)} models with {report.parts} parts"
            compiles = f"{report.inductor_compiles} compiles, {report.ptxas_runs} ptxas runs"
            return f"{counts}; {compiles}", "serve", 0, report.load_seconds
        return "", "", len(report.ranks), report.load_seconds


def _message(done: subprocess.CompletedProcess[str]) -> str:
    """The error of a command that was asked for JSON."""
    try:
        error: dict[str, Any] = json.loads(done.stdout)["error"]
    except (ValueError, KeyError):
        return _short((done.stderr or done.stdout)[-LONGEST:])
    return _short(" ".join([error["message"], "; ".join(error["problems"])]))


def _short(text: str) -> str:
    """One line without the paths of this machine."""
    line = re.sub(r"(\. (The engine's|Its) log: \S+| \(logs: [^)]*\))", "", " ".join(text.split()))
    line = re.sub(r"/(tmp|var)/\S+", "…", line)
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
