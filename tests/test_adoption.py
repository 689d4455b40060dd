"""What becomes of a look-up that finds nothing. The engine is a fake (`fakes.fake_running`), the wheels are real."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import shown
from factories import A100, H100, MODEL, NAME, files_of, install, make_engine, make_host, make_wheel, run, sha
from fakes.fake_running import FakeRunning, key
from hatch_model_cache.compile import engines
from hatch_model_cache.compile.engines import vllm_rules
from model_cache.engine import adoption, lookups, misfit, nearest, on_import, status, watch
from model_cache.store import removal, state
from model_cache.store.root import Root
from model_cache.wheel.verify import Deadline

CONFIG = b'{"model_type": "synthetic"}'
ARTIFACT = b"compiled for any weights"
NAMES = {"model.model": MODEL, "model.model_weights": "", "model.revision": "null"}
FACTORS = {
    "model.dtype": "torch.bfloat16",
    "model.hf_config": "sha256:of-the-config",
    "model.quantization": "null",
    "model.quantization_config": "null",
    "scheduler.max_num_seqs": "1024",
    "cache.cache_dtype": "auto",
    "env.VLLM_SOME_TOKEN": "(withheld)",
}
FACTS: dict[str, Any] = {rule.fact: True for rule in vllm_rules.RULES} | {
    "speculative.method": None,
    "speculative.num_speculative_tokens": None,
}
HERE = {"model.model": "/models/fine-tune", "model.model_weights": "", "model.revision": "null"}


class Log:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, message: str, *, alarm: bool = False) -> None:
        self.lines.append(message)


@pytest.fixture
def log() -> Log:
    return Log()


def wheel(
    folder: Path, name: str = NAME, model: str = MODEL, targets: tuple[dict[str, Any], ...] = (H100,), **changes: Any
) -> Path:
    """A wheel of one entry per target, for weights called `model`."""
    factors = FACTORS | NAMES
    contents = {}
    for target in targets:
        found = key(factors | {"model.model": model}) if len(targets) == 1 else sha(str(target["name"]).encode())
        contents[f"{lookups.CACHE}/{found}"] = {"rank_0_0/model": ARTIFACT + str(target["name"]).encode()}
    entries = {
        f"entries.{i}.{what}": value
        for i, target in enumerate(targets)
        for what, value in (
            ("target", target["name"]),
            ("ranks", ["0_0"]),
            ("factor_overrides", {"model.model": model, "model.revision": "null"}),
            ("served_as", model),
        )
    }
    document = {
        "model.config_sha256": sha(CONFIG),
        "model.served_as": [model],
        "engine.python": ".".join(map(str, sys.version_info[:3])),
        "host_answers": {k: v for k, v in FACTS.items() if "." not in k},
        "unkeyed": {k: v for k, v in FACTS.items() if "." in k},
        "factors": {"f": {k: v for k, v in factors.items() if k not in ("model.model", "model.revision")}},
        **entries,
    }
    return make_wheel(folder, contents, name=name, targets=targets, changes=document | changes)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the wheel and what is left of an engine are installed."""
    site = install(wheel(tmp_path / "dist"), make_engine(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("MODEL_CACHE_ASSUME_TARGET", str(H100["name"]))
    monkeypatch.delenv(adoption.ADOPT, raising=False)
    return site


@pytest.fixture
def running(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRunning:
    """An engine that serves other weights of the wheel's model."""
    config = tmp_path / "config.json"
    config.write_bytes(CONFIG)
    found = FakeRunning(FACTORS | HERE, dict(FACTS), config)
    monkeypatch.setattr(engines, "adapter", lambda name: found.adapter)
    return found


def engine(root: Path) -> ModuleType:
    """A module like the engine's, whose look-up loads what is there."""
    module = ModuleType(on_import.MODULE)
    module.loaded = []

    def look_up(model: Any, path: str) -> Any:
        found = Path(path).read_bytes() if Path(path).exists() else None
        if found is not None:
            module.loaded.append(found)
            sys.modules["vllm.compilation.counter"].compilation_counter.num_compiled_artifacts_loaded += 1
        return found

    module._try_load_aot_compiled_fn = look_up
    return module


@pytest.fixture(autouse=True)
def no_manifest_of_another_test() -> None:
    misfit._manifest.cache_clear()


@pytest.fixture(autouse=True)
def counter(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm.compilation.counter")
    module.compilation_counter = SimpleNamespace(num_compiled_artifacts_loaded=0)
    monkeypatch.setitem(sys.modules, "vllm.compilation.counter", module)


def start(root: Path, running: FakeRunning, log: Log, rank: str = "0_0") -> Any:
    """One look-up of a new engine process, as vLLM does it: the directory is made first."""
    module = engine(root)
    watch.wrap(module, str(root), log)
    place = root / lookups.CACHE / running.key()
    (place / "inductor_cache").mkdir(parents=True, exist_ok=True)
    model = SimpleNamespace(_compile_tag="backbone")
    return module._try_load_aot_compiled_fn(model, str(place / f"rank_{rank}" / "model"))


def record(root: Path) -> list[lookups.LookUp]:
    with Root.open(str(root)) as opened:
        return lookups.read(opened)


def test_other_weights_of_the_same_model_are_served_by_the_wheel(
    tmp_path: Path, running: FakeRunning, log: Log
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    assert start(root, running, log) == ARTIFACT + b"h100-sxm5-80gb"
    assert running.asked == [NAMES], "the engine has computed its key under the wheel's names"
    [line] = log.lines
    assert line.startswith("adopted backbone rank 0_0 in ")
    assert "same config.json, and all else but the name is equal" in line
    [found] = record(root)
    assert (found.hit, found.adopted, found.wheel, found.nearest) == (True, True, NAME, "")
    with Root.open(str(root)) as opened:
        [one] = status.report(opened)[0].wheels
        deployed = state.require(opened, NAME)
    assert one.adopted == (f"{lookups.CACHE}/{running.key()}",)
    assert (one.used, one.intact) == (True, True)
    assert {entry.directory: entry.adopted for entry in deployed.entries} == {
        f"{lookups.CACHE}/{key(FACTORS | NAMES)}": "",
        f"{lookups.CACHE}/{running.key()}": f"{lookups.CACHE}/{key(FACTORS | NAMES)}",
    }


def test_what_was_adopted_is_found_again_and_removed_with_the_wheel(
    tmp_path: Path, running: FakeRunning, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    start(root, running, log)
    monkeypatch.setenv(adoption.ADOPT, "0")
    assert start(root, running, log)
    assert log.lines[1].startswith("adopted backbone rank 0_0")
    assert record(root)[1].adopted
    (root / lookups.CACHE / running.key() / "rank_0_0" / "model").unlink()
    with Root.open(str(root)) as opened:
        assert not status.report(opened)[0].wheels[0].intact
    removal.remove(NAME, str(root))
    assert files_of(root) == {}


def test_what_was_adopted_stays_when_the_wheel_is_deployed_again_and_goes_with_its_version(
    tmp_path: Path, site: Path, running: FakeRunning, log: Log
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    start(root, running, log)
    adopted = root / lookups.CACHE / running.key() / "rank_0_0" / "model"
    adopted.write_bytes(b"damaged")
    host = make_host(python=".".join(map(str, sys.version_info[:3])))
    assert {e.directory: e.action for e in run(site, root, host).entries}[
        f"{lookups.CACHE}/{running.key()}"
    ] == "restored"
    assert adopted.read_bytes() == ARTIFACT + b"h100-sxm5-80gb"

    other = install(wheel(tmp_path / "two", version="2.0.0"), tmp_path / "other")
    outcome = run(other, root, host)
    assert f"{lookups.CACHE}/{running.key()}" in outcome.removed
    assert not adopted.exists()


def test_several_processes_adopt_at_the_same_moment(tmp_path: Path, running: FakeRunning, log: Log) -> None:
    root = tmp_path / "root"
    root.mkdir()
    found: list[Any] = []
    starts = [threading.Thread(target=lambda: found.append(start(root, running, log))) for _ in range(6)]
    for one in starts:
        one.start()
    for one in starts:
        one.join()
    assert found == [ARTIFACT + b"h100-sxm5-80gb"] * 6
    assert all(one.hit and one.adopted for one in record(root))


def test_it_can_be_turned_off(tmp_path: Path, running: FakeRunning, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setenv(adoption.ADOPT, "0")
    assert start(root, running, log) is None
    [line] = log.lines
    assert line.startswith(f"miss backbone rank 0_0: model /models/fine-tune here, {MODEL} in {NAME} (not adopted: ")
    assert line.endswith("(not adopted: MODEL_CACHE_ADOPT=0); `model-cache check` says more")
    assert files_of(root) == {}


@pytest.mark.parametrize(
    ("factors", "facts", "why"),
    [
        ({"model.quantization": "fp8"}, {}, "the weights are quantized"),
        ({"model.quantization_config": '{"a": 1}'}, {}, "the weights are quantized"),
        ({"cache.cache_dtype": "fp8_e4m3"}, {}, "the KV cache is quantized"),
        ({"model.trust_remote_code": "true"}, {}, "its code may come with the weights"),
        ({}, {"speculative.method": "eagle"}, "it is served with speculative decoding"),
    ],
)
def test_weights_that_may_steer_the_graph_are_not_adopted(
    tmp_path: Path,
    running: FakeRunning,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
    factors: dict[str, str],
    facts: dict[str, Any],
    why: str,
) -> None:
    """Wheel and engine agree in everything, so the name is all that differs, and still it must not be loaded."""
    monkeypatch.setitem(globals(), "FACTORS", FACTORS | factors)
    monkeypatch.setitem(globals(), "FACTS", FACTS | facts)
    install(wheel(tmp_path / "again"), tmp_path / "site")
    running.factors |= factors
    running.facts_ |= facts
    (tmp_path / "root").mkdir()
    assert start(tmp_path / "root", running, log) is None
    assert f"(not adopted: {why}" in log.lines[0]
    assert files_of(tmp_path / "root") == {}


def test_another_config_json_is_not_adopted(tmp_path: Path, running: FakeRunning, log: Log) -> None:
    assert running.config is not None
    running.config.write_bytes(CONFIG + b"\n")
    (tmp_path / "root").mkdir()
    assert start(tmp_path / "root", running, log) is None
    assert "(not adopted: its config.json is another one than the wheel's)" in log.lines[0]
    running.config = None
    assert start(tmp_path / "root", running, log) is None
    assert "(not adopted: its config.json is not on this host)" in log.lines[1]


def test_a_difference_that_is_in_no_key_is_not_adopted(tmp_path: Path, running: FakeRunning, log: Log) -> None:
    running.facts_["has_flashinfer"] = False
    (tmp_path / "root").mkdir()
    assert start(tmp_path / "root", running, log) is None
    assert "(not adopted: has_flashinfer is False here, True in the wheel; FlashInfer's kernels" in log.lines[0]


def test_what_no_factor_tells_is_found_by_the_key(tmp_path: Path, running: FakeRunning, log: Log) -> None:
    """A secret is withheld on both sides and may differ all the same."""
    running.hidden = "another secret"
    (tmp_path / "root").mkdir()
    assert start(tmp_path / "root", running, log) is None
    assert "(not adopted: the engine's own key under the wheel's name is not the wheel's)" in log.lines[0]


def test_untied_embeddings_and_other_flags_are_differences(tmp_path: Path, running: FakeRunning, log: Log) -> None:
    running.factors |= {
        "model.word_embeddings_untied_by_checkpoint": "true",
        "scheduler.max_num_seqs": "256",
        "env.VLLM_SOME_TOKEN": "hf_" + "a" * 34,
    }
    (tmp_path / "root").mkdir()
    assert start(tmp_path / "root", running, log) is None
    [line] = log.lines
    assert "max-num-seqs 256 here, 1024" in line
    assert "VLLM_SOME_TOKEN (withheld) here, (withheld)" in line
    assert f"in {NAME}, and 1 more" in line
    assert "hf_" not in (tmp_path / "root" / ".model-cache" / lookups.LOOKUPS).read_text()
    [missed] = record(tmp_path / "root")
    assert nearest.Difference("max-num-seqs", "1024", "256") in missed.differences
    assert nearest.Difference("model.word_embeddings_untied_by_checkpoint", None, "true") in missed.differences
    with Root.open(str(tmp_path / "root")) as opened:
        told = list(status.lines(status.report(opened)[0]))
    assert any("max-num-seqs 256 here, 1024" in line for line in told)


def test_the_miss_that_the_guide_shows(tmp_path: Path, running: FakeRunning, log: Log) -> None:
    running.factors |= NAMES | {"scheduler.max_num_seqs": "8"}
    (tmp_path / "root").mkdir()
    assert start(tmp_path / "root", running, log) is None
    [expected] = [line for line in shown.logged("hits-and-misses.md") if line.startswith("miss ")]
    assert log.lines == [expected.replace(" 16 in model-cache-llama-tiny-x86-64-avx512", f" 1024 in {NAME}")]


def test_a_wheel_for_another_model_is_only_named(tmp_path: Path, running: FakeRunning, log: Log) -> None:
    running.factors["model.hf_config"] = "sha256:another"
    (tmp_path / "root").mkdir()
    assert start(tmp_path / "root", running, log) is None
    assert log.lines[0].startswith(
        f"miss backbone rank 0_0: no installed wheel is for this model; {NAME} is for another"
    )


def test_the_wheel_that_may_be_adopted_wins_over_one_that_may_not(
    tmp_path: Path, site: Path, running: FakeRunning, log: Log
) -> None:
    other = "model-cache-aaa-h100-sxm5-80gb"
    install(wheel(tmp_path / "two", name=other, **{"model.config_sha256": sha(b"another")}), site)
    (tmp_path / "root").mkdir()
    assert start(tmp_path / "root", running, log) is not None
    assert record(tmp_path / "root")[0].wheel == NAME


def test_a_wheel_for_another_gpu_is_not_adopted(
    tmp_path: Path, site: Path, running: FakeRunning, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_CACHE_ASSUME_TARGET", str(A100["name"]))
    (tmp_path / "root").mkdir()
    assert start(tmp_path / "root", running, log) is None
    assert "(not adopted: " in log.lines[0]
    assert "a100" in log.lines[0]
    assert files_of(tmp_path / "root") == {}


def test_a_version_without_an_adapter_is_said_and_nothing_is_done(
    tmp_path: Path, running: FakeRunning, log: Log
) -> None:
    make_engine(tmp_path / "site", vllm="9.9.0")
    (tmp_path / "site" / "vllm-0.33.0.dist-info" / "METADATA").unlink()
    (tmp_path / "site" / "vllm-0.33.0.dist-info").rmdir()
    (tmp_path / "root").mkdir()
    assert start(tmp_path / "root", running, log) is None
    assert "vllm 9.9.0 is not known to this release: nothing is compared or adopted" in log.lines[0]


def test_an_engine_that_cannot_answer_breaks_nothing(
    tmp_path: Path, running: FakeRunning, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(model: object) -> dict[str, str]:
        raise RuntimeError("no such attribute")

    monkeypatch.setattr(running, "named_factors", fails)
    (tmp_path / "root").mkdir()
    assert start(tmp_path / "root", running, log) is None
    assert log.lines[0] == "a miss could not be explained: RuntimeError: no such attribute"


def test_a_disk_that_does_not_answer_does_not_hold_the_engine_up(
    tmp_path: Path, running: FakeRunning, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption, "SECONDS", 0.2)
    released = threading.Event()
    monkeypatch.setattr(adoption, "_adopt", lambda *_: released.wait(30))
    (tmp_path / "root").mkdir()
    assert start(tmp_path / "root", running, log) is None
    released.set()
    assert "(not adopted: no answer after 0.2 s)" in log.lines[0]


def test_a_damaged_wheel_is_not_adopted(tmp_path: Path, site: Path, running: FakeRunning, log: Log) -> None:
    [blob] = site.glob("*/blobs/*/*")
    blob.write_bytes(b"X" * blob.stat().st_size)
    (tmp_path / "root").mkdir()
    assert start(tmp_path / "root", running, log) is None
    assert "(not adopted: " in log.lines[0]
    assert files_of(tmp_path / "root") == {}


def test_seconds_are_saved_against_a_cold_start_that_was_seen(tmp_path: Path, running: FakeRunning, log: Log) -> None:
    root = tmp_path / "root"
    root.mkdir()
    start(root, running, log)
    with Root.open(str(root)) as opened:
        [one] = status.report(opened)[0].wheels
    assert (one.used, one.saved_seconds) == (True, None), "no cold start is on record"

    running.factors["scheduler.max_num_seqs"] = "256"
    assert start(root, running, log) is None
    [missed] = [found for found in record(root) if not found.hit]
    saved = root / lookups.CACHE / missed.key / "rank_0_0" / "model"
    saved.parent.mkdir()
    saved.write_bytes(b"compiled here")
    os.utime(saved, (missed.time + 40, missed.time + 40))
    with Root.open(str(root)) as opened:
        found = status.report(opened)[0]
    [one] = found.wheels
    assert one.cold_seconds == pytest.approx(40)
    assert one.saved_seconds is not None
    assert 38 < one.saved_seconds <= 40
    [own] = found.own_directories
    assert own.missed is not None
    assert own.missed.nearest == NAME
    told = "\n".join(status.lines(found))
    assert "the engine compiled its own in 40 s" in told
    assert "of the 40 s that a cold start took here" in told
    assert json.loads(json.dumps(status.data(found)))["wheels"][0]["saved_seconds"] == one.saved_seconds
    assert "model_cache_saved_seconds{wheel=" in "\n".join(status.prometheus(found))


def test_a_wheel_that_has_the_very_key_is_not_adopted_but_named(tmp_path: Path, running: FakeRunning, log: Log) -> None:
    running.factors |= NAMES
    (tmp_path / "root").mkdir()
    assert start(tmp_path / "root", running, log) is None
    assert f"{NAME} has this key, and is not deployed" in log.lines[0]


def test_an_adoption_that_was_killed_is_finished_by_the_next_deploy(
    tmp_path: Path, site: Path, running: FakeRunning, log: Log
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    start(root, running, log)
    adopted = root / lookups.CACHE / running.key() / "rank_0_0" / "model"
    with Root.open(str(root)) as opened, opened.lock(Deadline()):
        state.save(opened, state.require(opened, NAME).in_phase("deploying"))  # as it is between intent and result
        adopted.unlink()
    run(site, root, make_host(python=".".join(map(str, sys.version_info[:3]))))
    assert adopted.read_bytes() == ARTIFACT + b"h100-sxm5-80gb"
    with Root.open(str(root)) as opened:
        [one] = status.report(opened)[0].wheels
    assert (one.phase, one.intact, len(one.adopted)) == ("deployed", True, 1)


def test_a_wheel_that_this_host_does_not_trust_is_not_adopted(
    tmp_path: Path, running: FakeRunning, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_CACHE_POLICY", "require")
    (tmp_path / "root").mkdir()
    assert start(tmp_path / "root", running, log) is None
    assert not running.asked
    assert files_of(tmp_path / "root") == {}


@pytest.fixture
def warm(tmp_path: Path, site: Path, running: FakeRunning) -> Path:
    """A cache root with the wheel deployed, and an engine that serves its very weights."""
    root = tmp_path / "root"
    root.mkdir()
    run(site, root, make_host(python=".".join(map(str, sys.version_info[:3]))))
    running.factors |= NAMES
    return root


def reported(root: Path) -> tuple[status.Report, str]:
    """What `status` shows, as data and for people."""
    with Root.open(str(root)) as opened:
        found = status.report(opened)[0]
    return found, "\n".join([*status.lines(found), *status.prometheus(found)])


def test_a_hit_against_which_nothing_speaks_is_a_hit(warm: Path, running: FakeRunning, log: Log) -> None:
    assert start(warm, running, log)
    assert log.lines[0].endswith("(built for h100-sxm5-80gb)")
    found, text = reported(warm)
    assert not found.wheels[0].unsafe
    assert "unsafe:" not in text
    assert f'model_cache_unsafe{{wheel="{NAME}",version="1.0.0"}} 0' in text


def test_a_hit_that_does_not_belong_is_loaded_by_the_engine_and_told(
    warm: Path, running: FakeRunning, log: Log
) -> None:
    """The key is the wheel's, so the engine loads it; what no key holds is another value than the build's."""
    running.facts_["speculative.num_speculative_tokens"] = 5
    assert start(warm, running, log), "nothing is kept from the engine"
    why = "speculative.num_speculative_tokens is 5 here, not set in the wheel; the graph is for another number"
    assert f"(built for h100-sxm5-80gb); unsafe: {why}" in log.lines[0]
    [found] = record(warm)
    assert (found.hit, found.unsafe[: len(why)]) == (True, why)
    report, text = reported(warm)
    assert report.wheels[0].unsafe
    assert f"\n    unsafe: {why}" in text
    assert f'model_cache_unsafe{{wheel="{NAME}",version="1.0.0"}} 1' in text


def test_what_was_adopted_is_compared_at_every_start(tmp_path: Path, running: FakeRunning, log: Log) -> None:
    (tmp_path / "root").mkdir()
    start(tmp_path / "root", running, log)
    running.facts_["has_flashinfer"] = False
    assert start(tmp_path / "root", running, log)
    assert [line.partition("unsafe: ")[2][:22] for line in log.lines] == ["", "has_flashinfer is Fals"]


def test_a_wheel_that_records_less_is_not_unsafe_for_that(warm: Path, running: FakeRunning, log: Log) -> None:
    del running.facts_["has_tilelang"]
    assert start(warm, running, log)
    assert "unsafe" not in log.lines[0]


def test_a_hit_that_cannot_be_compared_is_a_hit_all_the_same(
    warm: Path, site: Path, running: FakeRunning, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(model: object) -> None:
        raise ZeroDivisionError("of the engine")

    monkeypatch.setattr(running, "facts", fail, raising=False)
    assert start(warm, running, log)
    assert log.lines == ["a hit could not be compared: ZeroDivisionError: of the engine", log.lines[1]]
    assert log.lines[1].startswith("hit backbone rank 0_0")
    monkeypatch.setattr(misfit, "_manifest", lambda *_: None)  # as when the wheel is not installed any more
    assert start(warm, running, log)
    assert len(log.lines) == 3
    assert [one.unsafe for one in record(warm)] == ["", ""]


def test_only_the_wheel_that_was_deployed_is_compared_with(warm: Path, tmp_path: Path) -> None:
    with Root.open(str(warm)) as opened:
        deployed = state.require(opened, NAME)
    found = misfit._manifest(NAME, deployed.manifest_sha256)
    assert found is not None
    assert found.name == NAME
    assert misfit._manifest(NAME, "0" * 64) is None
