"""vLLM's own Triton kernels, compiled ahead: what a start launches beside the compiled model, in runner and sampler.

Before its first request vLLM 0.33.0 runs made-up ones, so that Triton compiles what it has no kernel for
(``warmup_kernels`` of vllm/v1/worker/gpu/warmup.py, after the registry of vllm/model_executor/warmup/jit_warmup.py).
Here the engine does the same on the pretended GPU: Triton compiles each kernel for what it would be launched with, and
nothing is launched. What Triton then looks for depends on no path: on its own and the kernel's source, what a kernel is
called with, and the architecture (triton 3.8.0, ``triton.runtime.cache.get_cache_key``).

Not reached, so compiled on the serving host: kernels inside of operators that the compiled model calls (mixtures of
experts, some attention), and those that Triton tunes by timing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hatch_model_cache.compile.surroundings import Surroundings

from .vllm_stops import CompilationDone

COMPONENT = "triton"
"""Its name in a recipe."""

KIND = "triton-kernel"
"""Of its files in the manifest."""

CHECKED = "vllm 0.33.0, triton 3.8.0"
_CONTAINS = {".cubin": "cubin", ".json": "json"}
"""Suffixes of what Triton reads of a kernel that it has compiled before."""


class Kernels:
    """What the engine's warm-up has compiled. files: path of each file that Triton keeps of a kernel, in its cache."""

    def __init__(self) -> None:
        self.files: set[Path] = set()

    def note(self, *, metadata_group: Mapping[str, str], **_: object) -> None:
        """Triton's listener (``triton.knobs.compilation.listener``)."""
        self.files.update(Path(path) for path in metadata_group.values() if Path(path).suffix in _CONTAINS)

    def beside(self, model: str) -> tuple[dict[str, object], ...]:
        """Describe the files in the directory of one key, as `vllm_start.Artifact` does; none if they are elsewhere.

        Args:
            model: the artifact's file, ``…/<key>/rank_r_dp/model``.
        """
        key = Path(model).parents[1]
        return tuple(_describe(path, key) for path in sorted(self.files) if path.is_relative_to(key))


def go_on(surroundings: Surroundings, on_stage: Callable[[str], None]) -> Kernels:
    """Have the engine go on to its warm-up where it would run the compiled model, and end it after that.

    Args:
        surroundings: pretended GPUs; `vllm_stops.stop_at_first_call` is in place.
        on_stage: told when the warm-up begins.

    Returns:
        what it compiles, filled while it does.
    """
    from vllm.v1.worker.gpu_worker import Worker

    kernels = Kernels()
    patches = surroundings.patches
    profile = Worker.determine_available_memory

    def profile_without_run(self: Any) -> int:
        try:
            return int(profile(self))
        except CompilationDone:
            # only its order of magnitude counts: it limits how many requests the warm-up makes up
            return int(self.requested_memory) // 2

    def warm_up(self: Any) -> None:
        on_stage("compile the engine's own kernels")
        try:
            _compile_what_is_launched(surroundings, kernels)
            _warm_up(self)
        except Exception as error:
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise RuntimeError(
                f"the engine's own Triton kernels cannot be compiled here ({said}); leave {COMPONENT!r} out of "
                "`components`"
            ) from error
        raise CompilationDone

    why = "nothing can run; the kernels of the warm-up are only compiled"
    patches.set(Worker, "determine_available_memory", profile_without_run, why=why, checked=CHECKED)
    patches.set(Worker, "compile_or_warm_up_model", warm_up, why=why, checked=CHECKED)
    return kernels


def _compile_what_is_launched(surroundings: Surroundings, kernels: Kernels) -> None:
    """From now on have Triton compile every kernel that the engine launches, and answer what no kernel has computed."""
    import importlib.util

    import torch
    import vllm.v1.sample.ops.topk_topp_sampler as sampling
    import vllm.v1.worker.gpu.async_utils as async_utils
    from triton import knobs
    from triton.runtime.jit import JITFunction

    patches = surroundings.patches
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, **kwargs: Any) -> None:
        run(self, *args, **{**kwargs, "warmup": True})

    def made_up(site: str, tensor: Any) -> Any:
        surroundings.log.stand_ins[f"vllm.{site}", "tokens of no value"] += 1
        return tensor

    def sample(logits: Any, *_: Any, **__: Any) -> Any:
        return made_up("flashinfer_sample", torch.empty(logits.shape[0], dtype=torch.int32, device=logits.device))

    def copy(tensor: Any) -> Any:
        return made_up("async_copy_to_np", torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")).numpy()

    def build(self: Any, *_: Any, **__: Any) -> None:
        raise NotImplementedError(f"FlashInfer would compile {self.name} with nvcc, and run it")

    if importlib.util.find_spec("flashinfer"):
        from flashinfer.jit.core import JitSpec

        why = "takes minutes, and what it builds cannot run"
        patches.set(JitSpec, "build_and_load", build, why=why, checked="flashinfer 0.7.2")
    patches.set(JITFunction, "run", compile_only, why="kernels are compiled, not launched", checked=CHECKED)
    patches.set(knobs.compilation, "listener", kernels.note, why="which kernels those are", checked=CHECKED)
    why = "FlashInfer would compile its sampler with nvcc, and run it"
    patches.set_everywhere(sampling, "flashinfer_sample", sample, why=why, checked=CHECKED)
    why = "a fake tensor has no values that could be copied to the host"
    patches.set_everywhere(async_utils, "async_copy_to_np", copy, why=why, checked=CHECKED)


def _warm_up(worker: Any) -> None:
    """What ``Worker.compile_or_warm_up_model`` does before it captures CUDA graphs, as far as Triton compiles in it."""
    from vllm.model_executor.warmup.jit_warmup_triton_helper import VllmTritonJitKernel
    from vllm.v1.worker.gpu.warmup import warmup_kernels

    runner = worker.model_runner
    if not worker.use_v2_model_runner or worker.vllm_config.speculative_config is not None:
        raise NotImplementedError("of the older model runner, and with a speculative model, they are not known")
    for module in runner.get_model().modules():
        if getattr(module, "aot_compiled_fn", None) is not None:
            module.aot_compiled_fn = type(module).forward  # on fake tensors, operator by operator
    registry = runner.jit_warmup_registry
    registered = registry._registrations
    for kernel in [kernel for kernel in registered if not isinstance(kernel, VllmTritonJitKernel)]:
        del registered[kernel]  # TileLang and CuTe-DSL, which want a GPU
    if worker.vllm_config.kernel_config.enable_jit_warmup:
        registry.warmup()
        warmup_kernels(runner, worker.execute_model, worker.sample_tokens)


def _describe(path: Path, key: Path) -> dict[str, object]:
    where = path.relative_to(key).as_posix()
    return {"path": where, "source": str(path), "kind": KIND, "contains": [_CONTAINS[path.suffix]]}
