"""Adapter for vLLM (CUDA): compile one rank of one model for a pretended GPU, with the engine's own code throughout.

Everything here that names a vLLM function was checked on the versions in `VERSIONS`.
"""

from __future__ import annotations

import functools
from pathlib import Path

from . import interpreter, vllm_command, vllm_defaults, vllm_host, vllm_rules, vllm_running, vllm_start, vllm_versions

VERSIONS = vllm_versions.VERSIONS

KIND = "gpu"
"""Of the targets that it compiles for."""

COMMAND, SERVER_ONLY, pins = vllm_defaults.COMMAND, vllm_defaults.SERVER_ONLY, vllm_defaults.pins
running = vllm_running


def environment(cache_root: Path) -> dict[str, str]:
    """Variables that make the engine keep its cache under `cache_root`; not in the key."""
    return {"VLLM_CACHE_ROOT": str(cache_root)}


def versions() -> dict[str, str | None]:
    """The ``engine`` object of the manifest, for this interpreter."""
    import vllm

    return interpreter.versions("vllm", vllm.__version__)


host_answers = vllm_host.host_answers
rules = vllm_rules.rules

expected_ranks = vllm_command.expected_ranks
parse = vllm_command.parse
ranks = vllm_command.ranks
create_config = vllm_command.create_config
architectures = vllm_command.architectures
flags = vllm_command.flags
options = vllm_command.options

compile_rank = functools.partial(vllm_start.compile_rank, unkeyed=vllm_host.unkeyed)
describe_rank = functools.partial(vllm_start.describe_rank, unkeyed=vllm_host.unkeyed)
look_up_keys = functools.partial(vllm_start.look_up_keys, unkeyed=vllm_host.unkeyed)
why_nothing = vllm_start.why_nothing
