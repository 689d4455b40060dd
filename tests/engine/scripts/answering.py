"""What a running engine answers: greedy tokens, or vectors if it embeds; and what it has compiled for that. For scripts
that run in the engine's interpreter."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

TOKENS = 16
"""Generated for each prompt."""


def answers(engine: Any, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
    """The answers of an ``LLMEngine`` to `prompts`, which it is given at once: tokens, or the numbers of a vector."""
    from vllm import PoolingParams, SamplingParams

    embeds = engine.model_config.runner_type == "pooling"
    asked = (
        PoolingParams(task="embed")
        if embeds
        else SamplingParams(temperature=0, max_tokens=TOKENS, detokenize=False, ignore_eos=True)
    )
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), {"prompt_token_ids": list(prompt)}, asked)
    found: dict[str, list[float]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            # numbers of 32 bits are written exactly: JSON's have 64
            answer = output.outputs.data.float().tolist() if embeds else list(output.outputs[0].token_ids)
            found[output.request_id] = answer
    return [found[str(number)] for number in range(len(prompts))]


class Clock:
    """Adds up the seconds spent in the method `name` of a class; none where it runs in other processes."""

    def __init__(self, owner: type, name: str) -> None:
        self.seconds = 0.0
        method = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.monotonic()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += time.monotonic() - begun

        setattr(owner, name, timed)


def lowered(engine: Any) -> int:
    """How many graphs Inductor has lowered to code, in all ranks of an ``LLMEngine``."""
    return sum(engine.collective_rpc(_lowered_here))


def _lowered_here(worker: object) -> int:
    from torch._dynamo.utils import compilation_time_metrics

    return len(compilation_time_metrics.get("GraphLowering.run", ()))
