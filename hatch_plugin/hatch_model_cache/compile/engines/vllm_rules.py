"""What vLLM would load although it does not belong: the safety rules of `check`. Standard library only.

They compare values that the engine's key does not hold (`vllm_host.unkeyed`, `vllm_host.host_answers`) between the
wheel and the host.

Not here, because vLLM 0.31.0 to 0.33.0 have them in the key: LoRA on or off, its ranks and its target modules
(``LoRAConfig.compute_hash``). ``SpeculativeConfig.compute_hash`` is the same in these versions too.
"""

from __future__ import annotations

from .rule import Rule
from .vllm_versions import VERSIONS as _CHECKED

RULES = (
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
        "vllm 0.33.0, SpeculativeConfig.compute_hash",
        versions=_CHECKED,
    ),
    Rule(
        "attention.backends",
        "the graph was traced with another attention backend",
        "pin --attention-backend in the recipe and when serving",
        "measured: equal keys with and without nvcc and ninja",
        versions=_CHECKED,
    ),
    Rule(
        "device.follows_rank",
        "generated code holds the GPU's number, and launches on another one fail",
        "give each process its GPU alone (CUDA_VISIBLE_DEVICES), as the first one that it sees",
        "vllm-project/vllm#38962",
        versions=_CHECKED,
    ),
    Rule(
        "device.layout",
        "code of a rank but the first names another GPU than the one it is given, and launches fail",
        "build with `device-layout` as the ranks are started here: one GPU to be seen by each is `single`",
        "vllm-project/vllm#38962",
        ranks_only=True,
        versions=_CHECKED,
    ),
    Rule(
        "triton.environment",
        "these variables change what Triton compiles and are in no key of the engine",
        "set the same TRITON_ variables as the build, or none",
        "triton 3.8.0, triton/knobs.py",
        versions=_CHECKED,
    ),
    Rule(
        "has_flashinfer",
        "FlashInfer's kernels are in the graph on one side only",
        "install flashinfer-cubin (or nvcc and ninja) on both sides, or on neither; build in the serving image",
        "measured on an fp8 block model: same key, different kernels",
        versions=_CHECKED,
    ),
    Rule(
        "has_deep_gemm",
        "DeepGEMM's kernels are in the graph on one side only",
        "install deep_gemm on both sides, or on neither; build in the serving image",
        "vllm 0.33.0, vllm/utils/import_utils.py",
        versions=_CHECKED,
    ),
    Rule(
        "has_triton_kernels",
        "triton_kernels' code is in the graph on one side only",
        "install triton_kernels on both sides, or on neither; build in the serving image",
        "vllm 0.33.0, vllm/utils/import_utils.py",
        versions=_CHECKED,
    ),
    Rule(
        "has_cutedsl",
        "CuTe DSL kernels are in the graph on one side only",
        "install nvidia-cutlass-dsl on both sides, or on neither; build in the serving image",
        "vllm 0.33.0, vllm/utils/import_utils.py",
        versions=_CHECKED,
    ),
    Rule(
        "has_tilelang",
        "TileLang kernels are in the graph on one side only",
        "install tilelang on both sides, or on neither; build in the serving image",
        "vllm 0.33.0, vllm/utils/import_utils.py",
        versions=_CHECKED,
    ),
    Rule(
        "peer_access",
        "the all-reduce in the graph needs GPUs that reach each other",
        "serve on GPUs joined by NVLink",
        "measured: same key, different code, asserts when it runs",
        ranks_only=True,
        versions=_CHECKED,
    ),
)


def rules(version: str) -> tuple[Rule, ...]:
    """The rules that hold for an engine version."""
    return tuple(rule for rule in RULES if version in rule.versions)
