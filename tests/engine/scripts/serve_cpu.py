"""Start real CPU engines, generate greedily, write down what came of it. Run by the engine's own interpreter.

    python serve_cpu.py [--in-turn] REQUEST.json …

A request names environment, arguments (what follows `vllm serve`), prompts, directory, log and answer. All requests of
one call start at the same moment, or one after the other. vLLM is imported once, then each engine is a fork: an import
takes longer here than a warm start. Nothing of the engine is replaced; there is a clock around its warm-up, and with
`mended` in a request the engine's faults are mended from its start to its end, whatever it looks up.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import answering

SECONDS = 240.0


def main(arguments: list[str]) -> None:
    """Answer all requests; wait for all."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine in this process
    # vllm 0.32.0, vllm/platforms/cpu.py, `check_and_update_config` sets these two before anything imports Inductor
    os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1"}
    import vllm.v1.engine.llm_engine
    import vllm.v1.worker.cpu_worker  # noqa: F401

    in_turn = arguments[0] == "--in-turn"
    paths = arguments[1:] if in_turn else arguments
    for together in [[path] for path in paths] if in_turn else [paths]:
        _wait([_fork(json.loads(Path(path).read_text())) for path in together])
    os._exit(0)


def _wait(children: list[int]) -> None:
    """Until all have ended, which they must do in time."""
    until = time.monotonic() + SECONDS
    while children and time.monotonic() < until:
        children = [child for child in children if not os.waitpid(child, os.WNOHANG)[0]]
        time.sleep(0.05)
    for child in children:
        os.killpg(child, signal.SIGKILL)
    if children:
        os._exit(1)


def _fork(request: dict[str, Any]) -> int:
    if child := os.fork():
        return child
    os.setpgid(0, 0)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        os.environ.update(request["environment"])
        os.chdir(request["cwd"])
        with _mended() if request["mended"] else nullcontext():
            answer = _serve(request["arguments"], request["prompts"])
    except BaseException as error:
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"}
    Path(request["answer"]).write_text(json.dumps(answer))
    os._exit(0)


def _mended() -> AbstractContextManager[None]:
    from model_cache.engine import mends

    return mends.replaced(mends.MENDS)


def _serve(words: list[str], prompts: list[list[int]]) -> dict[str, Any]:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    arguments = EngineArgs.from_cli_args(parser.parse_args(["--model", *words]))
    warm_up = answering.Clock(CPUModelRunner, "warming_up_model")
    begun = time.monotonic()
    # the entry point is in the key; that of `vllm serve` is what wheels are built for
    engine = LLMEngine.from_engine_args(arguments, usage_context=UsageContext.OPENAI_API_SERVER)
    started = time.monotonic() - begun
    singly = [answering.answers(engine, [prompt])[0] for prompt in prompts]
    engine.reset_prefix_cache()
    together = answering.answers(engine, prompts)
    return {
        "singly": singly,
        "together": together,
        "warm_up": warm_up.seconds,
        "lowered": answering.lowered(engine),
        "seconds": round(started, 2),
        "pid": os.getpid(),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
