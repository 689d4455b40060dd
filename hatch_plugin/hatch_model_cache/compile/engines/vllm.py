"""Adapter for vLLM (CUDA): compile one rank of one model for a pretended GPU, with the engine's own code throughout.

Everything here that names a vLLM function was checked on the versions in `VERSIONS`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hatch_model_cache.compile.pretend import Pretence

from . import vllm_defaults, vllm_host, vllm_keys, vllm_rules, vllm_running, vllm_stops

VERSIONS = frozenset({"0.33.0"})
"""vLLM versions this adapter was checked on."""

KIND = "gpu"
"""Of the targets that it compiles for."""

SERVER_ONLY, pins = vllm_defaults.SERVER_ONLY, vllm_defaults.pins
running = vllm_running

AOT = "torch_compile_cache/torch_aot_compile"
"""Where AOT artifacts lie under the cache root (vllm/compilation/decorators.py)."""

# vllm/config/parallel.py: world_size is the product of the first three; a rank's directory is
# rank_<rank>_<data parallel rank>.
_WORLD = (
    ("--tensor-parallel-size", "-tp"),
    ("--pipeline-parallel-size", "-pp"),
    ("--prefill-context-parallel-size", "-pcp"),
)
_DATA = ("--data-parallel-size", "-dp")


@dataclass(frozen=True)
class Artifact:
    """One compiled model that the engine saved.

    Attributes:
        prefix: the engine's name for it, for example ``"backbone"``.
        path: the file.
        component, kind, contains: as in the manifest.
        keys: every key it is looked up by: ``served_as``, ``key``, ``directory`` (relative to the cache root) and
            ``overrides`` (the factors by which this key differs from `Compiled.factors`).
    """

    prefix: str
    path: str
    keys: list[dict[str, Any]]
    component: str = "vllm-aot"
    kind: str = "vllm-aot-model"
    contains: tuple[str, ...] = ("bytecode", "cubin", "pickle")


@dataclass
class Compiled:
    """What one run of the engine left.

    Attributes:
        artifacts: what was saved.
        factors: the named values in the key, see `vllm_keys.named_factors`.
        unkeyed: what decides the code and is in no key, see `vllm_host.unkeyed`.
        models: how many models the engine compiles.
        counters: vLLM's own counters (``vllm.compilation.counter.compilation_counter``), non-zero ones.
    """

    artifacts: list[Artifact] = field(default_factory=list)
    factors: dict[str, str] = field(default_factory=dict)
    unkeyed: dict[str, str | bool | int | None] = field(default_factory=dict)
    models: int = 0
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def saved(self) -> int:
        """Models that the engine saved."""
        return self.counters.get("num_aot_artifacts_saved", 0)

    @property
    def parts(self) -> int:
        """Distinct compiled parts in them; a model without any loads, and runs uncompiled."""
        return self.counters.get("num_compiled_artifacts_saved", 0)


@dataclass(frozen=True)
class LookUp:
    """What the engine looks for: the model's prefix, its key, the named values in it, and what is in no key."""

    prefix: str
    key: str
    factors: dict[str, str]
    unkeyed: dict[str, str | bool | int | None]


def environment(cache_root: Path) -> dict[str, str]:
    """Variables that make the engine keep its cache under `cache_root`; not in the key."""
    return {"VLLM_CACHE_ROOT": str(cache_root)}


def expected_ranks(arguments: Sequence[str]) -> list[str]:
    """The ranks that an engine started with `arguments` has: ``0_0``, ``1_0``, … (rank, data parallel rank).

    Read from the text, for checks where there is no engine; `ranks` asks the engine's own parser.
    """
    world = 1
    for names in _WORLD:
        world *= _size(arguments, names)
    return [f"{rank}_{data}" for data in range(_size(arguments, _DATA)) for rank in range(world)]


def _size(arguments: Sequence[str], names: Iterable[str]) -> int:
    """The value of a parallel size, 1 when it is absent; the last one given wins, as in argparse."""
    size = 1
    for index, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        flag = flag.replace("_", "-") if argument.startswith("--") else flag
        if flag in names:
            text = value if equals else "".join(arguments[index + 1 : index + 2])
            size = int(text) if text.isdecimal() else size
    return max(size, 1)


def parse(serve_arguments: list[str]) -> Any:
    """Arguments as ``vllm serve`` parses them.

    Args:
        serve_arguments: what follows ``vllm serve``, the model first.

    Raises:
        ValueError: if vLLM's parser refuses the arguments, with what it says.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            # with the command before them: vLLM's parser reads --model and --config otherwise without it
            arguments = _parser().parse_args(["serve", *serve_arguments])
    except SystemExit:
        [*_, reason] = said.getvalue().strip().splitlines() or ["no reason given"]
        raise ValueError(f"vllm serve does not take these arguments: {reason.rpartition('error: ')[2]}") from None
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

    compiled = Compiled()

    def look_up(model: Any, path: str) -> None:
        """Note every key; find nothing, the cache is empty."""
        revision = config.model_config.revision
        keys = []
        for name in names:
            for identity in vllm_keys.identities(name, revision):
                key = vllm_keys.key_of(vllm_keys.lookup_path(model, identity))
                overrides = {f"model.{field}": vllm_keys.text(value) for field, value in identity.items()}
                keys.append({"served_as": name, "key": key, "directory": f"{AOT}/{key}", "overrides": overrides})
        compiled.artifacts.append(Artifact(model._compile_tag, path, keys))
        if not compiled.factors:
            overridden = {factor for key in keys for factor in key["overrides"]}
            named = vllm_keys.named_factors(model)
            compiled.factors = {name: value for name, value in named.items() if name not in overridden}
            compiled.unkeyed = vllm_host.unkeyed(model.vllm_config)

    compiled.models = _start(pretence, config, rank, look_up, on_stage)
    if not compiled.models:
        raise RuntimeError("the engine compiles nothing; is torch.compile off in the serve arguments?")
    compiled.counters = {k: v for k, v in vars(compilation_counter).items() if v}
    return compiled


def look_up_keys(pretence: Pretence, config: Any, on_stage: Callable[[str], None]) -> list[LookUp]:
    """What the engine would look for if it were started with this configuration, computed by itself.

    Starts the engine core as `compile_rank` does and ends it after its last look-up; compiles nothing. Empty if the
    engine looks for nothing (`why_nothing`).
    """
    looked_up: list[LookUp] = []

    def look_up(model: Any, path: str) -> object:
        key = vllm_keys.key_of(Path(path))
        factors = vllm_keys.named_factors(model)
        looked_up.append(LookUp(model._compile_tag, key, factors, vllm_host.unkeyed(model.vllm_config)))
        return object()  # found, as far as the engine can tell; it ends before it would be called

    _start(pretence, config, 0, look_up, on_stage, compile_too=False)
    return looked_up


def why_nothing(config: Any) -> str:
    """Why an engine with this configuration looks for no AOT artifact."""
    import vllm.envs as envs

    if envs.VLLM_DISABLE_COMPILE_CACHE:
        return "VLLM_DISABLE_COMPILE_CACHE is set: the engine looks for no cache"
    if not envs.VLLM_USE_AOT_COMPILE:
        return "VLLM_USE_AOT_COMPILE is off: the engine looks for no AOT artifact"
    mode = getattr(config.compilation_config.mode, "name", "unknown")
    return f"the engine looks for no AOT artifact with these arguments (compilation mode {mode})"


def _start(
    pretence: Pretence,
    config: Any,
    rank: int,
    look_up: Callable[[Any, str], Any],
    on_stage: Callable[[str], None],
    *,
    compile_too: bool = True,
) -> int:
    """Start the engine core as one rank until its last model is called; how many models it compiles.

    Args:
        compile_too: if false, the engine is ended where it would compile, as it is where it would run.
    """
    from vllm.v1.engine.core import EngineCore

    pretence.before_worker()
    models = vllm_stops.stop_at_first_call(pretence, look_up, on_stage)
    vllm_stops.stop_without_models(pretence, models)
    if not compile_too:
        vllm_stops.stop_before_compile(pretence)
    if pretence.device.count > 1:
        config.parallel_config.distributed_executor_backend = "uni"  # not in the key
    on_stage("build the model")
    try:
        with pretence.mode:
            EngineCore(config, _executor(rank), log_stats=False)
    except vllm_stops.CompilationDone:
        return len(models)
    raise RuntimeError("the engine started without compiling a model")


@functools.cache
def _parser() -> Any:
    """The parser of the command line ``vllm``, with the one command that matters here."""
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm")
    make_arg_parser(parser.add_subparsers(dest="subparser").add_parser("serve"))
    return parser


def flags() -> dict[str, str]:
    """The flag of every field of the configuration that has one: ``"<part>.<field>"`` → flag.

    Read from the engine's source, where each flag is declared with the field that it sets; ``"*.<field>"`` is the flag
    that has the field's name, whatever part it sets. A flag that takes a whole part (``--compilation-config``) stands
    under the part's name. Flags of the server around the engine (``--port``) are not among them.
    """
    from vllm.engine.arg_utils import EngineArgs

    source = inspect.getsource(EngineArgs.add_cli_args)
    declared = re.findall(r'"(--[a-z0-9-]+)",\s*(?:"-[\w-]+",\s*)*\*\*(?:\{\s*\*\*)?(\w+?)_kwargs\["(\w+)"\]', source)
    fields = {flag.removeprefix("--").replace("-", "_"): flag for flag in re.findall(r'"(--[a-z0-9-]+)"', source)}
    return {
        **{name.removesuffix("_config"): flag for name, flag in fields.items() if name.endswith("_config")},
        **{f"*.{name}": flag for name, flag in fields.items()},
        **{f"{part}.{field}": flag for flag, part, field in declared},
    }


def options() -> dict[str, str]:
    """Every spelling of a flag of ``vllm serve`` → its first long one; what turns a flag off stands for itself."""
    [commands] = [a for a in _parser()._actions if a.dest == "subparser"]
    found = {"-O": "--optimization-level"}  # rewritten by vLLM before its parser sees it
    for action in commands.choices["serve"]._actions:
        long = [o for o in action.option_strings if o.startswith("--")]
        off = {o for o in long[1:] if o.startswith(("--no-", "--disable-"))}
        found.update({o: o if o in off else long[0] for o in action.option_strings if long})
    return found


def _executor(rank: int) -> type:
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    class OneRank(UniProcExecutor):  # type: ignore[misc]
        """The in-process executor, as one rank of several."""

        def _distributed_args(self) -> tuple[str, int, int]:
            method, _, _ = super()._distributed_args()
            return method, rank, rank

    return OneRank


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
rules = vllm_rules.rules
