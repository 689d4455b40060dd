"""What is refused of a compile's result, and what is made of it. The artifacts are made-up bytes around real cubins."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build_factories import TABLE, make_project
from fakes import fake_engine
from hatch_model_cache.compiling import compiled
from hatch_model_cache.compiling.compiled import RankResult
from hatch_model_cache.packing import artifacts
from hatch_model_cache.packing.completeness import missing_parts
from hatch_model_cache.recipe.file import load_recipe
from hatch_model_cache.recipe.recipe import Recipe
from model_cache.errors import CompileError

H100, A100 = "h100-sxm5-80gb", "a100-sxm4-80gb"
TP2 = {"serve-args": ["--tensor-parallel-size", "2"]}


class Build:
    """A finished compile: one result per target and rank, right until a test spoils it."""

    def __init__(self, place: Path, prefixes: tuple[str, ...] = ("backbone",), **options: Any) -> None:
        self.place = place
        name = f"model-cache-synthetic-1b-{options.get('hardware', H100)}"
        self.recipe: Recipe = load_recipe(make_project(place / "project", {**TABLE, **options}, name=name))
        ranks = 2 if "--tensor-parallel-size" in self.recipe.serve_args else 1
        self.results = [self.rank(target, rank, prefixes) for target in self.recipe.targets for rank in range(ranks)]

    def rank(self, target: str, rank: int, prefixes: tuple[str, ...]) -> RankResult:
        directory = self.place / "scratch" / f"{target}-rank{rank}"
        directory.mkdir(parents=True)
        (directory / "engine.log").write_text(f"log of {target} {rank}\n")
        job = {
            "target": {"name": target},
            "rank": rank,
            "served_as": list(self.recipe.served_as),
            "serve_arguments": list(self.recipe.serve_args),
        }
        return RankResult(target, rank, directory, fake_engine.leave(job, directory / "cache", prefixes))

    def result(self, index: int = 0) -> dict[str, Any]:
        found = self.results[index].result
        assert isinstance(found, dict)
        return found

    def file(self, index: int = 0) -> Path:
        """The artifact of the first prefix."""
        return Path(self.result(index)["artifacts"][0]["path"])

    def collect(self) -> artifacts.Artifacts:
        out = self.place / "out"
        out.mkdir()
        compiled.collect(self.recipe, self.place / "project" / "model", self.results, out)
        return artifacts.read(out)

    def problems(self) -> list[str]:
        with pytest.raises(CompileError) as caught:
            self.collect()
        assert caught.value.message == "What the engine left cannot be shipped:"
        assert list((self.place / "out").iterdir()) == [], "nothing may be written"
        return list(caught.value.problems)


def test_what_is_right_becomes_an_artifact_directory(tmp_path: Path) -> None:
    build = Build(tmp_path)
    found = build.collect()
    contents = found.contents
    assert missing_parts(contents) == []
    assert (
        contents.model.config_sha256
        == hashlib.sha256((tmp_path / "project/model/config.json").read_bytes()).hexdigest()
    )
    assert [target.name for target in contents.targets] == [H100]
    assert [(e.served_as, e.prefix, e.ranks, e.key) for e in contents.entries] == [
        (name, "backbone", ("0_0",), fake_engine.key_of(H100, "backbone", name)) for name in build.recipe.served_as
    ]
    sources = {source for _, _, source in found.files()}
    assert len(sources) == 1, "one compile serves all names"
    assert found.path(sources.pop()).read_bytes() == build.file().read_bytes()
    assert [(kernel.name, kernel.arch) for kernel in contents.kernels] == [(fake_engine.KERNEL, "sm_90a")]


def piecewise(build: Build, content: bytes) -> Path:
    """Make the artifact one of the piecewise path, which has no file of its own; the one that holds kernels."""
    [artifact] = build.result()["artifacts"]
    key = build.file().parent.parent
    build.file().unlink()
    (key / "rank_0_0" / "backbone").mkdir()
    found = key / "rank_0_0/backbone/artifact_compile_range_1_8192_subgraph_0"
    found.write_bytes(content)
    file = {"path": found.relative_to(key).as_posix(), "source": str(found), "kind": "vllm-piece"}
    artifact.update(
        path=str(key / "rank_0_0" / "backbone"),
        component="vllm-piecewise",
        beside=[{**file, "contains": ["cubin", "pickle", "source"]}],
    )
    return found


def test_of_the_piecewise_path_what_lies_beside_is_kept(tmp_path: Path) -> None:
    build = Build(tmp_path)
    found = piecewise(build, fake_engine.artifact(H100))
    contents = build.collect().contents
    assert missing_parts(contents) == []
    names = {(entry.component, entry.ranks, file.path) for entry in contents.entries for file in entry.files}
    assert names == {("vllm-piecewise", ("0_0",), found.relative_to(found.parents[2]).as_posix())}
    assert contents.entries[0].files[0].sha256 == hashlib.sha256(found.read_bytes()).hexdigest()


def test_of_the_piecewise_path_kernels_are_looked_at_too(tmp_path: Path) -> None:
    build = Build(tmp_path)
    piecewise(build, fake_engine.artifact(A100))
    assert any("1 kernels are for sm_80, the target is sm_90a" in problem for problem in build.problems())


def with_kernels_of_the_engine(build: Build, target: str) -> None:
    """Have the engine leave a kernel of its own, compiled for `target`, beside its artifact."""
    [artifact] = build.result()["artifacts"]
    cubin = build.file().parents[1] / "inductor_cache/triton/0/ABC/_some_kernel.cubin"
    cubin.parent.mkdir(parents=True)
    cubin.write_bytes((fake_engine.CUBINS / f"{fake_engine.ARCHS[target]}-ptxas.cubin").read_bytes())
    kept = {"path": cubin.relative_to(build.file().parents[1]).as_posix(), "source": str(cubin)}
    artifact["beside"] = [{**kept, "kind": "triton-kernel", "contains": ["cubin"]}]


def test_the_engines_own_kernels_are_kept_beside_every_key(tmp_path: Path) -> None:
    build = Build(tmp_path)
    with_kernels_of_the_engine(build, H100)
    entries = build.collect().contents.entries
    assert {len(entry.files) for entry in entries} == {2}
    assert {file.kind for entry in entries for file in entry.files} == {"vllm-aot-model", "triton-kernel"}


def test_a_kernel_of_the_engine_for_another_gpu_is_refused(tmp_path: Path) -> None:
    build = Build(tmp_path)
    with_kernels_of_the_engine(build, A100)
    said = f"{H100} rank 0: backbone: beside it, 1 kernels are for sm_80, the target is sm_90a"
    assert build.problems() == [said]


def test_the_logs_are_kept_beside_the_artifacts(tmp_path: Path) -> None:
    build = Build(tmp_path, **TP2)
    build.collect()
    logs = tmp_path / "out" / "logs"
    assert (logs / f"{H100}-rank1.log").read_text() == f"log of {H100} 1\n"
    assert set(json.loads((logs / "measured.json").read_text())) == {f"{H100}-rank0", f"{H100}-rank1"}


def test_ranks_and_targets_share_what_is_equal(tmp_path: Path) -> None:
    found = Build(tmp_path, ("backbone", "eagle_head"), targets=[H100, A100], hardware="several", **TP2).collect()
    assert missing_parts(found.contents) == []
    assert len(found.contents.entries) == 2 * 2 * len(TABLE["served-as"])
    assert all(entry.ranks == ("0_0", "1_0") for entry in found.contents.entries)
    assert len(found.contents.factors) == 2, "one set of factors per target, not per rank"
    assert found.contents.build.stand_ins[0].count == 2 * 4
    assert {(k.arch, k.target) for k in found.contents.kernels} == {("sm_90a", H100), ("sm_80", A100)}


def test_equal_input_gives_equal_output(tmp_path: Path) -> None:
    """Whatever the directory that was compiled in is called."""
    texts = []
    for name in ("one", "another"):
        Build(tmp_path / name, targets=[H100, A100], hardware="several").collect()
        texts.append((tmp_path / name / "out" / "artifacts.json").read_text())
        assert str(tmp_path) not in texts[-1]
    assert texts[0] == texts[1]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def other_arch(build: Build) -> None:
    build.file().write_bytes(fake_engine.artifact(A100) + fake_engine.artifact(H100) + fake_engine.artifact(A100))


def stranger(build: Build) -> None:
    build.result()["kernels"][0]["sha256"] = "0" * 64


def scratch_in_a_factor(build: Build) -> None:
    build.result()["factors"]["compilation.cache_dir"] = f"{tmp(build)}/{H100}-rank0/cache"


def tmp(build: Build) -> Path:
    return build.results[0].directory.parent


def without_a_name(build: Build) -> None:
    build.result()["artifacts"][0]["keys"].pop()


def in_another_ranks_place(build: Build) -> None:
    path = build.file()
    moved = path.parent.with_name("rank_1_0") / path.name
    path.parent.rename(moved.parent)
    build.result()["artifacts"][0]["path"] = str(moved)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        pytest.param(lambda b: b.result().update(artifacts=[]), "no artifact", id="no artifact"),
        pytest.param(
            lambda b: b.result().update(parts=0),
            "the artifact holds no compiled part (num_artifacts = 0): it would load and run uncompiled",
            id="no compiled part",
        ),
        pytest.param(
            lambda b: b.result().update(saved=0), "the engine saved 0 of the 1 models it compiles", id="nothing saved"
        ),
        pytest.param(
            lambda b: b.result().update(saved=0, models=0),
            "the engine saved 0 of the 0 models it compiles",
            id="no model",
        ),
        pytest.param(
            lambda b: b.result().update(models=2), "the engine saved 1 of the 2 models it compiles", id="one not saved"
        ),
        pytest.param(
            lambda b: b.file().unlink(),
            "the artifact of backbone is missing (the engine's log says why it could not be saved)",
            id="file missing",
        ),
        pytest.param(without_a_name, "no key of backbone for the served name '/models/synthetic'", id="served name"),
        pytest.param(
            lambda b: b.file().with_name("model.tmp").touch(), "leftover file model.tmp beside backbone", id="leftover"
        ),
        pytest.param(
            lambda b: b.file().with_name("half").mkdir(), "leftover file half beside backbone", id="leftover directory"
        ),
        pytest.param(other_arch, "backbone: 2 kernels are for sm_80, the target is sm_90a", id="arch"),
        pytest.param(
            lambda b: b.file().write_bytes(b"pickled, but no kernel"),
            "backbone: no GPU kernel in the artifact",
            id="no kernel",
        ),
        pytest.param(lambda b: cut(b.file()), "backbone: no GPU kernel in the artifact", id="cut off"),
        pytest.param(stranger, "backbone: 1 kernels in the artifact were not compiled by this process", id="stranger"),
        pytest.param(
            scratch_in_a_factor,
            "the key depends on a path of the building machine: factor compilation.cache_dir",
            id="path in a factor",
        ),
        pytest.param(
            in_another_ranks_place,
            "the artifact of backbone is in rank_1_0, this rank looks in rank_0_0",
            id="rank's place",
        ),
    ],
)
def test_refused(tmp_path: Path, spoil: Callable[[Build], None], problem: str) -> None:
    build = Build(tmp_path)
    spoil(build)
    found = build.problems()
    assert f"{H100} rank 0: {problem}" in found
    assert all(line.startswith(f"{H100} rank 0: ") for line in found)


def test_a_rank_is_missing(tmp_path: Path) -> None:
    build = Build(tmp_path, **TP2)
    del build.results[1]
    assert build.problems() == [f"{H100} rank 1: not compiled"]


def test_a_target_is_missing(tmp_path: Path) -> None:
    build = Build(tmp_path, targets=[H100, A100], hardware="several")
    del build.results[1]
    assert build.problems() == [f"{A100} rank 0: not compiled"]


def test_ranks_disagree_on_a_key(tmp_path: Path) -> None:
    build = Build(tmp_path, **TP2)
    build.result(1)["artifacts"][0]["keys"][0]["key"] = "f" * 64
    assert build.problems() == [f"{H100} rank 1 and {H100} rank 0 have different keys for backbone"]


def test_pipeline_stages_have_keys_of_their_own(tmp_path: Path) -> None:
    """Of a mixture of experts: the names of a stage's layers are in its key."""
    build = Build(tmp_path, **TP2)
    for rank in (0, 1):
        build.result(rank)["factors"] |= {"compilation.static_all_moe_layers": f'["layers.{rank}"]'}
    for key in build.result(1)["artifacts"][0]["keys"]:
        key["key"] = key["key"][::-1]
        key["directory"] = key["directory"].rpartition("/")[0] + "/" + key["key"]
    found = build.collect().contents
    assert missing_parts(found) == []
    assert {entry.ranks for entry in found.entries} == {("0_0",), ("1_0",)}
    assert all(
        found.factors[entry.factors]["compilation.static_all_moe_layers"] == f'["layers.{entry.ranks[0][0]}"]'
        for entry in found.entries
    )
    build.result(1)["factors"] |= {"model.dtype": "another"}
    (tmp_path / "out").rename(tmp_path / "before")
    assert build.problems() == [f"{H100} rank 1 and {H100} rank 0 have different keys for backbone"]


@pytest.mark.parametrize(
    ("what", "other"),
    [
        ("engine", {**fake_engine.ENGINE, "torch": "2.14.1"}),
        ("host_answers", {"nvcc": "/usr/bin/nvcc", "ninja": False}),
        ("architectures", ["Other"]),
    ],
)
def test_processes_disagree(tmp_path: Path, what: str, other: object) -> None:
    build = Build(tmp_path, targets=[H100, A100], hardware="several")
    build.result(1)[what] = other
    assert build.problems() == [f"{A100} rank 0 and {H100} rank 0 disagree on {what}"]


def test_targets_may_have_different_keys(tmp_path: Path) -> None:
    found = Build(tmp_path, targets=[H100, A100], hardware="several").collect()
    assert len({entry.key for entry in found.contents.entries}) == 2 * len(TABLE["served-as"])


def test_everything_is_told_at_once(tmp_path: Path) -> None:
    build = Build(tmp_path, **TP2)
    without_a_name(build)
    other_arch(build)
    build.file(1).unlink()
    build.result(1)["engine"] = {}
    text = "\n".join(build.problems())
    for part in ("served name", "sm_80", "rank 1: the artifact of backbone is missing", "disagree on engine"):
        assert part in text


def test_an_artifact_with_the_builders_umask_is_readable_by_all(tmp_path: Path) -> None:
    build = Build(tmp_path)
    build.file().chmod(0o600)
    found = build.collect()
    (source,) = {source for _, _, source in found.files()}
    umask = os.umask(0)
    os.umask(umask)
    assert found.path(source).stat().st_mode & 0o777 == 0o666 & ~umask
