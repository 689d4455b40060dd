"""What a pickle would import: read, never done. The pickles planted here would touch a file if anything ran them."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import struct
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build_factories import make_artifacts, make_project
from factories import ENTRY_ONE, make_wheel, sha
from hatch_model_cache.packing.artifacts import read
from hatch_model_cache.packing.pack import pack
from hatch_model_cache.recipe.file import load_recipe
from model_cache import cli
from model_cache.errors import DamagedError, NotTrustedError
from model_cache.origin.keyring import Keyring
from model_cache.origin.trust import Trust
from model_cache.wheel import allowed_globals, contents, pickles
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.pickles import CAREFUL, Global, Report, report
from model_cache.wheel.verify import DeadlineError, read_manifest, verify

VLLM = allowed_globals.rules("vllm")


class Touch:
    """Pickles to a call that would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def problems(data: bytes) -> list[str]:
    return list(VLLM.problems(report(data)))


def text(value: str) -> bytes:
    """The opcode that pushes a string."""
    return b"\x8c" + bytes([len(value)]) + value.encode()


def call(module: str, name: str, arguments: bytes) -> bytes:
    """The opcodes of a call; arguments: those that push the tuple."""
    return text(module) + text(name) + b"\x93" + arguments + b"R"


def program(body: bytes) -> bytes:
    return b"\x80\x04" + body + b"."


# What is found


@pytest.mark.parametrize("protocol", range(6))
def test_names_are_found_in_every_protocol(protocol: int, tmp_path: Path) -> None:
    found = report(pickle.dumps([OrderedDict(a=1), Touch(tmp_path / "x")], protocol))
    assert found.globals[Global("posix", "system")] == 1
    assert found.globals[Global("collections", "OrderedDict")] == 1
    assert found.problems == []
    assert not (tmp_path / "x").exists()


def test_plain_data_imports_nothing() -> None:
    found = report(pickle.dumps({"a": [1, 2.5, None, True, b"xyz!", ("t",), {1}, frozenset("a")]}))
    assert (found.globals, found.problems, found.pickles) == ({}, [], 1)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_pickles_in_bytes_are_found_at_any_depth(protocol: int, tmp_path: Path) -> None:
    data = pickle.dumps(Touch(tmp_path / "x"), protocol)
    for _ in range(4):
        data = pickle.dumps({"inner": data, "other": b"\x7fELF not a pickle"}, 4)
    found = report(data)
    assert found.pickles == 5
    assert Global("posix", "system") in found.globals
    assert not (tmp_path / "x").exists()


def test_an_old_pickle_in_bytes_is_found(tmp_path: Path) -> None:
    inner = b"cos\nsystem\n(S'touch x'\ntR."
    assert Global("os", "system") in report(pickle.dumps([inner])).globals
    # It would have run before it breaks off.
    assert Global("os", "system") in report(pickle.dumps([inner[:-1] + b"\xff"])).globals
    assert Global("os", "system") in report(pickle.dumps([bytearray(inner)], 5)).globals


def test_text_in_bytes_is_no_pickle() -> None:
    found = report(pickle.dumps([b"class X:\n    pass\n", b"(1, 2)\n.", b"#loc\n", b"ab", b""]))
    assert found.problems == []
    assert found.globals == {}


def test_names_put_together_on_the_stack_are_followed() -> None:
    # The two strings come from the memo, in the other order, over a duplicate that is dropped again.
    body = text("system") + b"\x94" + b"0" + text("os") + b"\x94" + b"20" + b"0" + b"h\x01" + b"h\x00" + b"\x93"
    assert pickletools.dis(program(body), out=open(os.devnull, "w")) is None  # noqa: SIM115
    assert Global("os", "system") in report(program(body)).globals
    assert pickle.loads(program(body)) is os.system  # the reader agrees with the real one


def test_a_name_may_be_the_same_string_twice() -> None:
    assert report(program(text("this") + b"2\x93")).globals == {Global("this", "this"): 1}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"K\x01" + text("system") + b"\x93", "computes"),
        (text("os") + b"]" + b"\x93", "computes"),
        (call("builtins", "str", b")") + text("system") + b"\x93", "computes"),
        (text("os\nx") + text("system") + b"\x93", "no name"),
        (text("os") + text("") + b"\x93", "no name"),
        (b"\x82\x01", "by a number"),
        (b"0", "empty stack"),
        (b"h\x05", "not put aside"),
        (b"t", "empty stack"),
    ],
)
def test_what_cannot_be_followed_is_a_problem(body: bytes, why: str) -> None:
    assert any(why in problem for problem in problems(program(body))), problems(program(body))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no pickle"),
        (b"\x80\x04N", "no pickle"),
        (b"zzz", "no pickle"),
        (b"\x80\x04N." + b"more", "4 bytes after its end"),
        (b"\x80\x04B\xff\xff\xff\x7fx.", "no pickle"),
    ],
)
def test_a_file_that_is_not_one_pickle_is_a_problem(data: bytes, why: str) -> None:
    assert any(why in problem for problem in problems(data)), problems(data)


# The list


def test_dangerous_names_are_in_no_list() -> None:
    names = {str(name) for name in VLLM.names}
    for module in (
        "os",
        "posix",
        "nt",
        "subprocess",
        "sys",
        "importlib",
        "shutil",
        "socket",
        "ctypes",
        "runpy",
        "code",
    ):
        assert not any(name.startswith(f"{module}.") for name in names), module
    for name in ("eval", "exec", "compile", "__import__", "open", "setattr", "globals", "map", "filter", "vars"):
        assert f"builtins.{name}" not in names
    for name in ("types.FunctionType", "types.CodeType", "functools.partial", "operator.attrgetter", "pickle.loads"):
        assert name not in names
    assert not any("_create_function" in name or "_create_code" in name or "_import_module" in name for name in names)


def test_every_careful_name_that_is_allowed_is_bound_to_its_arguments() -> None:
    assert {str(name) for name in VLLM.names & CAREFUL} == {
        "_functools.reduce",
        "_pickle.loads",
        "builtins.getattr",
        "builtins.type",
        "dill._dill._create_namedtuple",
        "dill._dill._eval_repr",
        "dill._dill._load_type",
    }


ELLIPSIS = call("dill._dill", "_eval_repr", text("Ellipsis") + b"\x85")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ELLIPSIS, ""),
        (call("dill._dill", "_eval_repr", text("__import__('os').abort()") + b"\x85"), "would call"),
        (call("dill._dill", "_eval_repr", text("quit") + b"\x85"), "would call"),
        (call("dill._dill", "_eval_repr", call("collections", "Counter", b")") + b"\x85"), "would call"),
        (call("dill._dill", "_load_type", text("int") + b"\x85"), ""),
        (call("dill._dill", "_load_type", text("FunctionType") + b"\x85"), "would call"),
        (call("dill._dill", "_create_namedtuple", text("x") + text("y") + text("os") + b"\x87"), "would call"),
        (call("builtins", "type", b"N\x85"), ""),
        (call("builtins", "type", b"(NNNNt"), "would call"),
        (call("builtins", "type", text("X") + b")" + b"}" + b"\x87"), "would call"),
        (
            call("builtins", "getattr", text("torch") + text("Tensor") + b"\x93" + text("storage") + b"\x86"),
            "attribute",
        ),
        (call("builtins", "getattr", b"N" + text("__class__") + b"\x86"), "calls getattr with something"),
        (
            call("_functools", "reduce", text("dill._dill") + text("_eval_repr") + b"\x93" + b"]" + b"\x86"),
            "hands dill._dill._eval_repr on",
        ),
        (b"]" + text("dill._dill") + text("_eval_repr") + b"\x93" + b"a", "hands dill._dill._eval_repr on"),
        (b"(NNNN" + text("builtins") + text("getattr") + b"\x93" + b"t", "hands builtins.getattr on"),
        (call("_pickle", "loads", b"C\x04\x80\x04N.\x85"), ""),
        (call("_pickle", "loads", b"C\x05hello\x85"), "no pickle"),
        (call("_pickle", "loads", call("collections", "Counter", b")") + b"\x85"), "unpickles bytes that it computes"),
        (call("sympy.core.mul", "Mul", text("__import__('os').abort()") + b"\x85"), "evaluate a text"),
        (call("sympy.core.symbol", "Symbol", text("s0") + b"\x85"), ""),
        (b"(" + text("x") + b"ios\nsystem\n", "would import os.system"),
        (b"(" + b"cos\nsystem\n" + text("x") + b"o", "would import os.system"),
        (text("torch") + text("Tensor.__class__") + b"\x93", "would import torch.Tensor.__class__"),
    ],
)
def test_careful_names_with_right_and_wrong_arguments(body: bytes, expected: str) -> None:
    found = problems(program(body))
    assert any(expected in problem for problem in found) if expected else found == []


def test_an_engine_without_a_list_may_import_nothing() -> None:
    unknown = allowed_globals.rules("another")
    assert list(unknown.problems(report(pickle.dumps(OrderedDict())))) == [
        "would import collections.OrderedDict (once)"
    ]
    assert list(unknown.problems(report(pickle.dumps([1])))) == []


# Bounds


def test_the_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "MAX_OPCODES", 1000)
    assert problems(program(b"N0" * 600 + b"N")) == ["holds more than 1000 opcodes"]
    monkeypatch.setattr(pickles, "MAX_NAMES", 3)
    many = b"".join(text("m") + text(f"n{i}") + b"\x930" for i in range(5))
    assert "imports more than 3 names" in problems(program(many + b"N"))
    monkeypatch.setattr(pickles, "MAX_BYTES", 10)
    assert problems(program(b"N0" * 600 + b"N")) == ["is larger than 10 bytes"]


DEEP = 200_000
TWICE = b"N" + b"2\x86" * 60
"""A tuple that holds one other twice, and so on, sixty levels deep: 2**60 values, written out."""


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x80\x02)" + b"\x85" * DEEP + b")R.", id="deep tuple called"),
        pytest.param(b"\x80\x02)" + b"\x85" * DEEP + b"a.", id="deep tuple appended"),
        pytest.param(b"\x80\x02" + TWICE + b")R.", id="wide tuple called"),
        pytest.param(b"\x80\x02cos\nsystem\n" + TWICE + b"\x85R.", id="wide tuple handed to a name"),
        pytest.param(b"\x80\x02c_functools\nreduce\n" + TWICE + b"\x85R.", id="wide tuple shown"),
        pytest.param(b"\x80\x02c_functools\nreduce\n(" + TWICE + b"tR.", id="wide tuple of a mark shown"),
    ],
)
def test_tuples_of_tuples_cost_no_stack_and_no_time(data: bytes) -> None:
    """In a process of its own: what this is about ends the interpreter, or holds it where no timeout reaches it."""
    code = "import sys; from model_cache.wheel.pickles import report; print(report(sys.stdin.buffer.read()).problems)"
    subprocess.run([sys.executable, "-c", code], input=data, check=True, timeout=20, capture_output=True)


def test_a_careful_name_in_a_large_tuple_is_seen() -> None:
    body = b"cbuiltins\ngetattr\n" + b"2\x86" * 12
    assert any("hands builtins.getattr on" in problem for problem in problems(program(b"cos\nsystem\n" + body + b"R")))


def test_a_tuple_of_two_texts_is_no_name() -> None:
    pair = text("builtins") + text("getattr") + b"\x86"
    found = pickles.report(program(pair + b")R"))
    assert not found.globals
    assert not found.problems


def test_bytes_in_bytes_have_a_limit() -> None:
    data = pickle.dumps("x")
    for _ in range(12):
        data = pickle.dumps(data)
    assert any("deeper than" in problem for problem in problems(data))


def test_a_length_that_is_a_lie_costs_nothing() -> None:
    assert problems(b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.")


def test_a_deadline_ends_the_work() -> None:
    def over() -> None:
        raise DeadlineError("over")

    with pytest.raises(DeadlineError):
        report(program(b"N0" * 100_000 + b"N"), over)


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda body: b"\x80\x04" + body + b"."))
@settings(max_examples=300, deadline=None)
def test_any_bytes_give_a_report(data: bytes) -> None:
    found = report(data)
    assert isinstance(found, Report)
    assert found.pickles or found.problems


# In a wheel


def poisoned(tmp_path: Path, **options: Any) -> tuple[Path, Path]:
    """A consistent wheel whose model, at a depth of two, would touch a file."""
    sentinel = tmp_path / "touched"
    data = pickle.dumps({"graph": pickle.dumps([Touch(sentinel)])})
    return make_wheel(tmp_path / "dist", {ENTRY_ONE: {"rank_0_0/model": data}}, **options), sentinel


def test_where_signatures_are_required_unknown_names_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Trusted for everything else: what is left to refuse is the pickle.
    monkeypatch.setattr(Trust, "judge", lambda *_: None)
    for contains in (["pickle"], ["json"]):  # what the manifest says of the file decides nothing
        wheel, sentinel = poisoned(tmp_path, changes={"entries.0.files.0.contains": contains})
        with WheelPayload(str(wheel)) as payload:
            verify(payload, trust=Trust("prefer", Keyring()))
            with pytest.raises(NotTrustedError) as caught:
                verify(payload, trust=Trust("require", Keyring()))
        assert caught.value.problems == (f"{ENTRY_ONE}/rank_0_0/model: would import posix.system (once)",)
        assert not sentinel.exists()


def test_what_the_engine_unpickles_is_looked_at_whatever_it_looks_like(tmp_path: Path) -> None:
    old = b"(S'touch x'\niposix\nsystem\n."  # of protocol 0: begins like nothing in particular
    wheel = make_wheel(tmp_path, {ENTRY_ONE: {"rank_0_0/model": old}}, changes={"entries.0.files.0.contains": ["json"]})
    with WheelPayload(str(wheel)) as payload:
        [looked] = contents.look(payload, read_manifest(payload).manifest)
    assert looked.problems == ("would import posix.system (once)",)


def test_what_is_looked_at_is_what_was_hashed(tmp_path: Path) -> None:
    data, other = pickle.dumps("right"), pickle.dumps("wrong")

    def change(files: dict[str, bytes]) -> None:
        files[next(name for name in files if "/blobs/" in name)] = other

    with WheelPayload(str(make_wheel(tmp_path, {ENTRY_ONE: {"rank_0_0/model": data}}, edit=change))) as payload:
        [looked] = contents.look(payload, read_manifest(payload).manifest)
    assert looked.problems == ("has other content than the manifest says",)


def test_inspect_lists_what_would_be_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel, sentinel = poisoned(tmp_path)
    assert cli.main(["inspect", str(wheel), "--pickles"]) == 0
    out = capsys.readouterr().out
    assert f"{ENTRY_ONE}/rank_0_0/model: 2 pickles, 1 name" in out
    assert out.endswith("\n  1 name, 1 outside the list\n")
    assert "  ! would import posix.system (once)" in out
    assert cli.main(["inspect", str(wheel), "--pickles", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["pickles"]
    assert row["globals"] == {"posix.system": 1}
    assert row["problems"] == ["would import posix.system (once)"]
    assert row["pickles"] == 2
    assert not sentinel.exists()
    assert cli.main(["inspect", str(wheel)]) == 0
    assert "system" not in capsys.readouterr().out


def test_a_build_refuses_unknown_names(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    out = make_artifacts(tmp_path / "artifacts", project)
    description = json.loads((out / "artifacts.json").read_text())
    file = description["entries"][0]["files"][0]
    data = pickle.dumps([b"graph", pickle.dumps(Touch(tmp_path / "touched"))])
    (out / file["source"]).write_bytes(data)
    for entry in description["entries"]:
        for one in entry["files"]:
            if one["source"] == file["source"]:
                one |= {"sha256": sha(data), "size": len(data)}
    (out / "artifacts.json").write_text(json.dumps(description))
    recipe = load_recipe(project)
    with pytest.raises(DamagedError) as caught:
        pack(read(out), recipe, name=recipe.distribution_name, version="1.0")
    assert caught.value.problems == (f"{file['source']} ({file['path']}): would import posix.system (once)",)
    assert not (tmp_path / "touched").exists()
