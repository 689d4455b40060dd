"""The record of what a compiled function may be called with: its file, and what is read off a program for it."""

from __future__ import annotations

import enum
import functools
import hashlib
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model_cache.engine import program
from model_cache.errors import DamagedError
from model_cache.wheel.calls import Calls, Dimension, Limit, Owner, Tensor, parse

CALLS = Calls(
    tensors=(Tensor("out.weight", "torch.float32", "cpu", ("8", "8"), ()),),
    tied={},
    leaves=(Tensor("input 0", "torch.float32", "cuda:0", ("s0", "8"), ("1", "4")),),
    dimensions=(Dimension("s0", 2, 64),),
    limits=(Limit(("s0", "s0"), 1024),),
    inputs={"tuple": [0]},
    outputs={"tuple": [{"dict": {"scores": 0, "more": {"list": [1]}}}]},
    owners=(
        Owner(("",), "block.Block", {"eps": "1e-05"}, {"config": 1}),
        Owner(("", "config"), "block.Config", {}, {}),
    ),
    absent={"block.Block": "forward"},
    sources={"block": "0" * 64},
    functions=("block:Block.forward",),
    settings={"default dtype": "torch.float32"},
)


def test_it_is_read_as_it_was_written() -> None:
    assert parse(CALLS.to_json_bytes()) == CALLS


def broken(change: Callable[[dict[str, Any]], object]) -> str:
    """What is said of a changed file."""
    document = json.loads(CALLS.to_json_bytes())
    change(document)
    with pytest.raises(DamagedError) as caught:
        parse(json.dumps(document).encode())
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: d.update(format=2), "its format is not 1"),
        (lambda d: d.update(more=1), "more is not known"),
        (lambda d: d.pop("sources"), "sources is missing"),
        (lambda d: d.update(inputs={"tuple": [1]}), "inputs: do not hold each of 1 leaves once"),
        (lambda d: d.update(inputs={"tuple": [0, 0]}), "inputs: do not hold each of 1 leaves once"),
        (lambda d: d.update(inputs={"set": [0]}), "inputs: do not hold each of 1 leaves once"),
        (lambda d: d.update(inputs={"tuple": [True]}), "inputs: do not hold each of 1 leaves once"),
        (lambda d: d.update(outputs={"tuple": [2**80]}), "outputs: do not hold each result once"),
        (lambda d: d.update(dimensions=[]), "input 0: there is no dimension s0"),
        (lambda d: d["limits"][0].update(names=["s1"]), "limits: no input has s1"),
        (lambda d: d["leaves"][0].update(stride=["1"]), "input 0: has 2 sizes and 1 strides"),
        (lambda d: d["leaves"][0].update(device="mps"), "leaves[0].device has a wrong form: 'mps'"),
        (lambda d: d["leaves"][0].update(dtype="os.system"), "leaves[0].dtype has a wrong form: 'os.system'"),
        (lambda d: d["owners"][0].update(objects={"config": 7}), "owners:  leads to no owner"),
        (lambda d: d.update(sources={"../block": ""}), "sources: '../block' is no name"),
        (lambda d: d.update(functions=["block.forward"]), "functions[0] has a wrong form: 'block.forward'"),
    ],
)
def test_what_is_wrong_with_it_is_said(change: Callable[[dict[str, Any]], object], expected: str) -> None:
    assert expected in broken(change)


def test_hostile_nesting_is_no_crash() -> None:
    with pytest.raises(DamagedError, match="nested deeper"):
        parse(b'{"format":1,"inputs":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


class Color(enum.Enum):
    """Some."""

    RED = 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "None"),
        (True, "True"),
        (1, "1"),
        (1.0, "1.0"),
        ("a'b", '"a\'b"'),
        ((1, [2.5]), "tuple(1, list(2.5))"),
        ({"a": 1}, "dict('a', 1)"),
        ({2, 1}, "set(1, 2)"),
        (Color.RED, "test_calls.Color.RED"),
        (len, "builtins.len"),
        (Color, "test_calls.Color"),
        (functools.partial(len, 1), "partial(builtins.len, tuple(1), dict())"),
    ],
)
def test_values_that_can_be_compared(value: object, expected: str) -> None:
    assert program.text(value) == expected


def test_values_that_cannot() -> None:
    found = [program.text(value) for value in (object(), [object()], {"a": object()}, functools.partial(len, object()))]
    assert found == [None] * 4


def test_what_reading_an_attribute_gives() -> None:
    config = types.SimpleNamespace(eps=1e-5, other=object())
    assert program.value(config, "eps") == "1e-05"
    assert program.value(config, "other") == program.value(config, "gone") == program.NO_VALUE
    assert program.value(Patched(), "value") == "1", "of a class, and computed"


def test_a_source_is_found_without_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "a_program"
    (package / "inner").mkdir(parents=True)
    for folder in (package, package / "inner"):
        (folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "inner" / "model.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    digest = hashlib.sha256(b"x = 1\n").hexdigest()
    assert program.source("a_program.inner.model") == digest
    assert program.source("a_program.inner.other") is None
    assert program.source("no_such_program.model") is None
    assert program.source("sys") is None

    loaded = types.ModuleType("a_program.inner.model")
    loaded.__file__ = str(tmp_path / "other.py")
    (tmp_path / "other.py").write_text("x = 2\n")
    monkeypatch.setitem(sys.modules, loaded.__name__, loaded)
    assert program.source("a_program.inner.model") != digest, "what is imported counts"


class Patched:
    """Has methods that somebody replaces."""

    def method(self) -> None: ...

    @property
    def value(self) -> int:
        return 1

    @classmethod
    def make(cls) -> None: ...

    @functools.lru_cache  # noqa: B019 - never called
    def wrapped(self) -> None: ...


def test_a_replaced_function_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"test_calls:Patched.{name}" for name in ("method", "value", "make", "wrapped")]
    assert all(map(program.is_its_own, [*names, "test_calls:broken", "no_such_program.model:forward"]))
    monkeypatch.setattr(Patched, "method", broken)
    monkeypatch.setattr(Patched, "value", property(broken))
    assert [program.is_its_own(name) for name in names] == [False, False, True, True]
    assert not program.is_its_own("test_calls:gone")
