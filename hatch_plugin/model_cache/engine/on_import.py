"""Being told when the engine has imported one of its modules, at no cost to a process that does not.

The plug-in runs before vLLM imports what it wants to wrap, and importing that here would change how the engine starts.
This module imports nothing, since every engine process pays for it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

MODULE = "vllm.compilation.decorators"
"""Where vLLM looks its artifacts up (vllm 0.31.0 to 0.33.0)."""


def call(act: Callable[[ModuleType], None], name: str = MODULE) -> None:
    """Call `act` with the module `name`: now if it is imported already, else once when it has been."""
    module = sys.modules.get(name)
    if module is not None:
        act(module)
    elif not any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, act))


class _Finder:
    """Finds what the others find, and has the loader call `act` when it is done."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self.name = name
        self._act = act

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        """The spec of the one module, None for all others."""
        if name != self.name:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        from contextlib import suppress
        from importlib.util import find_spec

        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_then_act(module: ModuleType) -> None:
                execute(module)
                with suppress(Exception):  # the engine's import must not fail by us
                    self._act(module)

            with suppress(AttributeError):  # a loader that cannot be changed is used as it is
                spec.loader.exec_module = execute_then_act  # type: ignore[method-assign]
        return spec
