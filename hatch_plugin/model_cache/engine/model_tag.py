"""The tag of a compiled model, by which the entries of a wheel are told apart: "backbone", "eagle_head", an encoder's
class.

vllm 0.32.0 and later keep it as `_compile_tag` (vllm/compilation/decorators.py). 0.31.0 makes the same of the same two
names, for a directory of its cache (vllm/compilation/backends.py, `VllmBackend.__init__`), and forgets it: there `keep`
notes it, when a model has just been made. It can go with 0.31.0. The plug-in pays for this module in every process.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

ATTRIBUTE = "_compile_tag"


def of(model: Any) -> str:
    """The tag of a live module of a class decorated with ``support_torch_compile``; "" where it has none."""
    return str(getattr(model, ATTRIBUTE, ""))


def keep(model: Any) -> None:
    """Note the tag of a model whose ``TorchCompileWithNoGuardsWrapper.__init__`` is done, if the engine has not."""
    if not hasattr(model, ATTRIBUTE):
        setattr(model, ATTRIBUTE, model._compile_prefix or sys.modules["vllm.compilation.backends"].model_tag)


def keep_all(decorators: ModuleType) -> None:
    """Note the tag of every model that will be made, where the engine does not.

    Args:
        decorators: the engine's module `on_import.MODULE`, just imported.
    """
    if getattr(sys.modules.get("vllm"), "__version__", "") != "0.31.0":
        return
    from contextlib import suppress

    wrapper = decorators.TorchCompileWithNoGuardsWrapper
    initialize = wrapper.__init__

    def initialize_and_keep(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        with suppress(Exception):  # a name in a log, and not worth an engine
            keep(self)

    wrapper.__init__ = initialize_and_keep
