"""Ask the engine on this host what it would look for, before it is started."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hatch_model_cache.checking import factors
from hatch_model_cache.checking.changes import CommandLine
from hatch_model_cache.checking.verdict import Observation
from hatch_model_cache.compile import engines
from hatch_model_cache.compiling import engine_process, interpreter
from hatch_model_cache.compiling.progress import Progress
from model_cache.errors import UsageError
from model_cache.machine import cpu
from model_cache.wheel import small_file
from model_cache.wheel.names import printable

_MAX_CONFIG_BYTES = 16 << 20
_MAX_ENVIRONMENT_BYTES = 4 << 20
_MAX_VARIABLE_BYTES = (128 << 10) - 1
"""What Linux passes to a process: NAME=value and a NUL in 32 pages."""


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
        if engine in engines.SERVERS and words[index + 1] == "serve":
            arguments = tuple(words[index + 2 :])
            if not arguments:
                raise UsageError(f"no model after `{engine} serve`: give the command as it is started")
            return Command(engine, arguments, _assignments(words[:index]))
    known = " or ".join(f"`{name} serve MODEL …`" for name in engines.SERVERS)
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
    """Variables from a file of ``NAME=value`` lines, as ``docker run --env-file`` takes it: no quotes, no expansion,
    and a name is whatever has no blank in it.

    Raises:
        UsageError: naming the first line that is none.
    """
    try:
        with path.open("rb") as file:  # which may be a pipe: --env <(…)
            data = file.read(_MAX_ENVIRONMENT_BYTES + 1)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{printable(str(path)):.300} cannot be read: {reason}") from None
    if len(data) > _MAX_ENVIRONMENT_BYTES:
        raise UsageError(f"{path} is larger than {_MAX_ENVIRONMENT_BYTES} bytes")
    found = {}
    for number, line in enumerate(text.split("\n"), 1):
        pair = line.removesuffix("\r").lstrip()
        if pair and not pair.startswith("#"):
            name, equals, value = pair.partition("=")
            if not equals or not name or len(name.split()) != 1 or name != name.strip():
                raise UsageError(f"{path}, line {number}: must be NAME=value")
            if "\0" in pair:
                raise UsageError(f"{path}, line {number}: holds a NUL character")
            if len(pair.encode()) > _MAX_VARIABLE_BYTES:
                raise UsageError(
                    f"{path}, line {number}: {printable(name):.100} is longer than {_MAX_VARIABLE_BYTES} bytes, "
                    "which no process can be given"
                )
            found[name] = value
    return found


def read_process(pid: int) -> tuple[list[str], dict[str, str], str]:
    """Command line, environment and working directory of a running process.

    Raises:
        UsageError: if there is no such process, this user may not look at it, or its directory is not there.
    """
    place = Path("/proc") / str(pid)
    try:
        words = (place / "cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")[:-1]
        pairs = (place / "environ").read_bytes().decode("utf-8", "surrogateescape").split("\0")
        directory = str((place / "cwd").readlink())
    except OSError as error:
        raise UsageError(f"process {pid} cannot be looked at: {error.strerror}") from None
    if not os.path.isdir(directory):  # noqa: PTH112 - False, too, where this user may not look
        raise UsageError(
            f"the working directory of process {pid} is not there: {printable(directory)}; give the command after --"
        )
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
    """Let the engine compute what it would look for, and end it there. Nothing is compiled, a GPU is pretended.

    Args:
        command: how the engine will be started.
        target: record of the GPU it will run on, or of the CPU that is here.
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
            "TMPDIR": scratch,  # an engine that is ended leaves what it has made there
            **interpreter.UNDISTURBED,
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
    model = next((look_up["factors"].get(factors.MODEL) for look_up in result["look_ups"]), None)
    return Observation(
        target,
        result["engine"],
        result["host_answers"],
        result["look_ups"],
        result["why_nothing"],
        command_line,
        adapter.expected_ranks(command.arguments),
        (cpu.read(environment), cpu.read_compiler(environment)) if target["kind"] == "cpu" else None,
        _config_sha256(Path(directory or Path.cwd()) / model) if model else None,
    )


def _config_sha256(model: Path) -> str | None:
    try:
        return hashlib.sha256(small_file.read(model / "config.json", _MAX_CONFIG_BYTES)).hexdigest()
    except (OSError, ValueError):  # a Hub id, an object store
        return None
