"""For programs that use torch.compile: hand what an installed wheel holds to torch, before the first compile.

    import model_cache.torch

    model_cache.torch.load("model-cache-torch-block-x86-64-avx512")
    model = torch.compile(model)  # and on as always

torch looks for each compiled graph under a key that it computes itself, of the graph, the inputs and its own version.
So a program that is another one than the recipe's finds nothing and compiles: slower, never wrong. What no key holds
(the CPU's instruction set, a GPU's number of SMs) is compared here, and a wheel for another machine is refused.

    python -m model_cache.torch model-cache-torch-llama-h200

does the same for programs that are not changed: it leaves a GPU's wheel in the directory TORCHINDUCTOR_CACHE_DIR.

A wheel of mode "standalone" holds the compiled function itself, and is used without torch.compile:

    model = model_cache.torch.load("model-cache-torch-block-x86-64-avx512").bind(model)

Imports the standard library only; torch when `load` has found the wheel good.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from model_cache import console
from model_cache.engine import mends, standalone
from model_cache.errors import DamagedError, MismatchError, ModelCacheError, UsageError
from model_cache.machine import fit
from model_cache.machine.host import read_host
from model_cache.store import files, place
from model_cache.wheel import calls, mega
from model_cache.wheel.lookup import open_payload
from model_cache.wheel.manifest import Entry, File, Manifest
from model_cache.wheel.payload import Payload
from model_cache.wheel.verify import blob_path, read_manifest, verify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Loaded", "Use", "fill", "load"]

ENGINE = "torch"
KERNELS = "inductor/"
"""Below an entry: shared objects, as they lie below TORCHINDUCTOR_CACHE_DIR."""

MEGA = "mega.bin"

_FILES = {mega.COMPONENT: [MEGA], calls.COMPONENT: [calls.FILE, calls.ARTIFACT]}
"""Component → the files of an entry that are no kernels, in order."""

_mended: set[str] = set()
_lock = threading.Lock()


@dataclass(frozen=True)
class Use:
    """What has become of a wheel since it was loaded.

    Of mode "mega": how many graphs torch has found compiled, and how many not. Of mode "standalone": how many calls the
    compiled function has answered, and how many the module (`Bound.or_module`).
    """

    hits: int
    misses: int


@dataclass(frozen=True)
class _Standalone:
    """A compiled function that nobody has unpickled yet, its record, and what it was bound to."""

    label: str
    data: bytes
    record: calls.Calls
    bound: list[standalone.Bound] = field(default_factory=list)


@dataclass(frozen=True)
class Loaded:
    """A wheel that torch has been given, or (mode "standalone") that can be bound to a module.

    Attributes:
        name, version: of the wheel.
        target: the one of its targets that this host is.
        origin: who has signed it, in words.
        parts: how many parts torch was given, by torch's name for their kind: ``{"aot_autograd": 1, "inductor": 1}``;
            of mode "standalone": ``{"standalone": 1}``.
        kernels: how many shared objects were put into torch's cache directory (a CPU's kernels).
        mended: what was changed in torch so that it finds them, in words (`model_cache.engine.mends`).
    """

    name: str
    version: str
    target: str
    origin: str
    parts: Mapping[str, int]
    kernels: int
    mended: tuple[str, ...]
    before: Use
    function: _Standalone | None = field(default=None, repr=False)

    def bind(self, module: Any) -> standalone.Bound:
        """The compiled function of a wheel of mode "standalone", for a module that is the recipe's: with its weights,
        on the recipe's device, in evaluation mode.

        Raises:
            MismatchError: if it is another one, naming every difference; torch has unpickled nothing then.
            UsageError: if the wheel is of mode "mega".
        """
        if self.function is None:
            raise UsageError(f'{self.name} {self.version} is of mode "mega": torch.compile finds it, nothing is bound')
        found = standalone.differences(self.function.record, module)
        if found:
            raise MismatchError(f"{self.function.label} was not compiled for this module", found)
        bound = standalone.Bound(self.function.label, self.function.record, module, _function(self.function.data))
        self.function.bound.append(bound)
        return bound

    def use(self) -> Use:
        """Whether torch finds what it was given, by its own counters; call after the first call of a compiled module.

        Counts every graph of this process, also those of other wheels and of none. Of mode "standalone": the calls of
        what was bound.
        """
        if self.function is not None:
            bound = self.function.bound
            return Use(sum(one.hits for one in bound), sum(one.misses for one in bound))
        now = _use()
        return Use(now.hits - self.before.hits, now.misses - self.before.misses)


def load(name: str) -> Loaded:
    """Verify a wheel for the engine `torch`, and hand it to torch.

    Call it once in every process that compiles, before the first call of what `torch.compile` returns. It writes into
    torch's own cache directory (TORCHINDUCTOR_CACHE_DIR), as torch does.

    Args:
        name: of an installed distribution, or the path of a .whl file.

    Raises:
        NotFoundError: if it is not installed.
        DamagedError: if a byte is not what the manifest says.
        NotTrustedError: if this host does not trust its origin (`MODEL_CACHE_POLICY`).
        MismatchError: if it is for another engine, version of torch, Python or machine; it names every difference.
        ModelCacheError: if it or torch's cache directory cannot be read or written, or others could change the latter.
    """
    with open_payload(name) as payload:
        verified = verify(payload)
        manifest = verified.manifest
        if manifest.engine.name != ENGINE:
            raise MismatchError(
                f"{payload.label} is for the engine {manifest.engine.name}, which finds it by itself; "
                "`model_cache.torch.load` is for wheels of the engine torch"
            )
        targets = fit.require(manifest, read_host(ENGINE), payload.label)
        entry = _entry(payload, manifest, targets)
        held = {file.path.rpartition("/")[2]: file for file in entry.files if not file.path.startswith(KERNELS)}
        kernels = [file for file in entry.files if file.path.startswith(KERNELS)]
        with _lock:
            _write_kernels(payload, kernels)
            mended = _mend(manifest.engine.version, manifest.engine.torch) if kernels else ()
            before = _use()
            function = None
            if entry.component == mega.COMPONENT:
                parts = _populate(payload, _content(payload, held[MEGA]))
            else:
                function = _standalone(payload, held)
                parts = {"standalone": 1}
    origin = verified.origin.text
    return Loaded(payload.name, manifest.version, entry.target, origin, parts, len(kernels), mended, before, function)


def fill(name: str) -> Loaded:
    """As `load`, for programs that do not call it: what torch is given stays in its cache directory, and a program that
    is started with the same TORCHINDUCTOR_CACHE_DIR finds it there.

    Raises:
        MismatchError: also if the wheel is for a CPU, whose kernels are found only in a process that `load` has mended,
            and if it is of mode "standalone", which torch does not look for.
        The others of `load`.
    """
    with open_payload(name) as payload:
        manifest = read_manifest(payload).manifest
        if any(target.kind == "cpu" for target in manifest.targets):
            raise MismatchError(
                f"{payload.label} is for a CPU: torch names its kernels by the environment's paths, "
                "so only a program that calls `model_cache.torch.load` finds them"
            )
        if any(entry.component == calls.COMPONENT for entry in manifest.entries):
            raise MismatchError(
                f'{payload.label} is of mode "standalone": only a program that binds it to its module uses it'
            )
    return load(name)


def main(words: Sequence[str]) -> int:
    """`python -m model_cache.torch NAME`: `fill`."""
    parser = console.Parser(
        prog="python -m model_cache.torch",
        description="Fill torch's cache directory (TORCHINDUCTOR_CACHE_DIR) from a GPU's wheel, for programs that are "
        "not changed.",
    )
    parser.add_argument("name", metavar="NAME|WHEEL", help="an installed wheel, or the path of one")
    loaded = fill(parser.parse_args(words).name)
    parts = sum(loaded.parts.values())
    sys.stdout.write(f"{loaded.name} {loaded.version}: {parts} parts for {loaded.target} in {_directory()}\n")
    return 0


def _entry(payload: Payload, manifest: Manifest, targets: Collection[str]) -> Entry:
    """The entry for this host."""
    for entry in manifest.entries:
        found = sorted(file.path.rpartition("/")[2] for file in entry.files if not file.path.startswith(KERNELS))
        if entry.target in targets and found == _FILES.get(entry.component):
            return entry
    raise DamagedError(f"{payload.label}: holds no cache of torch for {', '.join(targets)}")


def _standalone(payload: Payload, files: Mapping[str, File]) -> _Standalone:
    """The compiled function's bytes, as they were verified, and its record."""
    record = calls.parse(_content(payload, files[calls.FILE]), f"{payload.label}: {calls.FILE}")
    return _Standalone(payload.label, _content(payload, files[calls.ARTIFACT]), record)


def _function(data: bytes) -> Any:
    """Have torch unpickle a compiled function; its kernels are found as those of a mega cache are."""
    from torch._dynamo.aot_compile_types import BundledAOTAutogradSerializableCallable

    return BundledAOTAutogradSerializableCallable.deserialize_compile_artifacts(data)


def _content(payload: Payload, file: File) -> bytes:
    """A file's bytes, as they were verified."""
    data = payload.read(blob_path(file.sha256), file.size)
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise DamagedError(f"{payload.label}: {file.path} has changed while it was loaded")
    return data


def _directory() -> str:
    """Where torch keeps its caches: TORCHINDUCTOR_CACHE_DIR, else one below TMPDIR."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return str(cache_dir())


def _write_kernels(payload: Payload, kernels: list[File]) -> None:
    """Put shared objects where Inductor looks for them. One that is there with the same bytes stays.

    The directory is judged also when there are none: torch unpickles what it finds there.
    """
    path = _directory()
    with files.system_errors(path):
        root = place.open_judged(path, create=True)
        try:
            for file in kernels:
                data = _content(payload, file)
                folder, _, name = file.path.removeprefix(KERNELS).rpartition("/")
                with files.opened(root, folder, [], durable=False) as directory:
                    if not _is_there(directory, name, data):
                        temporary = f".{os.getpid()}.{threading.get_ident()}.model-cache"
                        files.write_atomically(directory, name, data, temporary)
        finally:
            os.close(root)


def _is_there(directory: int, name: str, data: bytes) -> bool:
    try:
        with os.fdopen(files.open_regular(directory, name), "rb") as file:
            return file.read(len(data) + 1) == data
    except (OSError, ModelCacheError):
        return False


def _mend(version: str, torch: str) -> tuple[str, ...]:
    """Change what keeps this version of torch from finding kernels, for the rest of the process: it looks for them when
    something is first called."""
    found = () if mends.turned_off() else mends.for_engine(ENGINE, version, torch)
    for mend in found:
        if mend.name not in _mended:
            where, name, value = mend.replacement()
            setattr(where, name, value)
            _mended.add(mend.name)
    return tuple(mend.text for mend in found)


def _populate(payload: Payload, data: bytes) -> dict[str, int]:
    import torch.compiler

    try:
        expected = Counter(part.kind for part in mega.parts(data))
    except ValueError as error:
        raise DamagedError(f"{payload.label}: its cache of torch {error}") from None
    info = torch.compiler.load_cache_artifacts(data)
    parts = {kind: len(keys) for kind, keys in info.artifacts.items()} if info else {}
    if parts != expected:
        raise ModelCacheError(f"{payload.label}: torch has taken {parts or 'nothing'} of {dict(expected)}")
    return parts


def _use() -> Use:
    from torch._dynamo.utils import counters

    found = counters["aot_autograd"]
    return Use(found["autograd_cache_hit"], found["autograd_cache_miss"] + found["autograd_cache_bypass"])


if __name__ == "__main__":
    sys.exit(console.run(lambda: main(sys.argv[1:]), as_json=False))
