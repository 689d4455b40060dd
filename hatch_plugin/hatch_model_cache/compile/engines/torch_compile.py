"""Adapter for plain torch.compile: a module that a function of the recipe's author makes, compiled as one graph.

The function runs under a FakeTensorMode, so weights have shapes and no storage. In mode "mega" torch keeps of the
compile what ``torch.compiler.save_cache_artifacts`` returns: on the serving host ``model_cache.torch.load`` hands it
back, and the program's own ``torch.compile`` finds every part by the keys that torch computes there. In mode
"standalone" it is the compiled function, with a record of what it may be called with (`torch_standalone`).

Everything here that names a torch function was checked on the versions in `VERSIONS`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hatch_model_cache.compile.surroundings import Surroundings
from model_cache.wheel import calls

from . import interpreter, torch_keys, torch_standalone, vllm_cpu_files, vllm_cpu_host
from .rule import Rule

VERSIONS = {"2.11.0": ("gpu",), "2.13.0": ("cpu", "gpu"), "2.14.0": ("gpu",)}
"""torch versions this adapter was checked on, and the kinds of targets each was checked for."""

MODES = ("mega", "standalone")
"""Forms of a cache that can be made and loaded."""

UNSOUND = {
    "aot": "the guards of torch's aot_compile, made without weights, refuse real ones, and it runs without any",
}
"""Forms that torch has and that would give wrong results without an error (torch 2.11.0–2.14.0): a program that
differs from the recipe's must miss."""

MEGA_COMPONENT = "torch-mega"
RANK = "rank_0_0"
MEGA = "mega.bin"
"""Where an entry has what ``torch.compiler.save_cache_artifacts`` returned."""

INDUCTOR = "inductor"
"""Inductor's cache directory below the cache root while compiling, and a CPU's kernels below an entry."""

_CACHE = "TORCHINDUCTOR_CACHE_DIR"


@dataclass(frozen=True)
class Program:
    """What is to be compiled. make: the recipe's function; directory: where its module was looked for first."""

    factory: str
    mode: str
    directory: Path
    make: Callable[[], Any]

    @property
    def sources(self) -> str:
        """SHA-256 (hex) of every file in `directory`, with its name."""
        files = sorted(p for p in self.directory.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
        listed = [(p.relative_to(self.directory).as_posix(), hashlib.sha256(p.read_bytes()).hexdigest()) for p in files]
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


@dataclass(frozen=True)
class Artifact:
    """What was saved, as `vllm_start.Artifact` describes it."""

    prefix: str
    path: str
    keys: list[dict[str, Any]]
    component: str
    kind: str
    contains: tuple[str, ...]
    beside: tuple[Mapping[str, Any], ...]


@dataclass
class Compiled:
    """What the compile left; see `vllm_start.Compiled` for what the fields mean."""

    artifacts: list[Artifact]
    factors: dict[str, str]
    unkeyed: dict[str, str | bool | int | None]
    parts: int
    models: int = field(default=1)
    saved: int = field(default=1)
    hints: dict[str, str] = field(default_factory=dict)


def environment(cache_root: Path) -> dict[str, str]:
    """Variables that make torch and Triton keep their caches under `cache_root`; in no key."""
    return {_CACHE: str(cache_root / INDUCTOR), "TRITON_CACHE_DIR": str(cache_root / "triton")}


def rules(version: str) -> tuple[Rule, ...]:
    """None: there is no look-up before a program's own that could be compared with a wheel."""
    return ()


def expected_ranks(arguments: object) -> list[str]:
    """One: a program of several processes loads the same wheel in each."""
    return ["0_0"]


def versions() -> dict[str, str | None]:
    """The ``engine`` object of the manifest, for this interpreter."""
    import torch

    return interpreter.versions("torch", torch.__version__.partition("+")[0])


def host_answers() -> dict[str, str | bool | int | None]:
    """What torch asks of the host: the compiler's variable."""
    return {"CXX": os.environ.get("CXX")}


def parse(arguments: list[str]) -> Program:
    """The program of a job: directory with the factory's module, ``module:function``, mode.

    Raises:
        ValueError: if there is no such function, or its module cannot be imported.
    """
    directory, factory, mode = arguments
    name, _, function = factory.partition(":")
    sys.path.insert(0, directory)
    try:
        found: Any = importlib.import_module(name)
        for part in function.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"factory {factory!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ValueError(f"factory {factory!r} is no function")
    return Program(factory, mode, Path(directory), found)


def ranks(program: Program) -> int:
    """How many processes compile."""
    return 1


def create_config(program: Program) -> Program:
    """Nothing is configured."""
    return program


def architectures(program: Program) -> list[str]:
    """The factory's name; what class it returns is its own affair."""
    return [program.factory]


def compile_rank(
    surroundings: Surroundings, program: Program, names: list[str], rank: int, on_stage: Callable[[str], None]
) -> Compiled:
    """Make the module with fake weights, compile it as one graph, and save what torch has cached.

    Raises:
        RuntimeError: if the factory returns something else than a module and its inputs, or torch caches nothing.
    """
    surroundings.before_program()
    on_stage("make the module")
    mode = torch_keys.install(surroundings.patches)
    with mode:
        module, inputs = _factory_made(program)
    on_stage("trace and compile")
    make = _standalone if program.mode == "standalone" else _mega
    return _saved(surroundings, program, names, make(surroundings, program, mode, module, inputs))


@dataclass(frozen=True)
class _Made:
    """What a mode has left. content: the file that torch unpickles; record: another beside it; factors: what
    identifies it, besides the program; parts: how many graphs Inductor has compiled."""

    component: str
    name: str
    kind: str
    content: bytes
    factors: Mapping[str, str]
    parts: int
    record: tuple[str, bytes] | None = None


def _mega(surroundings: Surroundings, program: Program, mode: Any, module: Any, inputs: tuple[Any, ...]) -> _Made:
    """Compile as a program does, up to the first call of the result."""
    import torch

    try:
        # as one graph: what follows a break is compiled when the part before it has run, and nothing can run here
        with mode, torch.no_grad():
            torch.compile(module, fullgraph=True)(*inputs)
    except torch_keys.CompiledDone:
        pass
    else:
        raise RuntimeError(f"factory {program.factory!r}: torch.compile found nothing to compile in its module")
    saved = torch.compiler.save_cache_artifacts()
    if saved is None:
        raise RuntimeError("torch has cached nothing; is a cache turned off in the recipe's environment?")
    data, info = saved
    parts = info.artifacts
    missing = [name for name in ("aot_autograd", "inductor") if not parts.get(name)]
    if missing:
        raise RuntimeError(f"torch has cached no {' and no '.join(missing)} part: its log says why it was bypassed")
    factors = {f"torch.{name}": ",".join(sorted(keys)) for name, keys in sorted(parts.items())}
    return _Made(MEGA_COMPONENT, MEGA, "torch-mega-cache", data, factors, len(parts["inductor"]))


def _standalone(surroundings: Surroundings, program: Program, _: Any, module: Any, inputs: tuple[Any, ...]) -> _Made:
    """Compile to a function, and record what it may be called with."""
    data, record = torch_standalone.compiled(module, inputs, surroundings.patches)
    content = record.to_json_bytes()
    return _Made(
        calls.COMPONENT,
        calls.ARTIFACT,
        "torch-standalone",
        data,
        {"torch.calls": hashlib.sha256(content).hexdigest()},
        1,
        (calls.FILE, content),
    )


def _factory_made(program: Program) -> tuple[Any, tuple[Any, ...]]:
    import torch

    made = program.make()
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], tuple)):
        raise RuntimeError(f"factory {program.factory!r} must return a module and a tuple of its inputs")
    module, inputs = made
    if not isinstance(module, torch.nn.Module):
        raise RuntimeError(f"factory {program.factory!r} must return a torch.nn.Module first, not {type(module)}")
    return module, inputs


def _saved(surroundings: Surroundings, program: Program, names: list[str], made: _Made) -> Compiled:
    """Write what was made where an entry will have it, and describe it."""
    factors = {
        **{f"engine.{name}": str(value) for name, value in versions().items()},
        "program.factory": program.factory,
        "program.mode": program.mode,
        "program.sources": program.sources,
        **made.factors,
    }
    key = hashlib.sha256(json.dumps(factors, sort_keys=True).encode()).hexdigest()
    cache = Path(os.environ[_CACHE])
    path = cache.parent / key / RANK / made.name
    path.parent.mkdir(parents=True)
    path.write_bytes(made.content)
    keys = [{"served_as": name, "key": key, "directory": f"torch/{key}", "overrides": {}} for name in names]
    found = vllm_cpu_files.kernels(cache, cache.parent)
    kernels = tuple(file for file in found if file["kind"] == "inductor-kernel")  # nobody looks for probes
    unkeyed: dict[str, str | bool | int | None] = {}
    if surroundings.kind == "cpu":
        unkeyed = {**vllm_cpu_host.machine(), **vllm_cpu_host.build_machine()}
    elif kernels:
        raise RuntimeError(
            f"factory {program.factory!r}: a part of its graph is on the CPU, whose code no GPU's wheel has"
        )
    beside = (*kernels, *_record(path, made))
    artifact = Artifact("program", str(path), keys, made.component, made.kind, ("pickle",), beside)
    return Compiled([artifact], factors, unkeyed, made.parts)


def _record(path: Path, made: _Made) -> Iterator[Mapping[str, object]]:
    """Write the file that belongs to the artifact at `path`, if there is one, and describe it."""
    if made.record is not None:
        name, content = made.record
        source = path.parents[2] / name
        source.write_bytes(content)
        yield {"path": f"{RANK}/{name}", "source": str(source), "kind": "torch-calls", "contains": ["json"]}
