"""What a running vLLM says of a model at the moment it looks for its artifact: why it misses, what may be adopted.

Facts of vllm 0.31.0 to 0.33.0. Everything is asked of the live configuration, by the functions that name a key's
factors when a wheel is built (`vllm_keys`, `vllm_host`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import vllm_host, vllm_keys, vllm_rules
from .layout import PER_RANK, SINGLE

NAMING = ("model.model", "model.model_weights", "model.revision")
"""The factors that only say where the weights come from.

``ModelConfig.model`` is what was given to ``vllm serve`` or where an object store's files were put, ``model_weights``
the object store's URL, ``revision`` the commit. What stands in the files decides through the other factors: config.json
as ``hf_config`` and ``hf_text_config``, with ``word_embeddings_untied_by_checkpoint`` when the weights hold an lm_head
that it denies, quantization files as ``quantization``. ``code_revision`` is none of these: it chooses code.
"""


def facts(model: Any) -> dict[str, str | bool | int | None]:
    """What decides the code and is in no key, by name as in a manifest's ``host_answers`` and ``unkeyed``.

    Of the host's answers, only those that a rule compares: most others import what they are about.

    Args:
        model: a live module of a class decorated with ``support_torch_compile``.
    """
    import torch

    config = model.vllm_config
    world, visible = config.parallel_config.world_size, torch.cuda.device_count()
    unkeyed = vllm_host.unkeyed(config, SINGLE if world > 1 and visible == 1 else PER_RANK)
    found = {**vllm_host.conclusions(rule.fact for rule in vllm_rules.RULES), **unkeyed}
    ranks = min(world, visible)  # those of this node
    return {**found, "peer_access": ranks <= 1 or vllm_host.peer_access(ranks)}


def config_file(model: Any) -> Path | None:
    """The config.json that the engine has read for `model`: in a local directory, or a Hub snapshot of this host."""
    from vllm.transformers_utils.repo_utils import try_get_local_file

    config = model.vllm_config.model_config
    revision = getattr(config, "_hf_config_revision", None) or config.revision
    found = try_get_local_file(config.hf_config_path or config.model, "config.json", revision=revision)
    return found if isinstance(found, Path) else None  # else: nothing known, or known not to exist


def obstacle(factors: Mapping[str, str], facts: Mapping[str, object]) -> str:
    """Why what was compiled for one set of weights may not be loaded for another one; empty if it may.

    Args:
        factors: from `vllm_keys.named_factors`.
        facts: from `facts`.
    """
    if any(factors.get(f"model.{name}", "null") != "null" for name in ("quantization", "quantization_config")):
        return "the weights are quantized, and their scales may steer what is compiled"
    if factors.get("cache.cache_dtype", "").startswith("fp8"):
        return "the KV cache is quantized, and its scales come with the weights"
    if facts.get("speculative.method") is not None:
        return "it is served with speculative decoding, of which config.json says nothing"
    if factors.get("model.trust_remote_code") == "true":
        return "its code may come with the weights (--trust-remote-code)"
    return ""


def key_under(model: Any, factors: Mapping[str, str]) -> str:
    """The key that the engine would look for if its weights came from where a wheel's did: by its own computation.

    Args:
        model: as for `facts`.
        factors: of the wheel; those in `NAMING` are taken.
    """
    values = {name: factors[name] for name in NAMING if name in factors}
    identity = {name: None if value == "null" else value for name, value in values.items()}
    return vllm_keys.key_of(vllm_keys.lookup_path(model, identity))


named_factors = vllm_keys.named_factors
