"""Names of CPU kernels that do not depend on where an environment lies."""

from __future__ import annotations

import sysconfig
import types
from pathlib import Path

from model_cache.engine import kernel_names

COMMAND = "g++ i -march=native -I{include} -I{torch}/include -fopenmp -o o.so -ltorch -L{lib} -L{torch}/lib"


class Builder:
    """What is used of torch's CppBuilder."""

    def __init__(self, command: str, name: str, output_dir: str) -> None:
        self._command, self._name, self._output_dir = command, name, output_dir

    def get_command_line(self) -> str:
        """The command, as it would be run."""
        return self._command


def module(torch: Path) -> types.ModuleType:
    found = types.ModuleType(kernel_names.MODULE)
    found.__file__ = str(torch / "_inductor" / "cpp_builder.py")
    found.CppBuilder = type("CppBuilder", (Builder,), {})
    return found


def command(torch: str) -> str:
    include, lib = sysconfig.get_path("include"), sysconfig.get_config_var("LIBDIR")
    return COMMAND.format(torch=torch, include=include, lib=lib)


def test_the_command_that_names_a_kernel_is_the_same_in_two_environments() -> None:
    told = []
    for place in ("/venv/one/lib/python3.11/site-packages/torch", "/opt/other/torch"):
        torch = module(Path(place))
        neutral = kernel_names.named_neutrally(torch)
        told.append(neutral(torch.CppBuilder(command(place), "o", "")))
    assert told[0] == told[1]
    assert told[0] == (
        "g++ i -march=native -I<python-include> -I<torch>/include -fopenmp -o o.so -ltorch -L<python-lib> -L<torch>/lib"
    )


def test_a_command_that_is_run_is_left_alone() -> None:
    torch = module(Path("/venv/torch"))
    neutral = kernel_names.named_neutrally(torch)
    for name, directory in (("cabc.main", "/cache/ab"), ("o", "/cache/ab")):
        assert neutral(torch.CppBuilder(command("/venv/torch"), name, directory)) == command("/venv/torch")


def test_other_directories_stay() -> None:
    assert kernel_names.neutral("g++ -I/conda/include -L/venv/torch", [("<torch>", "/venv/torch")]) == (
        "g++ -I/conda/include -L<torch>"
    )
    assert kernel_names.neutral("g++ /venv/torch/x.cpp", [("<torch>", "/venv/torch")]) == "g++ /venv/torch/x.cpp"
