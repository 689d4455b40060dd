"""The names under which Inductor keeps its CPU kernels, made the same in every environment.

Inductor (torch 2.13.0, ``codecache.CppCodeCache.load_async``) names a kernel by its source and by the g++ command that
would compile it, and the command holds the paths of torch and of Python. So the same kernel of the same torch has
another name in every virtual environment, and a cache that moves is a cache that misses. What is asked for a name is a
command for a source ``i`` and a target ``o``, which is never run; here those commands are told without these paths.
Building and serving both do this. Standard library only, and imported where torch is.
"""

from __future__ import annotations

from functools import wraps
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType
    from typing import Any

MODULE = "torch._inductor.cpp_builder"
"""The module to mend."""

CHECKED = "torch 2.13.0"


def places(module: ModuleType) -> list[tuple[str, str]]:
    """What differs between two environments of one torch and one Python: (name, directory).

    module: ``torch._inductor.cpp_builder``, which lies in torch's directory.
    """
    import sysconfig

    torch = Path(str(module.__file__)).parent.parent
    found = [
        ("<torch>", str(torch)),
        # both spellings, as `_get_python_related_args` has them
        ("<python-include>", sysconfig.get_path("include")),
        ("<python-include>", sysconfig.get_path("include", scheme="posix_prefix")),
        ("<python-lib>", sysconfig.get_config_var("LIBDIR")),
    ]
    return [(name, directory) for name, directory in found if directory]


def neutral(command: str, known: Iterable[tuple[str, str]]) -> str:
    """A g++ command with these directories (`places`) named instead of spelled out, where it looks for files."""
    for name, directory in known:
        for flag in ("-I", "-L"):
            command = command.replace(f"{flag}{directory}", f"{flag}{name}")
    return command


def named_neutrally(module: ModuleType) -> Callable[[Any], str]:
    """What ``CppBuilder.get_command_line`` is to be: the same, but neutral where only a name is made of it.

    module: as for `places`.
    """
    real = module.CppBuilder.get_command_line
    known = places(module)

    @wraps(real)
    def get_command_line(self: Any) -> str:
        command: str = real(self)
        return neutral(command, known) if (self._name, self._output_dir) == ("o", "") else command

    return get_command_line
