"""vLLM's piecewise path (``VLLM_USE_AOT_COMPILE=0``): its key, and what a start reads of the files that it leaves.

Facts of vllm 0.33.0 and torch 2.14.0. Dynamo traces the model at every start. ``VllmBackend.__call__``
(vllm/compilation/backends.py) then names a directory by a hash of the environment, the configuration, Inductor's
factors, and the absolute path and content of every file that was traced: ``<root>/torch_compile_cache/<10 hex>``. In
its ``rank_<rank>_<dp rank>/<prefix>`` lie an index, a Python literal, and what was compiled of each piece of the graph.

The index names a piece twice, by file name and by absolute path. Only the name is used, in the directory of the index
(``InductorStandaloneAdaptor.load``), so nothing has to be relocated; the index that is shipped has the name in both
places. Of pieces that are equal the engine's own index has the first only: it recognizes the others by torch's key of
the graph, and the class of a weight goes into that, which is another one where weights are pretended. So the index that
is shipped has them all.
"""

from __future__ import annotations

import builtins
import functools
import hashlib
import inspect
import os
import pprint
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from ..pretend.parameters import DECLARED
from . import vllm_keys

DIRECTORY = "torch_compile_cache"
"""Where the keys' directories lie under the cache root."""

INDEX = "vllm_compile_cache.py"

COMPONENT = "vllm-piecewise"

PLACE = "code.directory"
"""The factor that says where the engine's packages lie."""

_UNPACKED = {"aotautograd": ("pickle",), "fxgraph": ("cubin", "pickle", "source")}
"""Of a piece that is a directory (save format "unpacked"), what a start reads; torch writes the rest again from it."""


class _KeyAsked(BaseException):
    """Carries the directory that the engine looks into out of its own backend."""

    def __init__(self, path: Path) -> None:
        self.path = path


class _Compiled(BaseException):
    """Ends Dynamo when the engine's backend is done: what it returns would be run."""


@dataclass(frozen=True)
class Traced:
    """A model that Dynamo has traced, when the engine's backend gets the graph.

    Attributes:
        model: a live module of a class decorated with ``support_torch_compile``.
        backend: its ``VllmBackend``.
        run: calls the backend with the graph.
    """

    model: Any
    backend: Any
    run: Callable[[], Any]

    def directory(self, identity: Mapping[str, str | None], packages: str | None) -> Path:
        """Where the engine would look if its configuration had this identity: ``…/<key>/rank_r_dp/<prefix>``.

        Runs the engine's backend up to the point where it turns to its cache; what it changes is put back.

        Args:
            identity: as for `vllm_keys.lookup_path`.
            packages: directory that the engine's packages lie in on the serving host; None: where they lie here.

        Raises:
            RuntimeError: if it looks elsewhere, or nowhere.
        """
        import vllm.compilation.backends as backends

        config = self.backend.compilation_config
        if config.cache_dir:
            raise RuntimeError("cache_dir in --compilation-config: the engine then looks there, whatever the key is")
        before = {name: getattr(config, name) for name in ("cache_dir", "local_cache_dir", "traced_files")}
        here = {on_host(path, packages): path for path in config.traced_files}

        def open_here(path: Any, *args: Any, **kwargs: Any) -> Any:
            return builtins.open(here.get(path, path), *args, **kwargs)

        def ask(_: Any, path: str, *__: Any, **___: Any) -> None:
            raise _KeyAsked(Path(path))

        config.cache_dir, config.traced_files = "", set(here)
        try:
            with (
                vllm_keys.identified(self.model.vllm_config, identity),
                mock.patch.object(backends, "open", open_here, create=True),
                mock.patch.object(backends.CompilerManager, "initialize_cache", ask),
            ):
                self.run()
        except _KeyAsked as asked:
            _remove_empty(asked.path, 3)
            return asked.path
        finally:
            for name, value in before.items():
                setattr(config, name, value)
        raise RuntimeError("the engine compiled the model without turning to its cache")

    def factors(self, packages: str | None) -> dict[str, str]:
        """The values that go into the key, by name, as text (`vllm_keys.named_factors`).

        ``code.directory`` is where the engine's packages lie, ``code.files`` a digest of the traced files: of their
        paths (those in that directory as they are below it) and contents.
        """
        factors = vllm_keys.named_factors(self.model)
        del factors["code.forward"]  # here the file that holds it is in the key
        place = on_host(_packages(), packages)
        digest = hashlib.sha256()
        for path in sorted(self.backend.compilation_config.traced_files):
            if os.path.isfile(path):  # noqa: PTH113 - else its code was made while running
                name = on_host(path, packages).removeprefix(f"{place}/")
                digest.update(f"{name}\0{hashlib.sha256(Path(path).read_bytes()).hexdigest()}\n".encode())
        return {**factors, PLACE: place, "code.files": f"sha256:{digest.hexdigest()}"}


def key_of(directory: Path) -> str:
    """The key in ``…/<key>/rank_r_dp/<prefix>``."""
    return directory.parent.parent.name


def on_host(path: str, packages: str | None) -> str:
    """A path of this process as it is on the serving host.

    A compile imports the engine through links (`compile.bootstrap`), and the serving host may have its packages in
    another directory, `packages`.
    """
    place = _packages()
    for entry in sys.path:
        if path == entry or path.startswith(f"{entry}/"):
            there = os.readlink(entry) if os.path.islink(entry) else entry  # noqa: PTH114, PTH115
            return (packages if packages and entry == place else there) + path.removeprefix(entry)
    return path


def _packages() -> str:
    """The directory that the engine's package was imported from."""
    import vllm

    return str(Path(vllm.__file__).parent.parent)


def trace(
    model: Any, call: Callable[[], Any], compiles: Callable[[Traced], bool], *, done: Callable[[Traced], None]
) -> None:
    """Let Dynamo trace a model and the engine's backend compile its graph, or load it, and end it there.

    Args:
        model: as in `Traced`.
        call: its first call.
        compiles: told of the traced model; whether the backend is to go on.
        done: told when it has; the configuration's ``local_cache_dir`` is the model's directory then.
    """
    import vllm.compilation.backends as backends

    backend_call = backends.VllmBackend.__call__

    def compile_and_end(backend: Any, *args: Any) -> None:
        backend.compilation_config.traced_files |= _hidden_files(model)
        traced = Traced(model, backend, functools.partial(backend_call, backend, *args))
        if compiles(traced):
            traced.run()
            done(traced)
        raise _Compiled

    with mock.patch.object(backends.VllmBackend, "__call__", compile_and_end):
        try:
            call()
        except _Compiled:
            return
    raise RuntimeError("the engine ran the model without compiling it")


def _hidden_files(model: Any) -> set[str]:
    """Files that Dynamo traces through for real weights and not for pretended ones, which have no class of their own.

    It inlines a weight's ``__torch_function__`` wherever the weight is used (torch 2.14.0,
    torch/_dynamo/variables/torch_function.py), and vLLM's classes have one in Python
    (vllm/model_executor/parameter.py, `BasevLLMParameter`).
    """
    classes = {getattr(weight, DECLARED) for weight in model.parameters() if hasattr(weight, DECLARED)}
    functions = [getattr(cls.__torch_function__, "__func__", None) for cls in classes]
    return {function.__code__.co_filename for function in functions if inspect.isfunction(function)}


def files(traced: Traced) -> tuple[dict[str, object], ...]:
    """Complete the index of a model that was just compiled, and describe its files, as `vllm_start.Artifact.beside`.

    Left out is what the engine writes for people: ``computation_graph.py``, ``cache_key_factors.json``.

    Raises:
        RuntimeError: if something of the model is not in the index, or not saved.
    """
    directory = Path(traced.backend.compilation_config.local_cache_dir)
    index = _index(traced.backend)
    (directory / INDEX).write_text(pprint.pformat(index, indent=1) + "\n", "utf-8")
    return described(directory)


def _index(backend: Any) -> dict[tuple[tuple[int, int], int, str], dict[str, Any]]:
    """What the engine reads from its index, of every piece, and without a path."""
    from vllm.compilation.piecewise_backend import PiecewiseBackend

    manager = backend.compiler_manager
    saved = {entry["cache_key"]: entry["graph_handle"][0] for entry in manager.cache.values()}
    keys = {id(runnable): key for key, runnable in manager.loaded_artifacts.items()}
    index = {}
    for name, _ in backend.split_gm.named_children():
        piece = getattr(backend.split_gm, name)
        piece = getattr(piece, "runnable", piece)  # within what captures it as a CUDA graph
        if isinstance(piece, PiecewiseBackend):
            for span, made in piece.range_entries.items():
                key = keys.get(id(made.runnable))
                if key not in saved:
                    raise RuntimeError(f"the engine has not saved what it compiled of {name} for {span}")
                at = ((span.start, span.end), piece.piecewise_compile_index, manager.compiler.name)
                index[at] = {"cache_key": key, "graph_handle": (saved[key], saved[key])}
    return index


def described(directory: Path) -> tuple[dict[str, object], ...]:
    """Describe what a start reads of ``…/<key>/rank_r_dp/<prefix>``: the index and the pieces that lie there."""
    found: list[tuple[str, tuple[str, ...], Path]] = [("vllm-piecewise-index", ("source",), directory / INDEX)]
    for piece in sorted(directory.glob("artifact_*")):
        if piece.is_file():
            found.append(("vllm-piece", ("cubin", "pickle", "source"), piece))
        for name, contains in _UNPACKED.items():
            found += [("vllm-piece", contains, p) for p in sorted((piece / name).rglob("*")) if p.is_file()]
    below = directory.parent.parent
    return tuple(
        {"path": path.relative_to(below).as_posix(), "source": str(path), "kind": kind, "contains": contains}
        for kind, contains, path in found
    )


def pieces(beside: Sequence[Mapping[str, Any]]) -> int:
    """How many compiled pieces are among files that `described` has described."""
    return len({file["path"].split("/")[2] for file in beside if file["kind"] == "vllm-piece"})


def _remove_empty(directory: Path, levels: int) -> None:
    """Remove a directory and those around it, up to `levels`, while they are empty."""
    for path in (directory, *directory.parents)[:levels]:
        try:
            path.rmdir()
        except OSError:
            return
