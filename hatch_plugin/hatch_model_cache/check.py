"""Ask the engine on this host what it would look for, before it is started."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_cache.errors import UsageError

from . import engine_process
from .changes import CommandLine
from .compile import engines
from .progress import Progress
from .verdict import Observation


@dataclass(frozen=True)
class Command:
    """An engine's command line: the engine, what follows its ``serve``, and variables that are set before it."""

    engine: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def parse_command(words: Sequence[str]) -> Command:
    """Find the engine in a command line, for example ``vllm serve org/model --max-model-len 8192``.

    An interpreter, a path or another program may stand before it, so that a process's own command line can be given,
    and so may ``NAME=value``, with or without ``env``.

    Raises:
        UsageError: if no known engine's ``serve`` is in it, nothing follows, or ``env`` takes variables away.
    """
    for index, word in enumerate(words[:-1]):
        engine = Path(word).name
        if engine in engines.NAMES and words[index + 1] == "serve":
            arguments = tuple(words[index + 2 :])
            if not arguments:
                raise UsageError(f"no model after `{engine} serve`: give the command as it is started")
            return Command(engine, arguments, _assignments(words[:index]))
    known = " or ".join(f"`{name} serve MODEL …`" for name in engines.NAMES)
    raise UsageError(f"no engine's command line: give {known} after --, also in place of `python -m …`")


def _assignments(words: Sequence[str]) -> dict[str, str]:
    """Variables that the words before the engine set for it."""
    if "env" in (Path(word).name for word in words):
        options = [word for word in words if word.startswith("-")]
        if options:
            raise UsageError(f"`env {options[0]}` is not understood: give the variables as NAME=value, or with --env")
    pairs = (word.partition("=") for word in words)
    return {name: value for name, equals, value in pairs if equals and name.isidentifier()}


def read_environment_file(path: Path) -> dict[str, str]:
    """Variables from a file of ``NAME=value`` lines, as ``docker run --env-file`` takes it: no quotes, no expansion.

    Raises:
        UsageError: naming the first line that is none.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        text = line.lstrip()
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
            needed=("engine", "flags", "host_answers", "look_ups", "options", "why_nothing"),
            on_event=lambda event: progress.stage("check", event["stage"]) if "stage" in event else None,
        )
    command_line = CommandLine(command.arguments, environment, result["flags"], result["options"])
    return Observation(
        target,
        result["engine"],
        result["host_answers"],
        result["look_ups"],
        result["why_nothing"],
        command_line,
        adapter.expected_ranks(command.arguments),
    )
