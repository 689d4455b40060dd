"""Which interpreter a compile takes, and what it may see of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hatch_model_cache.compiling import interpreter
from model_cache.errors import UsageError

ABSENT = "an_engine_that_nobody_has"


def python(directory: Path, name: str, body: str = f'exec {sys.executable} "$@"') -> str:
    """An executable shell script: this Python by default."""
    path = directory / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(interpreter.VARIABLE, raising=False)


def test_the_variable_wins_over_the_recipe_and_this_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, of_recipe = python(tmp_path, "given"), python(tmp_path, "of-recipe")
    monkeypatch.setenv(interpreter.VARIABLE, given)
    assert interpreter.choose("pytest", of_recipe) == given


def test_the_recipe_wins_over_this_interpreter(tmp_path: Path) -> None:
    of_recipe = python(tmp_path, "of-recipe")
    assert interpreter.choose("pytest", of_recipe) == of_recipe


def test_an_empty_variable_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(interpreter.VARIABLE, "")
    of_recipe = python(tmp_path, "of-recipe")
    assert interpreter.choose("pytest", of_recipe) == of_recipe


def test_this_interpreter_if_it_has_the_engine() -> None:
    assert interpreter.choose("pytest", None) == sys.executable


def test_the_engine_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loud_engine.py").write_text("raise SystemExit('imported')")
    (tmp_path / "loud_engine-1.0.dist-info").mkdir()
    (tmp_path / "loud_engine-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: loud-engine\nVersion: 1.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert interpreter.choose("loud-engine", None) == sys.executable


def test_no_engine_anywhere_says_all_ways_out() -> None:
    with pytest.raises(UsageError) as caught:
        interpreter.choose(ABSENT, None)
    for part in (ABSENT, interpreter.VARIABLE, "`python` in the recipe", "MODEL_CACHE_ARTIFACTS", "./artifacts"):
        assert part in caught.value.message


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("broken", "exit 3", "is no Python interpreter (exit status 3)"),
        ("no-python", "exit 0", "is no Python interpreter (exit status 0)"),
        ("chatty", "echo python is nice", "is no Python interpreter"),
        ("old", "echo python 3 10", "is Python 3.10; 3.11 or later is needed"),
    ],
)
@pytest.mark.parametrize("of_recipe", [True, False])
def test_an_unusable_interpreter_is_refused_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str, message: str, of_recipe: bool
) -> None:
    path = python(tmp_path, name, body)
    if not of_recipe:
        monkeypatch.setenv(interpreter.VARIABLE, path)
    with pytest.raises(UsageError) as caught:
        interpreter.choose("pytest", path if of_recipe else None)
    assert message in caught.value.message
    assert path in caught.value.message
    assert ("of the recipe" if of_recipe else interpreter.VARIABLE) in caught.value.message


def test_a_later_python_is_taken(tmp_path: Path) -> None:
    later = python(tmp_path, "later", "echo python 4 0")
    assert interpreter.choose(ABSENT, later) == later


@pytest.mark.parametrize("path", ["python3", "./venv/bin/python"])
def test_a_relative_path_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="must be an absolute path"):
        interpreter.choose("pytest", path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be run: .*No such file"):
        interpreter.choose("pytest", str(tmp_path / "python"))


def test_a_file_that_is_not_executable(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("")
    with pytest.raises(UsageError, match=r"cannot be run: .*Permission denied"):
        interpreter.choose("pytest", str(tmp_path / "python"))


NEUTRAL = {
    "HOME",
    "TMPDIR",
    "LANG",
    "TZ",
    "HF_HUB_OFFLINE",
    "MODEL_CACHE_DISABLE",
    "CUDA_CACHE_DISABLE",
    "DO_NOT_TRACK",
    "HUMMING_DISABLE_PARALLEL_BUILD",
    "PYTHONHASHSEED",
    "TORCHINDUCTOR_COMPILE_THREADS",
}


def test_nothing_else_is_kept_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_TOKEN", "VLLM_USE_V1", "CXX", "CUDA_HOME", "LC_ALL", "PYTHONPATH", "http_proxy", "USER"):
        monkeypatch.setenv(name, "of this machine")
    monkeypatch.setenv("PATH", "/some/bin")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/some/lib")
    found = interpreter.scrubbed_environment({}, {}, tmp_path)
    assert set(found) == NEUTRAL | {"PATH", "LD_LIBRARY_PATH"}
    assert (found["PATH"], found["LD_LIBRARY_PATH"]) == ("/some/bin", "/some/lib")
    assert "of this machine" not in found.values()


def test_what_is_not_set_is_not_made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PATH", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert set(interpreter.scrubbed_environment({}, {}, tmp_path)) == NEUTRAL


def test_places_to_write_are_in_the_scratch_directory(tmp_path: Path) -> None:
    found = interpreter.scrubbed_environment({}, {}, tmp_path)
    for name in ("HOME", "TMPDIR"):
        assert Path(found[name]).parent == tmp_path


def test_the_recipes_environment_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/some/bin")
    wanted = {"VLLM_USAGE_SOURCE": "image", "HOME": "/root", "PATH": "/opt/bin"}
    found = interpreter.scrubbed_environment(wanted, {"PATH": "/of/the/engine", "VLLM_CACHE_ROOT": "/cache"}, tmp_path)
    assert {name: found[name] for name in wanted} == wanted
    assert found["VLLM_CACHE_ROOT"] == "/cache"
