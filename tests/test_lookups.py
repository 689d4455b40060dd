"""What the plug-in records of the engine's look-ups, and what `status` makes of it. The engine module is a fake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from model_cache.engine import lookups, on_import, status, watch
from model_cache.store import state
from model_cache.store.root import Root
from model_cache.store.state import DeployedEntry, DeployedFile, State

KEY = "ab" * 32
WHEEL = "model-cache-x-h100-sxm5-80gb"


class Log:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, bool]] = []

    def __call__(self, message: str, *, alarm: bool = False) -> None:
        self.lines.append((message, alarm))


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The engine's counter of loaded parts."""
    found = SimpleNamespace(num_compiled_artifacts_loaded=0)
    module = ModuleType("vllm.compilation.counter")
    module.compilation_counter = found
    monkeypatch.setitem(sys.modules, "vllm.compilation.counter", module)
    return found


def engine(counter: SimpleNamespace, outcome: Any, parts: int = 3) -> ModuleType:
    """A module like the engine's, whose look-up ends with `outcome`."""
    module = ModuleType(on_import.MODULE)

    def look_up(model: Any, path: str) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        counter.num_compiled_artifacts_loaded += parts if outcome else 0
        return outcome

    module._try_load_aot_compiled_fn = look_up
    return module


def look_up(module: ModuleType, root: Path, key: str = KEY) -> Any:
    model = SimpleNamespace(_compile_tag="backbone")
    path = root / lookups.CACHE / key / "rank_0_0" / "model"
    return module._try_load_aot_compiled_fn(model, str(path))


def deployed(root: Path) -> None:
    """Put one wheel's state and file there, as deploy does."""
    entry = root / lookups.CACHE / KEY / "rank_0_0"
    entry.mkdir(parents=True)
    (entry / "model").write_bytes(b"artifact")
    times = (entry / "model").stat()
    file = DeployedFile("rank_0_0/model", "0" * 64, 8, times.st_mtime_ns)
    one = DeployedEntry(f"{lookups.CACHE}/{KEY}", True, (file,))
    with Root.open(str(root)) as opened:
        state.save(opened, State(WHEEL, "1.0", "0" * 64, "deployed", ("h100-sxm5-80gb",), (one,)))


def report(root: Path) -> status.Report:
    with Root.open(str(root)) as opened:
        return status.report(opened)[0]


def test_a_hit_is_returned_recorded_and_told(tmp_path: Path, counter: SimpleNamespace, log: Log) -> None:
    deployed(tmp_path)
    module = engine(counter, loaded := object())
    watch.wrap(module, str(tmp_path), log)
    assert look_up(module, tmp_path) is loaded
    [(line, alarm)] = log.lines
    assert line.startswith("hit backbone rank 0_0 in 0.0 s (built for h100-sxm5-80gb)")
    assert not alarm
    [wheel] = report(tmp_path).wheels
    assert (wheel.used, wheel.intact, wheel.processes) == (True, True, 1)
    assert [(f.prefix, f.rank, f.key, f.hit, f.parts, f.pid) for f in wheel.looked_up] == [
        ("backbone", "0_0", KEY, True, 3, os.getpid())
    ]


def test_a_miss_is_told_and_makes_no_wheel_used(tmp_path: Path, counter: SimpleNamespace, log: Log) -> None:
    deployed(tmp_path)
    module = engine(counter, None)
    watch.wrap(module, str(tmp_path), log)
    assert look_up(module, tmp_path, "cd" * 32) is None
    [(line, alarm)] = log.lines
    assert line.startswith("miss backbone rank 0_0: no installed wheel is for this engine; `model-cache check` says")
    assert alarm
    found = report(tmp_path)
    assert not found.wheels[0].used
    assert [f.key for f in found.misses] == ["cd" * 32]


def test_a_model_without_compiled_parts_is_no_use(tmp_path: Path, counter: SimpleNamespace, log: Log) -> None:
    deployed(tmp_path)
    module = engine(counter, object(), parts=0)
    watch.wrap(module, str(tmp_path), log)
    look_up(module, tmp_path)
    assert "runs uncompiled" in log.lines[0][0]
    assert log.lines[0][1]
    assert not report(tmp_path).wheels[0].used


def test_what_the_engine_raises_goes_through(tmp_path: Path, counter: SimpleNamespace, log: Log) -> None:
    module = engine(counter, RuntimeError("forced"))
    watch.wrap(module, str(tmp_path), log)
    with pytest.raises(RuntimeError, match="forced"):
        look_up(module, tmp_path)
    assert [f.hit for f in report(tmp_path).misses] == [False]


def test_a_record_that_cannot_be_written_breaks_nothing(tmp_path: Path, counter: SimpleNamespace, log: Log) -> None:
    (tmp_path / "root").write_text("a file")
    module = engine(counter, loaded := object())
    watch.wrap(module, str(tmp_path / "root"), log)
    assert look_up(module, tmp_path) is loaded
    assert "could not be recorded" in log.lines[0][0]


def test_a_record_that_is_a_fifo_holds_nothing_up(tmp_path: Path, counter: SimpleNamespace, log: Log) -> None:
    (tmp_path / ".model-cache").mkdir()
    os.mkfifo(tmp_path / ".model-cache" / lookups.LOOKUPS)
    module = engine(counter, loaded := object())
    watch.wrap(module, str(tmp_path), log)
    assert look_up(module, tmp_path) is loaded


def test_a_log_that_fails_does_not_reach_the_engine(tmp_path: Path, counter: SimpleNamespace) -> None:
    def say(message: str, *, alarm: bool = False) -> None:
        raise BrokenPipeError

    module = engine(counter, loaded := object())
    watch.wrap(module, str(tmp_path), say)
    assert look_up(module, tmp_path) is loaded


def test_an_engine_with_another_function_is_left_alone(tmp_path: Path, log: Log) -> None:
    module = ModuleType(on_import.MODULE)
    module._try_load_aot_compiled_fn = lambda model: None
    before = module._try_load_aot_compiled_fn
    watch.wrap(module, str(tmp_path), log)
    assert module._try_load_aot_compiled_fn is before
    assert "are not recorded" in log.lines[0][0]


def test_wrapping_twice_records_once(tmp_path: Path, counter: SimpleNamespace, log: Log) -> None:
    module = engine(counter, object())
    watch.wrap(module, str(tmp_path), log)
    watch.wrap(module, str(tmp_path), log)
    look_up(module, tmp_path)
    with Root.open(str(tmp_path)) as root:
        assert len(lookups.read(root)) == 1


def test_the_record_is_bounded(
    tmp_path: Path, counter: SimpleNamespace, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "MAX_BYTES", 2000)
    module = engine(counter, object())
    watch.wrap(module, str(tmp_path), log)
    for _ in range(50):
        look_up(module, tmp_path)
    assert (tmp_path / ".model-cache" / lookups.LOOKUPS).stat().st_size <= 2000
    with Root.open(str(tmp_path)) as root:
        assert lookups.read(root)


def test_lines_that_are_none_are_left_out(tmp_path: Path, counter: SimpleNamespace, log: Log) -> None:
    module = engine(counter, object())
    watch.wrap(module, str(tmp_path), log)
    look_up(module, tmp_path)
    record = tmp_path / ".model-cache" / lookups.LOOKUPS
    good = record.read_bytes()
    wrong = {**json.loads(good), "pid": "one"}
    endless = [good.replace(b'"seconds": 0.0', b'"seconds": ' + text) for text in (b"NaN", b"Infinity", b"1e999")]
    assert good not in endless
    record.write_bytes(
        b"".join(endless) + b'{"time": 1}\n\xff\n[]\n' + json.dumps(wrong).encode() + b"\n" + good + good[:20]
    )
    with Root.open(str(tmp_path)) as root:
        assert [f.key for f in lookups.read(root)] == [KEY]


def test_damage_and_own_directories_are_seen(tmp_path: Path) -> None:
    deployed(tmp_path)
    (tmp_path / lookups.CACHE / KEY / "rank_0_0" / "model").write_bytes(b"other")
    (tmp_path / lookups.CACHE / ("cd" * 32)).mkdir()
    found = report(tmp_path)
    assert not found.wheels[0].intact
    assert found.own_directories == (status.Own(f"{lookups.CACHE}/{'cd' * 32}", None, None),)


def test_the_command_prints_text_json_and_metrics(tmp_path: Path, counter: SimpleNamespace, log: Log) -> None:
    deployed(tmp_path)
    module = engine(counter, object())
    watch.wrap(module, str(tmp_path), log)
    look_up(module, tmp_path)

    def command(*arguments: str) -> str:
        line = [sys.executable, "-m", "model_cache", "status", "--root", str(tmp_path), *arguments]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout

    assert f"{WHEEL} 1.0: intact, used by 1 process, for h100-sxm5-80gb" in command()
    assert json.loads(command("--json"))["wheels"][0]["used"] is True
    assert f'model_cache_used{{wheel="{WHEEL}",version="1.0"}} 1' in command("--format", "prometheus")


def test_two_spellings_of_a_name_are_one_wheel(tmp_path: Path, counter: SimpleNamespace, log: Log) -> None:
    deployed(tmp_path)
    states = tmp_path / ".model-cache"
    (states / "Model_Cache.x-h100-SXM5-80gb.json").write_bytes((states / f"{WHEEL}.json").read_bytes())
    module = engine(counter, object())
    watch.wrap(module, str(tmp_path), log)
    look_up(module, tmp_path)
    record = states / lookups.LOOKUPS
    record.write_text(record.read_text().replace(WHEEL, "Model_Cache.x-h100-SXM5-80gb"))
    [wheel] = report(tmp_path).wheels
    assert wheel.used


class TestOnImport:
    """Being called when a module has been imported; the module is a file of the test's own."""

    @pytest.fixture
    def name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        (tmp_path / "some_engine_module.py").write_text("VALUE = 1\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "some_engine_module", raising=False)
        monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
        return "some_engine_module"

    def test_it_is_called_after_the_module_is_there(self, name: str) -> None:
        seen: list[int] = []
        on_import.call(lambda module: seen.append(module.VALUE), name)
        assert not seen
        __import__(name)
        assert seen == [1]

    def test_it_is_called_at_once_for_a_module_that_is_there(self, name: str) -> None:
        __import__(name)
        seen: list[int] = []
        on_import.call(lambda module: seen.append(module.VALUE), name)
        assert seen == [1]

    def test_it_is_called_once_however_often_it_is_asked(self, name: str) -> None:
        seen: list[int] = []
        before = len(sys.meta_path)
        for _ in range(3):
            on_import.call(lambda module: seen.append(module.VALUE), name)
        assert len(sys.meta_path) == before + 1
        __import__(name)
        assert seen == [1]
        assert len(sys.meta_path) == before

    def test_an_error_in_it_does_not_reach_the_import(self, name: str) -> None:
        def fails(module: ModuleType) -> None:
            raise RuntimeError

        on_import.call(fails, name)
        __import__(name)
        assert sys.modules[name].VALUE == 1
