from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build_factories import document, make_artifacts, make_project, write_artifacts
from hatch_model_cache.packing import artifacts
from hatch_model_cache.recipe.file import load_recipe
from model_cache.errors import DamagedError, NotFoundError


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, bytes]]:
    return document(load_recipe(make_project(tmp_path_factory.mktemp("recipe"))))


def test_read(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    found = artifacts.read(make_artifacts(tmp_path / "out", project))
    assert found.recipe_digest == load_recipe(project).digest()
    assert len(found.contents.entries) == 2
    assert {source for _, _, source in found.files()} == {"files/h100-sxm5-80gb/backbone/rank_0_0/model"}
    assert all(found.path(source).is_file() for _, _, source in found.files())


def test_write_and_read_agree(tmp_path: Path, described: tuple[dict[str, Any], dict[str, bytes]]) -> None:
    description, files = described
    write_artifacts(tmp_path, description, files)
    (tmp_path / "artifacts.json").unlink()
    written = artifacts.write(tmp_path, description)
    assert artifacts.read(tmp_path) == written
    first = (tmp_path / "artifacts.json").read_bytes()
    artifacts.write(tmp_path, json.loads(first))
    assert (tmp_path / "artifacts.json").read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["artifacts.json", "files", "logs"]


def test_a_wrong_description_is_not_written(tmp_path: Path, described: tuple[dict[str, Any], dict[str, bytes]]) -> None:
    with pytest.raises(DamagedError):
        artifacts.write(tmp_path, {**described[0], "entries": []})
    assert list(tmp_path.iterdir()) == []


def test_no_artifacts(tmp_path: Path) -> None:
    for missing in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NotFoundError, match=r"holds no artifacts\.json.*model-cache compile"):
            artifacts.read(missing)


def _delete(*keys: Any) -> Callable[[dict[str, Any]], None]:
    def change(value: Any) -> None:
        for key in keys[:-1]:
            value = value[key]
        del value[keys[-1]]

    return change


def _set(*keys: Any) -> Callable[[dict[str, Any]], None]:
    def change(value: Any) -> None:
        for key in keys[:-2]:
            value = value[key]
        value[keys[-2]] = keys[-1]

    return change


FILE = ("entries", 0, "files", 0)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_set("entries", []), "entries"),
        (_set("entries", {}), "entries"),
        (_set("entries", 0, "files", []), "entries[0].files"),
        (_set("entries", 0, "files", "x"), "entries[0].files"),
        (_set(*FILE, "size", 0), "entries[0].files[0].size"),
        (_set(*FILE, 3), "entries[0].files[0]"),
        (_delete(*FILE, "sha256"), "entries[0].files[0].sha256"),
        (_delete(*FILE, "source"), "entries[0].files[0].source must be a string"),
        (_set(*FILE, "source", "../x"), "entries[0].files[0].source '../x' has a part '..'"),
        (_set(*FILE, "source", "/etc/passwd"), "entries[0].files[0].source '/etc/passwd' is absolute"),
        (_set(*FILE, "source", "logs/x"), "entries[0].files[0].source 'logs/x' is not in files/"),
        (_set(*FILE, "path", "../x"), "entries[0].files[0].path"),
        (_set("entries", 0, "directory", "../x"), "entries[0].directory"),
        (_set("entries", 0, "target", "l4"), "entries[0].target"),
        (_delete("engine"), "engine"),
        (_delete("recipe_digest"), "recipe_digest must be a string"),
        (_set("recipe_digest", "0" * 64), "build.recipe_digest differs from recipe_digest"),
        (_set("build", "mode", "guess"), "build.mode"),
        (_set("name", "model-cache-x"), "name: unknown field"),
        (_set("surprise", 1), "surprise"),
    ],
)
def test_what_is_malformed_is_named(
    tmp_path: Path,
    described: tuple[dict[str, Any], dict[str, bytes]],
    change: Callable[[dict[str, Any]], None],
    expected: str,
) -> None:
    description = copy.deepcopy(described[0])
    change(description)
    with pytest.raises(DamagedError) as caught:
        artifacts.from_document(description, tmp_path)
    assert any(problem.startswith(expected) for problem in caught.value.problems), caught.value.problems


def test_problems_of_both_kinds_come_together(
    tmp_path: Path, described: tuple[dict[str, Any], dict[str, bytes]]
) -> None:
    description = copy.deepcopy(described[0])
    del description["entries"][0]["files"][0]["source"]
    description["engine"]["torch"] = 2
    with pytest.raises(DamagedError) as caught:
        artifacts.from_document(description, tmp_path)
    assert {problem.split()[0] for problem in caught.value.problems} == {
        "entries[0].files[0].source",
        "engine.torch",
    }


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b'{"a": 1, "a": 2}', b"[" * 100_000])
def test_bytes_that_are_no_description(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "artifacts.json").write_bytes(data)
    with pytest.raises(DamagedError, match=r"artifacts\.json"):
        artifacts.read(tmp_path)


def test_another_schema_version_is_told_alone(
    tmp_path: Path, described: tuple[dict[str, Any], dict[str, bytes]]
) -> None:
    with pytest.raises(DamagedError, match="schema_version is 2"):
        artifacts.from_document({**described[0], "schema_version": 2}, tmp_path)
