"""Looks keys up in the real engine, many configurations for the price of one import. Run in the engine's interpreter:

    python -s -P fork_server.py <directory>

``<directory>/target.json`` is the record of the GPU to pretend. Each line on stdin is a request (JSON): ``id``,
``arguments`` (what follows ``vllm serve``), ``environment`` (name → value, null to unset) and ``cwd``. A forked child
does what `model-cache check` does in its engine process (`worker.perform`), then lets the engine's own look-up open the
file and load it, and writes ``<directory>/<id>.json``; then the id comes on stdout.

What a variable sets when the engine is *imported* does not follow a request: start another server for that.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from preimported import imported

SECONDS = 180


class Quiet:
    """A progress that nobody watches."""

    def stage(self, name: str) -> None:
        """Nothing."""

    def tell(self, **event: object) -> None:
        """Nothing."""


def main(directory: Path) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the engine prints, too
    with imported(directory) as pretence:
        answers.write("ready\n")
        for line in sys.stdin:
            request = json.loads(line)
            _fork(request, pretence, directory)
            answers.write(f"{request['id']}\n")
    os._exit(0)


def _fork(request: dict[str, Any], pretence: Any, directory: Path) -> None:
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        begun = time.monotonic()
        try:
            result = _answer(request, pretence)
        except BaseException as error:
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"}
        result["seconds"] = round(time.monotonic() - begun, 2)
        (directory / f"{request['id']}.json").write_text(json.dumps(result))
        os._exit(0)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and not os.waitpid(child, os.WNOHANG)[0]:
        time.sleep(0.02)
    try:
        os.killpg(child, signal.SIGKILL)  # what is left of it
    except ProcessLookupError:
        return


def _answer(request: dict[str, Any], pretence: Any) -> dict[str, Any]:
    for name, value in request["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.chdir(request["cwd"])
    import vllm.compilation.decorators as decorators
    from vllm.compilation.counter import compilation_counter

    from hatch_model_cache.compile import worker
    from hatch_model_cache.compile.engines import vllm_keys

    look_up, named_factors = decorators._try_load_aot_compiled_fn, vllm_keys.named_factors
    looked_up: list[tuple[Any, str]] = []

    def note(model: Any) -> Any:
        looked_up.append((model, str(vllm_keys.lookup_path(model, {}))))
        return named_factors(model)

    vllm_keys.named_factors = note
    job = {"task": "look-up", "engine": "vllm", "version": None, "serve_arguments": request["arguments"]}
    result = worker.perform(job, pretence, Quiet())
    result["loaded"] = [look_up(model, path) is not None for model, path in looked_up]
    result["parts"] = compilation_counter.num_compiled_artifacts_loaded
    return result


if __name__ == "__main__":
    main(Path(sys.argv[1]))
