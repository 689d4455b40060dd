"""Adapter for vLLM (CUDA): compile one rank of one model for a pretended GPU, with the engine's own code throughout.

Everything here that names a vLLM function was checked on the versions in `VERSIONS`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hatch_model_cache.compile.pretend import Pretence, model_loading, parameters

from . import vllm_host, vllm_keys

VERSIONS = frozenset({"0.33.0"})
"""vLLM versions this adapter was checked on."""


class CompilationDone(BaseException):
    """Ends the engine's start-up once every compiled model is saved. Not an Exception: the engine must not catch it."""


class Compiled:
    """What one run of the engine left.

    Attributes:
        artifacts: per saved model (prefix, path of the artifact, [{"served_as", "key", "overrides"}]); overrides are
            the factors by which this key differs from `factors`.
        factors: the named values in the key, see `vllm_keys.named_factors`.
        models: how many models the engine compiles.
        counters: vLLM's own counters (``vllm.compilation.counter.compilation_counter``), non-zero ones.
    """

    def __init__(self) -> None:
        self.artifacts: list[tuple[str, Path, list[dict[str, Any]]]] = []
        self.factors: dict[str, str] = {}
        self.models = 0
        self.counters: dict[str, int] = {}


def parse(serve_arguments: list[str]) -> Any:
    """Arguments as ``vllm serve`` parses them.

    Args:
        serve_arguments: what follows ``vllm serve``, the model first.

    Raises:
        SystemExit: if vLLM's parser refuses the arguments (it prints why).
    """
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(serve_arguments)
    if getattr(arguments, "model_tag", None):
        arguments.model = arguments.model_tag
    return arguments


def ranks(arguments: Any) -> int:
    """How many ranks compile separately: tensor × pipeline parallel size."""
    return int(arguments.tensor_parallel_size * arguments.pipeline_parallel_size)


def create_config(arguments: Any) -> Any:
    """The ``VllmConfig`` that ``vllm serve`` makes of parsed arguments: same function, same usage context."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    engine_arguments = AsyncEngineArgs.from_cli_args(arguments)
    return engine_arguments.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)


def compile_rank(
    pretence: Pretence, config: Any, names: list[str], rank: int, on_stage: Callable[[str], None]
) -> Compiled:
    """Start the engine core for one rank and stop it when every model it compiles is saved.

    Args:
        pretence: the pretended GPUs, already answering for torch and the platform.
        config: from `create_config`, under the same pretence.
        names: every name the model will be served under.
        rank: this rank, 0 … world size - 1.
        on_stage: told what happens now.

    Raises:
        RuntimeError: if the engine started without compiling anything.
    """
    from vllm.compilation.counter import compilation_counter
    from vllm.v1.engine.core import EngineCore

    compiled = Compiled()

    def look_up(model: Any, path: str) -> None:
        """Note every key; find nothing, the cache is empty."""
        revision = config.model_config.revision
        keys = [
            {
                "served_as": name,
                "key": vllm_keys.key_of(vllm_keys.lookup_path(model, identity)),
                "overrides": {f"model.{field}": vllm_keys.text(value) for field, value in identity.items()},
            }
            for name in names
            for identity in vllm_keys.identities(name, revision)
        ]
        compiled.artifacts.append((model._compile_tag, Path(path), keys))
        if not compiled.factors:
            overridden = {factor for key in keys for factor in key["overrides"]}
            named = vllm_keys.named_factors(model.vllm_config)
            compiled.factors = {name: value for name, value in named.items() if name not in overridden}

    pretence.before_worker()
    models = stop_at_first_call(pretence, look_up, on_stage)
    if pretence.device.count > 1:
        config.parallel_config.distributed_executor_backend = "uni"  # not in the key
    on_stage("build the model")
    try:
        with pretence.mode:
            EngineCore(config, _executor(rank), log_stats=False)
    except CompilationDone:
        pass
    else:
        raise RuntimeError("the engine started without saving a compiled model; is torch.compile off in serve-args?")
    compiled.models = len(models)
    compiled.counters = {k: v for k, v in vars(compilation_counter).items() if v}
    return compiled


def _executor(rank: int) -> type:
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    class OneRank(UniProcExecutor):  # type: ignore[misc]
        """The in-process executor, as one rank of several."""

        def _distributed_args(self) -> tuple[str, int, int]:
            method, _, _ = super()._distributed_args()
            return method, rank, rank

    return OneRank


def stop_at_first_call(
    pretence: Pretence, look_up: Callable[[Any, str], Any], on_stage: Callable[[str], None]
) -> set[int]:
    """Let the engine look up, trace and save its compiled models as always, and end it where it would run the last one.

    The three moments are hooked because a dispatch mode is active around them that Dynamo and pickle must not see, and
    because nothing can run.

    Args:
        pretence: holds the patches.
        look_up: stands in for ``vllm.compilation.decorators._try_load_aot_compiled_fn``; is called outside the mode.
        on_stage: told what happens now.

    Returns:
        the ids of the modules that the engine will compile, filled while it builds the model. Not its counter
        ``num_models_seen``, which counts a class and a decorated base class of it twice.
    """
    import vllm.compilation.decorators as decorators
    import vllm.compilation.wrapper as wrapper
    from vllm.compilation.counter import compilation_counter as counter

    models: set[int] = set()
    initialize = wrapper.TorchCompileWithNoGuardsWrapper.__init__

    def noted_initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        models.add(id(self))
        initialize(self, *args, **kwargs)

    class NeverRun:
        """A compiled model that saves itself and ends the engine when it is the last one called."""

        def __init__(self, function: Any) -> None:
            self.function = function

        def save_compiled_function(self, path: str) -> None:
            on_stage("save")
            with outside_modes():
                self.function.save_compiled_function(path)

        def __call__(self, model: Any, *args: Any, **kwargs: Any) -> Any:
            if counter.num_aot_artifacts_saved + counter.num_aot_artifacts_loaded >= len(models):
                raise CompilationDone
            return model.forward(*args, **kwargs)

    def hooked_look_up(model: Any, path: str) -> NeverRun | None:
        with outside_modes():
            loaded = look_up(model, path)
        return None if loaded is None else NeverRun(loaded)

    trace = wrapper.TorchCompileWithNoGuardsWrapper.aot_compile

    def trace_outside_modes(self: Any, *args: Any, **kwargs: Any) -> NeverRun:
        on_stage(f"trace {self._compile_tag}")
        parameters.demote(self)
        with outside_modes():
            return NeverRun(trace(self, *args, **kwargs))

    why = "Dynamo and pickle must not see the pretence's dispatch mode, and nothing can run"
    for owner, name, value in (
        (decorators, "_try_load_aot_compiled_fn", hooked_look_up),
        (wrapper.TorchCompileWithNoGuardsWrapper, "aot_compile", trace_outside_modes),
        (wrapper.TorchCompileWithNoGuardsWrapper, "__init__", noted_initialize),
    ):
        pretence.patches.set(owner, name, value, why=why, checked="vllm 0.33.0")
    return models


@contextmanager
def outside_modes() -> Iterator[None]:
    """Leave the pretence's dispatch mode for a while."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield


def versions() -> dict[str, str]:
    """The ``engine`` object of the manifest, for this interpreter."""
    import platform

    import torch
    import triton
    import vllm

    return {
        "name": "vllm",
        "version": vllm.__version__,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        "platform": f"{sys.platform}_{platform.machine()}",
    }


host_answers = vllm_host.host_answers
install_inspection = model_loading.install_inspection
