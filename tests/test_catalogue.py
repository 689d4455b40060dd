"""The catalogue of a static index: what is written is read back, and what somebody else wrote is not believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import model_cache
from factories import DELETE, change
from model_cache.errors import DamagedError
from model_cache.wheel.catalogue import Catalogue, Key, Model, Offer, Package, Part, Target, parse
from model_cache.wheel.manifest import Engine

SHA = "a" * 64
FILE = "model_cache_tiny_h100-1.0.0-cp311-none-any.whl"
SCHEMA = json.loads((Path(model_cache.__file__).parent / "wheel/catalogue.schema.json").read_text("utf-8"))


def part(url: str) -> Part:
    return Part(url=url, sha256=SHA, size=1)


def offer(file: str = FILE, **changes: Any) -> Offer:
    values: dict[str, Any] = {
        "url": f"wheels/{file}".replace("+", "%2B"),
        "sha256": SHA,
        "size": 10,
        "name": "model-cache-tiny-h100",
        "version": "1.0.0",
        "file": file,
        "metadata": part(f"wheels/{file}.metadata".replace("+", "%2B")),
        "requires_python": ">=3.11",
        "uploaded": "2026-11-30T12:00:00Z",
        "yanked": "",
        "model": Model(id="org/Tiny", revision=None, architectures=("Llama",), served_as=("org/Tiny", "./tiny")),
        "engine": Engine("vllm", "0.33.0", "2.14.0+cu130", "3.8.0", "13.0", "3.11.7", "linux_x86_64"),
        "targets": (Target(name="h100", hardware="NVIDIA H100"),),
        "payload_size": 20,
        "compile_seconds": 83,
        "manifest": part(f"wheels/{file}.manifest.json".replace("+", "%2B")),
        "signature": part(f"wheels/{file}.manifest.sig".replace("+", "%2B")),
        "keys": (Key(id=SHA, checked=True),),
    }
    return Offer(**(values | changes))


def serving() -> Package:
    file = "hatch_model_cache-0.1.0-py3-none-any.whl"
    metadata = part(f"wheels/{file}.metadata")
    return Package(
        url=f"wheels/{file}",
        sha256=SHA,
        size=5,
        name="hatch-model-cache",
        version="0.1.0",
        file=file,
        metadata=metadata,
    )


FULL = Catalogue(wheels=(offer(),), others=(serving(),))


@pytest.mark.parametrize(
    "catalogue",
    [
        FULL,
        Catalogue(wheels=()),
        Catalogue(wheels=(offer(yanked=None, uploaded=None, compile_seconds=None, signature=None, keys=()),)),
        Catalogue(wheels=(offer("model_cache_tiny_h100-1.0.0+cu130-cp311-none-any.whl"),)),
        Catalogue(wheels=(offer(engine=Engine("vllm", "0.33.0", "2.14.0", None, None, "3.11.7", "linux_x86_64")),)),
    ],
)
def test_what_is_written_is_read_back_and_is_of_the_published_shape(catalogue: Catalogue) -> None:
    data = catalogue.to_json_bytes()
    assert parse(data) == catalogue
    assert parse(data).to_json_bytes() == data
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(data))


WRONG = [
    ("wheels.0.url", "https://elsewhere.example/x.whl", "wrong form"),
    ("wheels.0.url", "//elsewhere.example/x.whl", "wrong form"),
    ("wheels.0.url", "wheels/../../x.whl", "has a part '..'"),
    ("wheels.0.url", "wheels/%2E%2E/x.whl", "has a part '..'"),
    ("wheels.0.url", "%2Fetc/passwd", "is absolute"),
    ("wheels.0.manifest.url", "javascript:alert(1)", "wrong form"),
    ("wheels.0.file", "model_cache_other-1.0.0-py3-none-any.whl", "not of the distribution"),
    ("wheels.0.file", "../model_cache_tiny_h100.whl", "wrong form"),
    ("wheels.0.sha256", "A" * 64, "wrong form"),
    ("wheels.0.size", -1, "must be an integer from 0"),
    ("wheels.0.size", 1.5, "not an integer"),
    ("wheels.0.yanked", "one\ntwo", "wrong form"),
    ("wheels.0.yanked", True, "must be a string"),
    ("wheels.0.model.served_as", [], "at least 1"),
    ("wheels.0.targets", [], "at least 1"),
    ("wheels.0.keys", [{"id": f"{i:064x}", "checked": False} for i in range(9)], "more than 8"),
    ("wheels.0.compile_seconds", DELETE, "is missing"),
    ("wheels.0.signature", DELETE, "is missing"),
    ("wheels.0.signature.url", f"wheels/{FILE}", "two files have one url"),
    ("others.0.extra", 1, "is not known"),
    ("wheels", {}, "must be a list"),
]


@pytest.mark.parametrize(
    ("where", "value", "problem"), WRONG, ids=[f"{where}-{i}" for i, (where, _, _) in enumerate(WRONG)]
)
def test_a_hostile_catalogue_is_refused(where: str, value: Any, problem: str) -> None:
    document = json.loads(FULL.to_json_bytes())
    change(document, where, value)
    with pytest.raises(DamagedError) as caught:
        parse(json.dumps(document).encode())
    assert problem in str(caught.value)


def test_another_schema_version_is_told_alone() -> None:
    with pytest.raises(DamagedError, match="schema_version is 2, this hatch-model-cache reads 1"):
        parse(b'{"schema_version": 2, "anything": []}')


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"schema_version": 1}', b"[" * 1000, b'{"a": 1, "a": 2}'])
def test_what_is_no_catalogue_at_all(data: bytes) -> None:
    with pytest.raises(DamagedError):
        parse(data)
