"""Ask the engine on this host what it would look for, before it is started."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_cache.errors import UsageError

from . import engine_process
from .compile import engines
from .progress import Progress
from .verdict import Observation


@dataclass(frozen=True)
class Command:
    """An engine's command line: the engine and what follows its ``serve``."""

    engine: str
    arguments: tuple[str, ...]


def parse_command(words: Sequence[str]) -> Command:
    """Find the engine in a command line, for example ``vllm serve org/model --max-model-len 8192``.

    Leading words (an interpreter, a path) are allowed, so that a process's own command line can be given.

    Raises:
        UsageError: if no known engine's ``serve`` is in it, or no model follows.
    """
    for index, word in enumerate(words[:-1]):
        engine = Path(word).name
        if engine in engines.NAMES and words[index + 1] == "serve":
            arguments = tuple(words[index + 2 :])
            if not arguments or arguments[0].startswith("-"):
                raise UsageError(f"no model after `{engine} serve`: give the command as it is started")
            return Command(engine, arguments)
    known = " or ".join(f"`{name} serve MODEL …`" for name in engines.NAMES)
    raise UsageError(f"no engine's command line: give {known} after --")


def read_environment_file(path: Path) -> dict[str, str]:
    """Variables from a file of ``NAME=value`` lines, as ``docker run --env-file`` takes it.

    Raises:
        UsageError: naming the first line that is none.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.startswith("#"):
            name, equals, value = text.partition("=")
            if not equals or not name.isidentifier():
                raise UsageError(f"{path}, line {number}: must be NAME=value")
            found[name] = value
    return found


def read_process(pid: int) -> tuple[list[str], dict[str, str], str]:
    """Command line, environment and working directory of a running process.

    Raises:
        UsageError: if there is no such process, or this user may not look at it.
    """
    place = Path("/proc") / str(pid)
    try:
        words = (place / "cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")[:-1]
        pairs = (place / "environ").read_bytes().decode("utf-8", "surrogateescape").split("\0")
        directory = str((place / "cwd").readlink())
    except OSError as error:
        raise UsageError(f"process {pid} cannot be looked at: {error.strerror}") from None
    return words, dict(pair.split("=", 1) for pair in pairs if "=" in pair), directory


def observe(
    command: Command,
    target: Mapping[str, Any],
    python: str,
    *,
    environment: Mapping[str, str],
    directory: str | None = None,
    progress: Progress,
) -> Observation:
    """Let the engine compute what it would look for, under a pretended GPU, and end it there. Nothing is compiled.

    Args:
        command: how the engine will be started.
        target: record of the GPU it will run on.
        python: the engine's interpreter.
        environment: the environment it will be started with.
        directory: its working directory, which relative model paths are under.
        progress: told of the stages.

    Raises:
        CompileError: if the engine does not get that far; `engine_process.UnknownEngineError` if its version has no
            adapter.
    """
    with tempfile.TemporaryDirectory(prefix="model-cache-check-") as scratch:
        adapter = engines.adapter(command.engine)
        own = {
            **adapter.environment(Path(scratch) / "cache"),
            "MODEL_CACHE_DISABLE": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        job = {
            "task": "look-up",
            "engine": command.engine,
            "version": None,
            "target": dict(target),
            "serve_arguments": list(command.arguments),
        }
        result = engine_process.run(
            python,
            job,
            Path(scratch),
            {**environment, **own},
            cwd=Path(directory or Path.cwd()),
            label="check",
            on_event=lambda event: progress.stage("check", event["stage"]) if "stage" in event else None,
        )
    facts = (result[name] for name in ("engine", "host_answers", "look_ups", "flags", "why_nothing"))
    return Observation(target, *facts)
