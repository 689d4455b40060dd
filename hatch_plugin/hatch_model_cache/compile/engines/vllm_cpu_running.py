"""What a running vLLM on CPU says of a model at the moment it looks for its artifact: as `vllm_running`, but for the
host's facts."""

from __future__ import annotations

from typing import Any

from . import vllm_cpu_host, vllm_running
from .layout import PER_RANK

NAMING = vllm_running.NAMING
config_file = vllm_running.config_file
obstacle = vllm_running.obstacle
key_under = vllm_running.key_under
named_factors = vllm_running.named_factors


def facts(model: Any) -> dict[str, str | bool | int | None]:
    """What decides the code and is in no key, by name as in a manifest's ``host_answers`` and ``unkeyed``.

    Args:
        model: a live module of a class decorated with ``support_torch_compile``.
    """
    return {**vllm_cpu_host.host_answers(), **vllm_cpu_host.unkeyed(model.vllm_config, PER_RANK)}
