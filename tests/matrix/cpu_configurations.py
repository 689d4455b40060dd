"""The configurations of the CPU matrix: one change each to the way the wheel's model is served, and pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine.cpu_hosts import MODEL, SERVE_ARGS

from .configurations import Configuration

BASE_FLAGS = dict(zip(SERVE_ARGS[::2], SERVE_ARGS[1::2], strict=True))
OTHER = "./copies/llama-tiny"

Flags = Mapping[str, str | bool | None]


def _one(
    title: str,
    part: str,
    flags: Flags | None = None,
    environment: Mapping[str, str] | None = None,
    model: str = MODEL,
    *,
    at_import: bool = False,
) -> Configuration:
    return Configuration(
        title, part, flags or {}, environment or {}, model, "this CPU", at_import=at_import, start=True, base=BASE_FLAGS
    )


def everything() -> Iterator[Configuration]:
    """All configurations, the wheel's own first."""
    yield _one("nothing", "base")
    key = "in the key"
    yield _one("model: the directory without `./`", key, model="llama-tiny")
    yield _one("model: another directory", key, model=OTHER)
    yield _one("`--dtype float32`", key, {"--dtype": "float32"})
    yield _one("`--max-model-len 256`", key, {"--max-model-len": "256"})
    yield _one("`--max-num-batched-tokens 256`", key, {"--max-num-batched-tokens": "256"})
    yield _one("`--max-num-seqs 8`", key, {"--max-num-seqs": "8"})
    yield _one(
        "`VLLM_USAGE_SOURCE=production-docker-image`", key, None, {"VLLM_USAGE_SOURCE": "production-docker-image"}
    )
    yield _one(
        "`TORCHINDUCTOR_UNIQUE_KERNEL_NAMES=0`", key, None, {"TORCHINDUCTOR_UNIQUE_KERNEL_NAMES": "0"}, at_import=True
    )
    part = "in no key, and no matter"
    yield _one("`--seed 7`", part, {"--seed": "7"})
    yield _one("`--served-model-name another-name`", part, {"--served-model-name": "another-name"})
    yield _one("`--no-enable-prefix-caching`", part, {"--no-enable-prefix-caching": None})
    yield _one("`--load-format safetensors`", part, {"--load-format": "safetensors"})
    yield _one("`VLLM_LOGGING_LEVEL=ERROR`", part, None, {"VLLM_LOGGING_LEVEL": "ERROR"})
    part = "in no key, and it matters"
    yield _one("`ATEN_CPU_CAPABILITY=avx2`", part, None, {"ATEN_CPU_CAPABILITY": "avx2"}, at_import=True)
    part = "nothing is looked up"
    yield _one("`--enforce-eager`", part, {"--enforce-eager": None})
    part = "pairs"
    yield _one("another directory and `--max-num-seqs 8`", part, {"--max-num-seqs": "8"}, model=OTHER)
    yield _one("`--seed 7` and a log level", part, {"--seed": "7"}, {"VLLM_LOGGING_LEVEL": "ERROR"})
