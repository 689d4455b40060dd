"""The configurations of the matrix: one change each to the way the base wheel's model is served, and pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

H100 = "h100-sxm5-80gb"
MODEL = "./llama-tiny"
BASE_FLAGS = {"--max-model-len": "512", "--max-num-batched-tokens": "8192", "--max-num-seqs": "1024"}
ALWAYS = ("--skip-tokenizer-init",)
"""The tiny model has no tokenizer; in no key."""

HUB_ID = "example/llama-tiny"


@dataclass(frozen=True)
class Configuration:
    """One way to serve.

    Attributes:
        title: the change, as the table shows it.
        part: the row of the table it stands for.
        flags: added to the base's, or replacing them; None: given without a value; False: left out.
        environment: added to the base's.
        model: the model string.
        target: the GPU.
        gpu: fields of its record that are changed.
        at_import: the environment has to be there when the engine is imported.
        against: title of the configuration whose wheel this is compared with; the base if None.
        start: also tried with a real `vllm serve`.
        base: the flags that `flags` are added to.
    """

    title: str
    part: str
    flags: Mapping[str, str | bool | None] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    model: str = MODEL
    target: str = H100
    gpu: Mapping[str, object] = field(default_factory=dict)
    at_import: bool = False
    against: str | None = None
    start: bool = False
    base: Mapping[str, str] = field(default_factory=lambda: BASE_FLAGS)

    @property
    def arguments(self) -> list[str]:
        """What follows `vllm serve`."""
        words = [self.model]
        for flag, value in {**self.base, **self.flags}.items():
            if value is not False:
                words += [flag] if value is None else [flag, str(value)]
        return [*words, *ALWAYS]


BASE = Configuration("nothing", "base", start=True)


def flag(part: str, name: str, value: str | None = None, **more: bool) -> Configuration:
    """One flag added."""
    title = f"`{name}`" if value is None else f"`{name} {value}`"
    return Configuration(title, part, flags={name: value}, **more)


def variable(part: str, name: str, value: str, **more: bool) -> Configuration:
    """One variable set."""
    return Configuration(f"`{name}={value}`", part, environment={name: value}, **more)


def everything() -> Iterator[Configuration]:
    """All configurations; those that others are compared with come before them."""
    yield BASE
    yield from _in_the_key()
    yield from _environment()
    yield from _not_in_the_key()
    yield from _in_no_key_and_it_matters()
    yield from _nothing_looked_up()
    yield from _pairs()


def _in_the_key() -> Iterator[Configuration]:
    for title, model in (
        ("another directory", "./copies/llama-tiny"),
        ("the directory without `./`", "llama-tiny"),
        ("a slash after it", "./llama-tiny/"),
    ):
        yield Configuration(f"model: {title}", "model string", model=model, start=model == "llama-tiny")
    offline = {"HF_HUB_OFFLINE": "1"}
    yield Configuration("model: Hub id, offline", "model string", environment=offline, model=HUB_ID, at_import=True)
    yield flag("model", "--revision", "some-branch")
    yield flag("model", "--code-revision", "some-branch")
    yield flag("model", "--trust-remote-code")
    yield flag("model", "--hf-overrides", '{"rms_norm_eps": 0.001}')
    yield flag("model", "--max-model-len", "256")
    yield flag("model", "--dtype", "float16", start=True)
    yield flag("model", "--quantization", "fp8")
    yield flag("model", "--generation-config", "vllm")
    yield flag("model", "--override-generation-config", '{"temperature": 0.5}')
    yield flag("model", "--max-logprobs", "5")
    yield flag("model", "--enable-sleep-mode")
    yield flag("model", "--renderer-num-workers", "2")
    yield flag("cache", "--kv-cache-dtype", "fp8")
    yield flag("cache", "--block-size", "32")
    yield flag("scheduler", "--max-num-batched-tokens", "4096", start=True)
    yield flag("scheduler", "--max-num-seqs", "256")
    yield flag("scheduler", "--performance-mode", "throughput")
    yield flag("parallel", "--tensor-parallel-size", "2")
    yield flag("parallel", "--pipeline-parallel-size", "2")
    yield flag("parallel", "--no-async-scheduling")
    yield flag("compilation", "--max-cudagraph-capture-size", "64")
    yield flag("compilation", "--compilation-config", '{"cudagraph_mode": "NONE"}')
    yield flag("compilation", "--compilation-config.cudagraph_mode", "FULL")
    yield flag("compilation", "--optimization-level", "1", start=True)
    yield flag("own part", "--attention-backend", "TRITON_ATTN")
    yield flag("own part", "--enable-lora")
    yield Configuration(
        "`--lora-target-modules q_proj`, with LoRA",
        "own part",
        flags={"--enable-lora": None, "--lora-target-modules": "q_proj"},
        against="`--enable-lora`",
    )
    yield flag("own part", "--cpu-offload-gb", "1")
    yield flag("own part", "--additional-config", '{"a": 1}')
    yield flag("own part", "--kv-transfer-config", '{"kv_connector": "ExampleConnector", "kv_role": "kv_both"}')
    yield flag("own part", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}')
    yield Configuration("GPU: H200", "GPU name", target="h200")
    yield Configuration("GPU: A100", "GPU name", target="a100-sxm4-80gb", start=True)
    yield variable("Inductor", "TORCHINDUCTOR_UNIQUE_KERNEL_NAMES", "0", at_import=True)
    yield variable("Inductor", "TORCHINDUCTOR_MAX_AUTOTUNE", "1", at_import=True)
    yield variable("Inductor", "CXX", "c++", at_import=True)


def _environment() -> Iterator[Configuration]:
    for name, value in (
        ("VLLM_DOCKER_BUILD_CONTEXT", "1"),
        ("CUDA_HOME", "/usr/local/cuda"),
        ("NVCC_THREADS", "4"),
        ("VLLM_PLUGINS", "model_cache"),
        ("VLLM_CONFIGURE_LOGGING", "0"),
        ("VLLM_LOOPBACK_IP", "127.0.0.1"),
        ("VLLM_NIXL_SIDE_CHANNEL_PORT", "5601"),
        ("VLLM_RAY_PER_WORKER_GPUS", "0.5"),
        ("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", "1"),
        ("VLLM_USE_DEEP_GEMM", "0"),
        ("VLLM_KV_CACHE_LAYOUT", "NHD"),
        ("VLLM_COMPILE_CACHE_SAVE_FORMAT", "unpacked"),
        ("VLLM_USE_MEGA_AOT_ARTIFACT", "0"),
    ):
        yield variable("environment", name, value)
    yield variable("environment", "VLLM_USAGE_SOURCE", "production-docker-image", start=True)


def _not_in_the_key() -> Iterator[Configuration]:
    part = "in no key, and no matter"
    for load_format in ("safetensors", "runai_streamer", "tensorizer", "sharded_state"):
        yield flag(part, "--load-format", load_format)
    yield flag(part, "--served-model-name", "another-name", start=True)
    yield flag(part, "--tokenizer", "./copies/llama-tiny")
    yield flag(part, "--gpu-memory-utilization", "0.5")
    yield flag(part, "--kv-cache-memory-bytes", "1G")
    yield flag(part, "--no-enable-prefix-caching")
    yield flag(part, "--no-enable-chunked-prefill")
    yield flag(part, "--seed", "7")
    yield flag(part, "--api-server-count", "2")
    yield Configuration(
        "`--enable-auto-tool-choice --tool-call-parser hermes`",
        part,
        flags={"--enable-auto-tool-choice": None, "--tool-call-parser": "hermes"},
    )
    yield flag(part, "--download-dir", "./downloads")
    yield flag(part, "--dtype", "auto")
    loose: dict[str, str | bool | None] = {"--max-num-batched-tokens": False, "--max-num-seqs": False}
    yield Configuration("batch sizes left to this GPU's defaults", part, flags=loose)
    for name, value in (
        ("HOME", "/nonexistent"),
        ("XDG_CACHE_HOME", "./xdg"),
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("VLLM_HOST_IP", "127.0.0.1"),
        ("VLLM_PORT", "5602"),
        ("VLLM_API_KEY", "not-a-secret"),
        ("VLLM_LOGGING_LEVEL", "WARNING"),
        ("OMP_NUM_THREADS", "1"),
        ("TORCHINDUCTOR_CACHE_DIR", "./inductor"),
        ("TORCHINDUCTOR_COMPILE_THREADS", "2"),
    ):
        yield variable(part, name, value, start=name == "OMP_NUM_THREADS")


def _in_no_key_and_it_matters() -> Iterator[Configuration]:
    part = "in no key, and it matters"
    yield Configuration("GPU: same name, 114 SMs", part, gpu={"sm_count": 114})
    yield Configuration("GPU: same name, capability 8.0", part, gpu={"compute_capability": "8.0"})
    yield variable(part, "TRITON_DEFAULT_FP_FUSION", "0", at_import=True)
    speculative = '{"method": "ngram", "num_speculative_tokens": 3}'
    eager: dict[str, str | bool | None] = {"--compilation-config.cudagraph_mode": "NONE"}  # else its sizes follow
    three = Configuration("ngram, 3 tokens, no CUDA graphs", part, flags={**eager, "--speculative-config": speculative})
    yield three
    for title, other in (
        ("ngram, 5 tokens, no CUDA graphs", speculative.replace("3", "5")),
        ("ngram_gpu, 3 tokens, no CUDA graphs", speculative.replace("ngram", "ngram_gpu")),
    ):
        flags = {**eager, "--speculative-config": other}
        yield Configuration(title, part, flags=flags, against=three.title)
    nothing = {"CUDA_PATH": "/nonexistent"}
    yield Configuration("nvcc is not found (`CUDA_PATH`)", part, environment=nothing, at_import=True)


def _nothing_looked_up() -> Iterator[Configuration]:
    part = "nothing is looked up"
    yield flag(part, "--enforce-eager")
    yield flag(part, "--optimization-level", "0")
    yield variable(part, "VLLM_DISABLE_COMPILE_CACHE", "1")


def _pairs() -> Iterator[Configuration]:
    part = "pairs"
    source = {"VLLM_USAGE_SOURCE": "production-docker-image"}
    other = "./copies/llama-tiny"
    yield Configuration("other directory and `--dtype float16`", part, flags={"--dtype": "float16"}, model=other)
    yield Configuration("other directory and a variable", part, environment=source, model=other, start=True)
    yield Configuration("H200 and other batch sizes", part, flags={"--max-num-seqs": "256"}, target="h200")
    yield Configuration("A100 and a variable", part, environment=source, target="a100-sxm4-80gb")
    yield Configuration(
        "`--max-num-seqs 256 --max-num-batched-tokens 4096`",
        part,
        flags={"--max-num-seqs": "256", "--max-num-batched-tokens": "4096"},
    )
    yield Configuration(
        "`--seed 7` and a log level", part, {"--seed": "7"}, {"VLLM_LOGGING_LEVEL": "ERROR"}, start=True
    )
    yield Configuration(
        "`--block-size 32 --kv-cache-dtype fp8`", part, flags={"--block-size": "32", "--kv-cache-dtype": "fp8"}
    )
    yield Configuration("`--seed 7` and `--dtype float16`", part, flags={"--seed": "7", "--dtype": "float16"})
    loose: dict[str, str | bool | None] = {"--max-num-batched-tokens": False, "--max-num-seqs": False}
    yield Configuration("A100 and batch sizes left to its defaults", part, flags=loose, target="a100-sxm4-80gb")
    yield Configuration(
        "`--tensor-parallel-size 2` and a variable", part, flags={"--tensor-parallel-size": "2"}, environment=source
    )
    yield Configuration("two variables", part, environment={**source, "NVCC_THREADS": "4"}, start=True)


NOT_TRIED = (
    (
        "`torch.version.cuda`, `triton_key`, `torch_key`",
        "`check` compares the versions of torch, Triton and CUDA, and there is one installation here",
    ),
    ("usage context (`LLM()` instead of `vllm serve`)", "`check` takes `vllm serve` commands only"),
    (
        "model from an object store (`s3://`)",
        "no object store here; the key then holds a directory below `VLLM_ASSETS_CACHE`, another model string",
    ),
    ("data parallel", "needs the coordinator of several engine processes"),
    ("exact Python and torch version", "one installation; torch compares both when it loads, and so does `check`"),
    ("P2P, NVLink", "one pretended answer; `check` compares it for several ranks only"),
)
"""What FACTS names and this matrix leaves out, and why."""
