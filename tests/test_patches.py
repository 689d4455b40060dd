"""The parts of the pretence that need no engine: patches, what a GPU takes, the stand-ins of CUDA's libraries."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from hatch_model_cache import targets
from hatch_model_cache.compile.pretend import libcuda
from hatch_model_cache.compile.pretend.device import Device
from hatch_model_cache.compile.pretend.patches import Patches

CUBINS = Path(__file__).parent / "data" / "cubins"
ABOUT = {"why": "a test", "checked": "test 1"}


class Asker:
    """What a patch may meet: a method, a static method, a property."""

    def method(self) -> str:
        return "real"

    @staticmethod
    def static() -> str:
        return "real"

    @property
    def prop(self) -> str:
        return "real"


class Child(Asker):
    """Inherits all of it."""


def test_everything_is_put_back_by_identity() -> None:
    before = dict(vars(Asker))
    patches = Patches()
    for name, value in (
        ("method", lambda self: "pretended"),
        ("static", staticmethod(lambda: "pretended")),
        ("prop", property(lambda self: "pretended")),
    ):
        patches.set(Asker, name, value, **ABOUT)
    assert (Asker().method(), Asker.static(), Asker().prop) == ("pretended",) * 3
    patches.undo()
    assert dict(vars(Asker)) == before
    assert all(vars(Asker)[name] is value for name, value in before.items())


def test_what_is_not_there_is_not_replaced_but_named() -> None:
    """Another version of the engine asks in another way, and the answer would be heard by nobody."""
    patches = Patches()
    with pytest.raises(AttributeError, match=r"^Asker has no gone, which is replaced because a test \(checked"):
        patches.set(Asker, "gone", 1, **ABOUT)
    assert patches.done == []
    assert not hasattr(Asker, "gone")


def test_what_is_inherited_is_not_left_in_the_child() -> None:
    patches = Patches()
    patches.set(Child, "method", lambda self: "pretended", **ABOUT)
    assert (Child().method(), Asker().method()) == ("pretended", "real")
    patches.undo()
    assert "method" not in vars(Child)


def test_two_patches_of_one_attribute_are_undone_in_reverse() -> None:
    real = Asker.static
    patches = Patches()
    for number in (1, 2):
        patches.set(Asker, "static", staticmethod(lambda number=number: number), **ABOUT)
    assert Asker.static() == 2
    patches.undo()
    assert Asker.static is real


def test_one_function_given_twice_is_two_objects() -> None:
    """Dynamo asserts that no function object stands in its map twice."""
    module = types.ModuleType("module_of_a_test")
    vars(module).update(a=None, b=None)
    patches, nothing = Patches(), lambda value=3, *, key=4: (value, key)
    patches.set(module, "a", nothing, **ABOUT)
    patches.set(module, "b", nothing, **ABOUT)
    assert len({id(module.a), id(module.b), id(nothing)}) == 3
    assert module.a() == module.b() == (3, 4)
    assert (module.a.__name__, module.a.__module__) == ("a", "module_of_a_test")


def test_everywhere_is_everywhere_in_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def real() -> str:
        return "real"

    modules = {name: types.ModuleType(name) for name in ("pkg_x", "pkg_x.asks", "pkg_x.own", "other_x")}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
        module.ask = real
    modules["pkg_x.own"].ask = own = lambda: "own"
    patches = Patches()
    patches.set_everywhere(modules["pkg_x"], "ask", lambda: "pretended", **ABOUT)
    assert {name: module.ask() for name, module in modules.items()} == {
        "pkg_x": "pretended",
        "pkg_x.asks": "pretended",
        "pkg_x.own": "own",
        "other_x": "real",
    }
    assert {(patch.owner, patch.name, patch.why) for patch in patches.done} == {
        ("pkg_x", "ask", "a test"),
        ("pkg_x.asks", "ask", "a test"),
    }
    patches.undo()
    assert [module.ask for module in modules.values()] == [real, real, own, real]


def test_what_is_no_attribute_is_called_back_once() -> None:
    seen: list[int] = []
    patches = Patches()
    patches.on_undo(seen.append, 1)
    patches.undo()
    patches.undo()
    assert seen == [1]


@pytest.mark.parametrize(
    ("target", "taken", "refused"),
    [
        ("a100-sxm4-80gb", ["sm_80"], ["sm_75", "sm_89", "sm_90a"]),
        ("l4", ["sm_80", "sm_89"], ["sm_75", "sm_90a"]),
        ("h100-sxm5-80gb", ["sm_90a"], ["sm_80", "sm_89", "sm_100a"]),
        ("b200", ["sm_100a", "sm_100"], ["sm_90a"]),
    ],
)
def test_a_kernel_of_another_architecture_is_refused_as_the_driver_does(
    target: str, taken: list[str], refused: list[str]
) -> None:
    device = Device(targets.load(target))
    for arch in taken + refused:
        data = (CUBINS / f"{arch}-ptxas.cubin").read_bytes()
        if arch in taken:
            assert device.load(data, "add_one", 0)[0] > 0
        else:
            with pytest.raises(RuntimeError, match=f"no kernel image is available .*{arch}"):
                device.load(data, "add_one", 0)
    assert [kernel.arch for kernel in device.log.kernels.values()] == taken


def test_a_kernel_is_noted_once() -> None:
    device = Device(targets.load("h100-sxm5-80gb"))
    told: list[str] = []
    device.log.on_kernel = lambda kernel: told.append(kernel.name)
    data = (CUBINS / "sm_90a-ptxas.cubin").read_bytes()
    assert device.load(data, "spill", 512) == device.load(data, "spill", 512)
    (kernel,) = device.log.kernels.values()
    assert told == ["spill"]
    assert (kernel.name, kernel.arch, kernel.shared) == ("spill", "sm_90a", 512)
    assert (kernel.registers, kernel.spills) == device.load(data, "spill", 512)


def test_libcuda_needs_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="no C compiler"):
        libcuda.install(tmp_path)


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho cannot do it >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="cannot do it"):
        libcuda.install(tmp_path)


ASK_CUDART = """
import ctypes, sys
from pathlib import Path
from hatch_model_cache import targets
from hatch_model_cache.compile.pretend import libcudart

libcudart.install(Path(sys.argv[1]), targets.load_gpu("h200"))
here = ctypes.CDLL(None)
number, properties = ctypes.c_int(7), ctypes.create_string_buffer(2048)
assert here.cudaGetDeviceCount(ctypes.byref(number)) == 0 and number.value == 1
assert here.cudaGetDevice(ctypes.byref(number)) == 0 and number.value == 0
assert here.cudaGetDeviceProperties(properties, 0) == 0
at = lambda offset: int.from_bytes(properties.raw[offset : offset + 4], "little")
print(properties.value.decode(), at(308), at(360), at(364), at(384), sep="|")
"""


def test_what_is_loaded_later_asks_the_stand_in_of_libcudart(tmp_path: Path) -> None:
    """Name, warp size, compute capability and SM count, where ``cudaDeviceProp`` of CUDA 13 has them."""
    command = [sys.executable, "-c", ASK_CUDART, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("NVIDIA H200|32|9|0|132\n", "")
