"""The checkpoint of a recipe: what is read of it, what is refused, what reaches the engine and the manifest."""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import checkpoints
import shown
from build_factories import CONFIG, NAME, TABLE, make_project
from fakes import fake_engine
from fakes.writable_hub import WritableHub
from hatch_model_cache.compiling import engine_process, interpreter
from hatch_model_cache.compiling.compiler import compile_recipe
from hatch_model_cache.packing import artifacts
from hatch_model_cache.recipe import checkpoint, safetensors_header
from hatch_model_cache.recipe.file import load_recipe
from hatch_model_cache.recipe.recipe import Recipe
from model_cache.commands.description import describe
from model_cache.errors import CompileError, DamagedError, ModelCacheError, UsageError

TENSORS = {"a.weight": ("BF16", [64, 32]), "a.scale": ("F32", []), "b.weight": ("F8_E4M3", [7, 3])}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A directory with a good file."""
    checkpoints.write(tmp_path / "weights/model.safetensors", TENSORS)
    return tmp_path / "weights"


def test_the_headers_are_read_and_of_the_tensors_only_the_tiny_ones(weights: Path) -> None:
    found = checkpoint.read(str(weights), None)
    assert {t.name: t.count for t in found.files["model.safetensors"].tensors} == {
        "a.scale": 1,
        "a.weight": 2048,
        "b.weight": 21,
    }
    assert found.named == ["a.scale"]
    assert list(found.values.values()) == [struct.pack("<f", 0.25)]
    assert found.record() == {"digest": found.digest(), "files": 1, "tensors": 3, "values": 1}


def test_the_digest_covers_headers_and_tiny_values_and_not_the_weights(weights: Path) -> None:
    path = weights / "model.safetensors"
    digests = {checkpoint.read(str(weights), None).digest()}
    with path.open("r+b") as file:
        file.seek(-40, os.SEEK_END)
        file.write(b"other weight numbers")
    assert checkpoint.read(str(weights), None).digest() in digests
    checkpoints.write(path, TENSORS, scale=0.5)
    digests.add(checkpoint.read(str(weights), None).digest())
    checkpoints.write(path, {**TENSORS, "b.weight": ("F8_E5M2", [7, 3])}, scale=0.5)
    digests.add(checkpoint.read(str(weights), None).digest())
    assert len(digests) == 3


def test_what_is_left_for_the_engine_is_a_header_and_a_hole(tmp_path: Path, weights: Path) -> None:
    shape = [1 << 14, 1 << 16]
    checkpoints.write(weights / "model.safetensors", {**TENSORS, "large": ("BF16", shape)})
    (tmp_path / "left").mkdir()
    checkpoint.read(str(weights), None).write(tmp_path / "left")
    left, original = tmp_path / "left/model.safetensors", weights / "model.safetensors"
    assert left.stat().st_size == original.stat().st_size > 2 << 30
    assert left.stat().st_blocks * 512 < 1 << 20
    again = checkpoint.read(str(tmp_path / "left"), None)
    assert again == checkpoint.read(str(weights), None)


HEADER = checkpoints.layout(TENSORS)
SIZE = 64 * 32 * 2 + 4 + 21


def changed(name: str, **fields: Any) -> dict[str, Any]:
    return {**HEADER, name: {**HEADER[name], **fields}}


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        pytest.param([], "its header is no JSON object", id="a list"),
        pytest.param(b"{", "is not valid JSON", id="no JSON"),
        pytest.param(b'{"a": {}, "a": {}}', "key 'a' is given twice", id="a name twice"),
        pytest.param(b'{"a":' * 20 + b"1" + b"}" * 20, "is nested deeper", id="deep"),
        pytest.param({"a": 1}, "'a' must have dtype, shape and data_offsets", id="no object"),
        pytest.param(changed("a.scale", more=1), "and nothing else", id="an unknown field"),
        pytest.param(changed("a.scale", dtype="F33"), "'a.scale' has the dtype 'F33'", id="an unknown dtype"),
        pytest.param(changed("a.scale", dtype=["F32"]), "'a.scale' has the dtype", id="a dtype that is no text"),
        pytest.param(changed("a.scale", shape=[-1]), "'a.scale' must have a shape", id="a negative size"),
        pytest.param(changed("a.scale", shape=[1 << 60]), "'a.scale' must have a shape", id="a huge size"),
        pytest.param(changed("a.scale", shape=[True]), "'a.scale' must have a shape", id="a truth for a size"),
        pytest.param(changed("a.scale", shape=[2]), "'a.scale' is F32 [2] in 4 bytes", id="another size"),
        pytest.param(changed("a.scale", data_offsets=[0]), "'a.scale' must have two data_offsets", id="one offset"),
        pytest.param(changed("a.weight", data_offsets=[0, 4096]), "'a.weight' overlaps", id="overlapping"),
        pytest.param(changed("b.weight", data_offsets=[4101, 4122]), "'b.weight' leaves a gap before it", id="a gap"),
        pytest.param({"a.scale": HEADER["a.scale"]}, "the file has ", id="bytes that nobody describes"),
        pytest.param({**HEADER, "x\n": HEADER["a.scale"]}, "is no name of a tensor", id="a control character"),
        pytest.param({**HEADER, "": HEADER["a.scale"]}, "is no name of a tensor", id="no name"),
        pytest.param({**HEADER, "x" * 600: HEADER["a.scale"]}, "is no name of a tensor", id="a long name"),
    ],
)
def test_a_wrong_header_is_refused(tmp_path: Path, header: object, expected: str) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(SIZE))
    with pytest.raises(DamagedError) as caught:
        checkpoint.read(str(tmp_path), None)
    assert expected in str(caught.value)
    assert str(tmp_path / "model.safetensors") in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"", "has 0 bytes", id="empty"),
        pytest.param(struct.pack("<Q", 1 << 62) + b"{}", "header would have 4611686018427387904 bytes", id="too long"),
        pytest.param(struct.pack("<Q", 3) + b"{}", "header would have 3 bytes", id="beyond the end"),
        pytest.param(b"version https://git-lfs.github.com/spec/v1\n", "is no safetensors file", id="a pointer"),
    ],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(DamagedError, match=expected):
        checkpoint.read(str(tmp_path), None)


GOOD = json.dumps(HEADER).encode()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.binary(max_size=6), st.integers(0, 6))
def test_a_mutated_header_is_read_or_refused(at: int, put: bytes, drop: int) -> None:
    text = GOOD[:at] + put + GOOD[at + drop :]
    data = struct.pack("<Q", len(text)) + text + bytes(SIZE)
    with suppress(DamagedError):
        found = safetensors_header.read(BytesIO(data), len(data), "mutated")
        assert all(8 + len(text) <= tensor.begin <= tensor.end <= len(data) for tensor in found.tensors)


def test_a_header_is_read_up_to_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: Path) -> None:
    monkeypatch.setattr(safetensors_header, "MAX_BYTES", 100)
    with pytest.raises(DamagedError, match="its header would have"):
        checkpoint.read(str(weights), None)


@pytest.mark.parametrize("kind", ["directory", "pipe", "dangling"])
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.safetensors"
    {"directory": path.mkdir, "pipe": lambda: os.mkfifo(path), "dangling": lambda: path.symlink_to("gone")}[kind]()
    with pytest.raises(ModelCacheError, match=r"model\.safetensors"):
        checkpoint.read(str(tmp_path), None)


def test_links_are_followed_as_in_the_cache_of_the_hub(tmp_path: Path, weights: Path) -> None:
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot/model.safetensors").symlink_to(weights / "model.safetensors")
    assert checkpoint.read(str(tmp_path / "snapshot"), None) == checkpoint.read(str(weights), None)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ({"weight_map": {"a": "gone.safetensors"}}, "names 'gone.safetensors', which is not there"),
        ({"weight_map": {"a": "../model.safetensors"}}, "names '../model.safetensors', which is not there"),
        ({"weight_map": {"a": 1}}, "has no weight_map"),
        ([], "has no weight_map"),
    ],
)
def test_an_index_must_name_files_that_are_there(weights: Path, index: object, expected: str) -> None:
    (weights / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DamagedError, match=expected):
        checkpoint.read(str(weights), None)


def test_tiny_tensors_far_apart_are_not_read(tmp_path: Path) -> None:
    """From the Hub, each would be a request."""
    header, at = {}, 0
    for number in range(100):
        for name, kind, size in ((f"{number}.scale", "F32", 4), (f"{number}.weight", "U8", 1 << 17)):
            shape = [] if kind == "F32" else [size]
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
            at += size
    text = json.dumps(header).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    assert len(checkpoint.read(str(tmp_path), None).named) == 64


# A recipe with one


def recipe(tmp_path: Path, value: object) -> Recipe:
    return load_recipe(make_project(tmp_path / "project", {**TABLE, "checkpoint": value}, name=NAME))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("nowhere", "'nowhere' is neither a directory (No such file or directory) nor ORG/NAME@COMMIT on the Hub"),
        ("model", "'model' holds no *.safetensors"),
        ("org/name@main", "'org/name@main' must name a whole commit of the Hub"),
        (3, "must be a string"),
    ],
)
def test_a_wrong_checkpoint_is_told_with_its_place(tmp_path: Path, value: object, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        recipe(tmp_path, value)
    assert any(f".checkpoint: {expected}" in problem for problem in caught.value.problems)


def test_the_digest_of_a_recipe_follows_the_headers_and_not_their_place(tmp_path: Path, weights: Path) -> None:
    without = load_recipe(make_project(tmp_path / "without", TABLE)).digest()
    first = recipe(tmp_path, str(weights)).digest()
    weights.rename(tmp_path / "moved")
    assert recipe(tmp_path, "../moved").digest() == first != without
    checkpoints.write(tmp_path / "moved/model.safetensors", {"a.weight": TENSORS["a.weight"]})
    assert recipe(tmp_path, "../moved").digest() not in (first, without)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fakes/fake_engine.py for the engine."""
    monkeypatch.setattr(engine_process, "NEUTRAL_PLACES", (tmp_path,))
    monkeypatch.setenv(interpreter.VARIABLE, str(fake_engine.interpreter(tmp_path)))


@pytest.mark.usefixtures("fake")
def test_the_manifest_says_that_headers_were_used(tmp_path: Path, weights: Path) -> None:
    compile_recipe(recipe(tmp_path, str(weights)), tmp_path / "out")
    contents = artifacts.read(tmp_path / "out").contents
    found = contents.build.checkpoint
    assert found is not None
    assert (found.files, found.tensors, found.values) == (1, 3, 1)
    assert any(line.strip().startswith("checkpoint headers of 3 tensors in 1 file") for line in describe(contents))


@pytest.mark.usefixtures("fake")
def test_what_does_not_fit_is_told_line_by_line(tmp_path: Path, weights: Path) -> None:
    table = {**TABLE, "checkpoint": str(weights), "environment": {"FAKE_ENGINE": "misfit"}}
    with pytest.raises(CompileError) as caught:
        compile_recipe(load_recipe(make_project(tmp_path / "project", table)), tmp_path / "out")
    assert caught.value.problems == ("a.weight is BF16 [64, 32]", "nothing fills b.weight")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("fake")
def test_the_guide(tmp_path: Path) -> None:
    checkpoints.write(tmp_path / "here/Qwen3-8B/model.safetensors", TENSORS)
    (tmp_path / "here/Qwen3-8B/config.json").write_text(json.dumps(CONFIG))
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$3" in *metadata*) echo "vllm 0.33.0";; *) exec {tmp_path / "fake-python"} "$@";; esac\n'
    )
    python.chmod(0o755)
    shown.run(shown.commands("checkpoint.md"), tmp_path / "here", swap={"/opt/vllm/bin/python": str(python)})
    assert artifacts.read(tmp_path / "here/artifacts").contents.build.checkpoint is not None


# On the Hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WritableHub]:
    with WritableHub(tmp_path / "the-hub") as running:
        running.patch(monkeypatch, tmp_path / "home")
        yield running


@pytest.fixture
def commit(hub: WritableHub, tmp_path: Path) -> str:
    """A repository with a checkpoint in two files of some megabytes each."""
    halves = {"a": ("BF16", [1 << 20]), "a.scale": ("F32", [])}, {"b": ("BF16", [1 << 20]), "b.scale": ("F32", [1])}
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = {"metadata": {"total_size": 4194312.0}, "weight_map": {"a": names[0], "b": names[1]}}
    files = [checkpoints.write(tmp_path / "there" / name, half) for name, half in zip(names, halves, strict=True)]
    (tmp_path / "there/model.safetensors.index.json").write_text(json.dumps(index))
    files.append(tmp_path / "there/model.safetensors.index.json")
    hub.create("org/name")
    return hub.commit("org/name", "main", {file.name: file.read_bytes() for file in files})


def test_of_a_checkpoint_on_the_hub_only_parts_are_asked_for(hub: WritableHub, commit: str, tmp_path: Path) -> None:
    found = checkpoint.read(f"org/name@{commit}", tmp_path)
    assert found == checkpoint.read(str(tmp_path / "there"), None)
    assert found.named == ["a.scale", "b.scale"]
    asked = [request for request in hub.requests if ".safetensors" in request.path and request.method == "GET"]
    parts = [request.status for request in asked if not request.path.endswith(".json")]
    assert parts == [206, 206], "one block of each file"


def test_a_commit_names_its_files_so_nothing_is_asked_for_the_digest(tmp_path: Path, hub: WritableHub) -> None:
    digests = {recipe(tmp_path, f"org/name@{digit * 40}").digest() for digit in "12"}
    assert len(digests) == 2
    assert hub.requests == []


def test_what_the_hub_has_not_is_told_in_one_line(hub: WritableHub, commit: str) -> None:
    with pytest.raises(ModelCacheError) as caught:
        checkpoint.read(f"org/other@{commit}", None)
    assert "\n" not in str(caught.value)
    assert "org/other" in str(caught.value)
    bare = hub.commit("org/name", "main", dict.fromkeys(hub.at("org/name", commit).files))
    with pytest.raises(ModelCacheError, match=r"holds no \*\.safetensors"):
        checkpoint.read(f"org/name@{bare}", None)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match=r"hatch-model-cache\[hub\]"):
        checkpoint.read(f"org/name@{'1' * 40}", None)
