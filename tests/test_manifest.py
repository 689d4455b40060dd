from __future__ import annotations

import contextlib
import importlib.resources
import json
import time
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from factories import A100, AVX512, DELETE, H100, change, dump, make_cpu_document, make_document
from model_cache.errors import DamagedError
from model_cache.wheel.manifest import CONTAINS, MAX_BYTES, MODES, CpuRecord, GpuRecord, Manifest, from_dict, parse
from model_cache.wheel.names import data_package, folded, normalize, printable, unsafe_path
from model_cache.wheel.strict_json import MAX_DEPTH, loads
from model_cache.wheel.target_record import KINDS

SCHEMA = json.loads(importlib.resources.files("model_cache.wheel").joinpath("manifest.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def problems(document: Any) -> tuple[str, ...]:
    with pytest.raises(DamagedError) as caught:
        parse(dump(document))
    return caught.value.problems or (caught.value.message,)


def test_a_valid_manifest_is_read_and_written_back_unchanged() -> None:
    document = make_document(targets=(H100, A100))
    manifest = parse(dump(document))
    assert manifest.as_dict() == document
    assert manifest.model.id == "test-org/Synthetic-1B"
    assert manifest.target("a100-sxm4-80gb") is not None
    assert manifest.target("a100") is None
    assert len(manifest.blobs()) == 3  # the second rank's file is shared
    assert parse(manifest.to_json_bytes()) == manifest


def test_the_bytes_depend_on_the_value_alone() -> None:
    document = make_document()
    backwards = dict(reversed(document.items()))
    data = from_dict(document).to_json_bytes()
    assert from_dict(backwards).to_json_bytes() == data
    assert data.endswith(b"}\n")
    assert data.index(b'"build"') < data.index(b'"engine"') < data.index(b'"entries"')
    model = make_document(changes={"model.id": "org/Modèle"})
    assert "Modèle".encode() in from_dict(model).to_json_bytes()


def test_the_schema_is_one_and_accepts_what_the_parser_accepts() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for document in (make_document(), make_document(targets=(H100, A100)), make_cpu_document()):
        VALIDATOR.validate(document)
        parse(dump(document))


def test_a_cpu_is_described_by_its_instruction_set_and_needs_no_kernels_cuda_or_triton() -> None:
    document = make_cpu_document(changes={"engine.triton": None})
    manifest = parse(dump(document))
    assert isinstance(manifest.target("x86-64-avx512"), CpuRecord)
    assert isinstance(parse(dump(make_document())).targets[0], GpuRecord)
    assert manifest.as_dict() == document
    assert parse(manifest.to_json_bytes()) == manifest


def test_the_schema_and_the_parser_name_the_same_choices() -> None:
    assert set(SCHEMA["$defs"]["file"]["properties"]["contains"]["items"]["enum"]) == CONTAINS
    assert set(SCHEMA["$defs"]["file"]["properties"]["mode"]["enum"]) == MODES
    needed = {name for name, field in Manifest.__dataclass_fields__.items() if not field.metadata.get("later")}
    assert set(SCHEMA["required"]) == needed
    for kind, record in (("gpu", GpuRecord), ("cpu", CpuRecord)):
        assert set(SCHEMA["$defs"][kind]["required"]) == set(record.__dataclass_fields__)
        assert SCHEMA["$defs"][kind]["properties"]["kind"] == {"const": kind}
        assert kind in KINDS


BROKEN: list[tuple[str, Any]] = [
    ("name", "model_cache-x"),
    ("name", "model-cache-"),
    ("name", "model-cache-x/../y"),
    ("name", 3),
    ("version", "1.0 0"),
    ("version", "../1"),
    ("model.id", ""),
    ("model.id", "org/\x00M"),
    ("model.revision", 1),
    ("model.config_sha256", "ABC"),
    ("model.served_as", []),
    ("model.served_as", "org/M"),
    ("model.served_as.0", None),
    ("engine.python", ""),
    ("engine", []),
    ("engine.extra", "x"),
    ("targets", []),
    ("targets.0.sm_count", "132"),
    ("targets.0.sm_count", -1),
    ("targets.0.sm_count", True),
    ("targets.0.sm_count", 2**63),
    ("targets.0.compute_capability", "9"),
    ("targets.0.unverified", [1]),
    ("targets.0.kind", "tpu"),
    ("targets.0.kind", "cpu"),
    ("targets.0.flags", ["avx2"]),
    ("serve.arguments", {}),
    ("serve.environment", {"A": 1}),
    ("build.mode", "guess"),
    ("build.stand_ins.0.count", -1),
    ("build.recipe_digest", "0" * 63),
    ("build.checkpoint", []),
    ("build.checkpoint", {"digest": "0" * 64, "files": 0, "tensors": 1, "values": 1}),
    ("build.checkpoint", {"digest": "0" * 63, "files": 1, "tensors": 1, "values": 1}),
    ("build.checkpoint", {"digest": "0" * 64, "files": 1, "tensors": 1}),
    ("host_answers.nvcc", ["x"]),
    ("factors.f", []),
    ("factors.f.x", 1),
    ("entries", []),
    ("entries", {}),
    ("entries.0", 1),
    ("entries.0.files", []),
    ("entries.0.key", "xyz"),
    ("entries.0.ranks", ["0"]),
    ("entries.0.files.0.mode", "0777"),
    ("entries.0.files.0.mode", "4755"),
    ("entries.0.files.0.size", 0),
    ("entries.0.files.0.size", 1.5),
    ("entries.0.files.0.sha256", "0" * 65),
    ("entries.0.files.0.contains", ["virus"]),
    ("entries.0.files.0.link", "x"),
    ("kernels.0.registers", None),
    ("hints", {"modelinfos/x.json": 1}),
    *(("hints", {path: "{}"}) for path in (
        "x.json", "a/b/x.json", "../x.json", "/a/x.json", "a/x", "a/.json", ".model-cache/x.json", "a\\x.json",
        ".a/x.json",
    )),
    ("hints", {"modelinfos/x.json": "y" * 70_000}),
    ("hints", {f"modelinfos/{n}.json": "{}" for n in range(65)}),
    ("kernels.0.arch", "SM 90"),
    *((f"entries.0.{field}", path) for field in ("directory", "files.0.path") for path in (
        "", "/etc/x", "../x", "a/../b", "a/./b", ".", "a//b", "a/", "C:/x", "c:x", "a\\b", "a\x00b", "a\nb",
        ".model-cache/x", "a/.Model-Cache-tmp-1/b", "x" * 1025,
    )),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), BROKEN, ids=lambda value: repr(value)[:40])
def test_a_wrong_value_is_refused_by_parser_and_schema_and_named(path: str, value: Any) -> None:
    document = make_document(changes={path: value})
    named = problems(document)
    leaf = path.split(".")[-1]
    parent = path.split(".")[-2] if "." in path else path
    assert any(leaf in problem or parent in problem or "JSON" in problem for problem in named), named
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(document)


def fields(value: Any, prefix: str = "") -> list[str]:
    found = []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        free = (
            prefix in ("factors.", "factors.f.", "hints.", "host_answers.", "serve.environment.", "unkeyed.")
            or "overrides" in prefix
        )
        if isinstance(value, dict) and not free:
            found.append(f"{prefix}{key}")
        if key == 0 or isinstance(value, dict):
            found += fields(item, f"{prefix}{key}.")
    return found


REQUIRED = [(make_document, path) for path in fields(make_document())]
REQUIRED += [(make_cpu_document, path) for path in fields(make_cpu_document()) if path.startswith("targets.")]


@pytest.mark.parametrize(("make", "path"), REQUIRED)
def test_every_field_is_required(make: Callable[..., dict[str, Any]], path: str) -> None:
    document = make(changes={path: DELETE})
    if path != "schema_version":
        assert any("is missing" in problem for problem in problems(document))
    else:
        assert "schema_version is None" in problems(document)[0]
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(document)


def test_all_problems_are_told_at_once_with_their_places() -> None:
    document = make_document(changes={"engine.python": 3, "targets.0.sm_count": "x", "entries.1.key": "", "colour": 1})
    named = "\n".join(problems(document))
    for place in ("engine.python must be", "targets[0].sm_count must be", "entries[1].key has", "colour is not known"):
        assert place in named


def test_an_unknown_schema_version_is_told_alone() -> None:
    document = make_document(changes={"schema_version": 2, "entries": "now something else"})
    with pytest.raises(DamagedError, match=r"schema_version is 2, this hatch-model-cache reads 1; install"):
        parse(dump(document))
    for version in (True, "1", None, [1]):
        with pytest.raises(DamagedError):
            parse(dump(make_document(changes={"schema_version": version})))


@pytest.mark.parametrize("document", [None, [], "x", 1, True, {}])
def test_a_wrong_top_level_type_is_refused(document: Any) -> None:
    assert problems(document)


INCONSISTENT: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "unknown target": (lambda d: change(d, "entries.0.target", "b200"), "'b200' is not one of the targets"),
    "unknown kernel target": (lambda d: change(d, "kernels.0.target", "b200"), "kernels[0].target"),
    "unknown served name": (lambda d: change(d, "entries.0.served_as", "x"), "is not one of model.served_as"),
    "unknown factors": (lambda d: change(d, "entries.0.factors", "g"), "is not in factors"),
    "target twice": (lambda d: d["targets"].append(dict(H100)), "targets holds 'h100-sxm5-80gb' twice"),
    "directory twice": (lambda d: change(d, "entries.0.directory", d["entries"][1]["directory"]), "twice"),
    "directory twice but for case": (
        lambda d: (change(d, "entries.0.directory", "a/ABC"), change(d, "entries.1.directory", "a/abc")),
        "letter case aside",
    ),
    "directory in directory": (
        lambda d: (change(d, "entries.0.directory", "a/b"), change(d, "entries.1.directory", "a/b/c")),
        "lies inside",
    ),
    "file twice": (lambda d: change(d, "entries.0.files.0.path", "rank_1_0/model"), "twice"),
    "file twice but for case": (lambda d: change(d, "entries.0.files.0.path", "RANK_1_0/model"), "letter case aside"),
    "file in file": (lambda d: change(d, "entries.0.files.0.path", "rank_1_0/model/x"), "lies inside"),
    "GPU without kernels": (lambda d: change(d, "kernels", []), "is a GPU, and there is no kernel for it"),
    "GPU without CUDA": (lambda d: change(d, "engine.cuda", None), "engine.cuda is null"),
    "GPU without Triton": (lambda d: change(d, "engine.triton", None), "engine.triton is null"),
    "CPU with kernels": (lambda d: change(d, "targets.0", {**AVX512, "name": H100["name"]}), "kernels are a GPU's"),
    "CPU without a shared object": (lambda d: d["targets"].append(AVX512), "no entry for it holds a shared object"),
    "one hash, two sizes": (lambda d: change(d, "entries.0.files.1.size", 5), "another size for the same sha256"),
}


@pytest.mark.parametrize("name", INCONSISTENT)
def test_fields_that_contradict_each_other_are_refused(name: str) -> None:
    edit, message = INCONSISTENT[name]
    document = make_document()
    edit(document)
    assert any(message in problem for problem in problems(document)), problems(document)


BYTES: dict[str, bytes] = {
    "empty": b"",
    "cut": dump(make_document())[:-30],
    "not utf-8": dump(make_document()).replace(b"image", b"im\xffge"),
    "utf-16": json.dumps(make_document()).encode("utf-16"),
    "key twice": b'{"schema_version": 1, "schema_version": 1}',
    "NaN": b'{"schema_version": NaN}',
    "infinity": b'{"schema_version": -Infinity}',
    "float": b'{"schema_version": 1.0}',
    "number of 5000 digits": b'{"schema_version": ' + b"1" * 5000 + b"}",
    "trailing data": dump(make_document()) + b"{}",
    "deep list": b"[" * 100_000 + b"]" * 100_000,
    "deep object": b'{"a":' * 100_000,
    "deep behind a string": b'["' + b'\\"[' * 100 + b'",' + b"[" * (MAX_DEPTH + 1),
    "open string": b'"' + b'\\"' * 500_000,
    "open strings": b'"' * 499_999,
    "backslash at the end": b'"abc\\',
    "too large": b" " * (MAX_BYTES + 1),
    "surrogate": dump(make_document(changes={"model.id": "\ud800"})),
    "surrogate in a path": dump(make_document(changes={"entries.0.directory": "a\udfff"})),
    "surrogate in a key": dump(make_document(changes={"factors.f": {"\ud800": "x"}})),
}


@pytest.mark.parametrize("name", BYTES)
def test_hostile_bytes_are_refused_quickly(name: str) -> None:
    start = time.perf_counter()
    with pytest.raises(DamagedError):
        parse(BYTES[name])
    assert time.perf_counter() - start < 2


def test_brackets_in_strings_are_no_depth() -> None:
    assert loads(b'["[[[[[[[[[[[[[[[[[[[[[[\\"[["]', "x", 1000) == ['[[[[[[[[[[[[[[[[[[[[[["[[']


def test_depth_is_bounded_before_anything_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loads(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, "x", 1000)
    monkeypatch.setattr(json, "loads", None)
    with pytest.raises(DamagedError, match="nested deeper than"):
        loads(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "x", 1000)


def nested() -> st.SearchStrategy[Any]:
    scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.floats()
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=10,
    )


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(place=st.sampled_from(REQUIRED), value=nested())
def test_no_value_anywhere_raises_anything_else(place: tuple[Callable[..., Any], str], value: Any) -> None:
    make, path = place
    document = make()
    change(document, path, value)
    try:
        manifest = parse(dump(document))
    except DamagedError:
        return
    assert parse(manifest.to_json_bytes()) == manifest


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=300), cut=st.integers(0, 4000))
def test_no_bytes_raise_anything_else(data: bytes, cut: int) -> None:
    valid = dump(make_document())
    for candidate in (data, valid[:cut] + data + valid[cut + len(data) :]):
        with contextlib.suppress(DamagedError):
            parse(candidate)


@pytest.mark.parametrize("path", ["a", "a/b.c", "torch_compile_cache/x/rank_0_0/model", "ümläut/x", "a..b/...", "a b"])
def test_safe_paths(path: str) -> None:
    assert unsafe_path(path) is None


def test_names_are_compared_as_installers_do() -> None:
    assert normalize("Model_Cache-foo.bar--SM_90") == "model-cache-foo-bar-sm-90"
    assert data_package("model-cache-llama-3.1-8b") == "model_cache_llama_3_1_8b"
    assert folded("Straße/É") == folded("STRASSE/e\u0301")
    assert printable("a\x1b[31m\nb") == "a\\x1b[31m\\x0ab"
    assert printable("a\udcff\ud800\u202eb") == "a\\udcff\\ud800\\u202eb"
