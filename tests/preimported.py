"""The engine, imported once under a pretended GPU, for processes that are forked from this one. Runs in the engine's
interpreter, which has no pytest and not this project."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PACKAGES = Path(__file__).resolve().parents[1] / "hatch_plugin"
MODULES = (
    "vllm.entrypoints.common.cli_args",
    "vllm.engine.arg_utils",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.model_executor.models.llama",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.attention.backends.flashinfer",
    "vllm.v1.attention.backends.triton_attn",
    "vllm.v1.attention.backends.flex_attention",
    "vllm.lora.model_manager",
    "vllm.distributed.kv_transfer.kv_connector.utils",
    "vllm.compilation.backends",
    "vllm.compilation.caching",
    "vllm.compilation.decorators",
    "vllm.third_party.deep_gemm",
    "compressed_tensors.compressors",
    "transformers.file_utils",
    "torch._inductor.compile_fx",
)


@contextmanager
def imported(directory: Path) -> Iterator[Any]:
    """A pretence of the GPU whose record is ``target.json`` in `directory`, with the engine imported in it.

    What a variable sets when the engine is *imported* does not follow a fork: import again for that.
    """
    spec = importlib.util.spec_from_file_location("bootstrap", PACKAGES / "hatch_model_cache/compile/bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    bootstrap = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bootstrap)
    bootstrap._end_with_parent()
    bootstrap._neutral_path(directory / "packages")
    for name in ("model_cache", "hatch_model_cache"):
        bootstrap._adopt(name, PACKAGES / name)
    from hatch_model_cache import targets
    from hatch_model_cache.compile.pretend import pretend

    record = json.loads((directory / "target.json").read_text())
    gc.disable()
    with pretend(targets.from_record(record), scratch=directory) as pretence:
        for name in MODULES:
            with suppress(ImportError):
                importlib.import_module(name)
        importlib.import_module("hatch_model_cache.compile.worker")
        importlib.import_module("hatch_model_cache.compile.engines.vllm")
        from triton.backends.nvidia.compiler import get_ptxas_version

        get_ptxas_version(int(record["compute_capability"].replace(".", "")))  # else every child runs ptxas for it
        gc.freeze()
        yield pretence
