"""Start real CPU engines, generate greedily, write down what came of it. Run by the engine's own interpreter.

    python serve_cpu.py [--in-turn] REQUEST.json …

A request names environment, model, arguments, directory, log and answer. All requests of one call start at the same
moment, or one after the other. vLLM is imported once, then each engine is a fork: an import takes longer here than a
warm start. Nothing of the engine is replaced.
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

PROMPT = [1, 5, 9, 22, 7]
TOKENS = 16
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
        answer = _serve(request["model"], request["arguments"])
    except BaseException as error:
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"}
    Path(request["answer"]).write_text(json.dumps(answer))
    os._exit(0)


def _serve(model: str, others: dict[str, Any]) -> dict[str, Any]:
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    begun = time.monotonic()
    wheel = {"skip_tokenizer_init": True, "max_model_len": 512, "max_num_batched_tokens": 512, "max_num_seqs": 16}
    arguments = EngineArgs(model=model, **{**wheel, **others})
    # the entry point is in the key; that of `vllm serve` is what wheels are built for
    engine = LLMEngine.from_engine_args(arguments, usage_context=UsageContext.OPENAI_API_SERVER)
    started = time.monotonic() - begun
    greedy = SamplingParams(temperature=0, max_tokens=TOKENS, detokenize=False, ignore_eos=True)
    engine.add_request("1", {"prompt_token_ids": PROMPT}, greedy)
    tokens: list[int] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens = list(output.outputs[0].token_ids)
    return {"tokens": tokens, "seconds": round(started, 2), "pid": os.getpid()}


if __name__ == "__main__":
    main(sys.argv[1:])
