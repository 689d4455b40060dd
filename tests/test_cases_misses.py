"""Public bug reports of caches that were there and not hit, or hit and did not belong: A03, A04, A05, A13, A14.

A01, A02, A11, A12 and A15 are in test_check.py and test_verdict.py. What the real engine does is in tests/engine: every
wheel is loaded there under another root, HOME and path of the environment than it was built with.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from build_factories import NAME, blob, make_artifacts, make_project, member
from factories import files_of, make_site, run
from hatch_model_cache.checking.verdict import Answer
from hatch_model_cache.compile.engines.layout import FACT, PER_RANK, SINGLE, of_environment
from hatch_model_cache.compile.engines.vllm_rules import RULES
from hatch_model_cache.packing.artifacts import read
from hatch_model_cache.packing.leaks import Watch
from hatch_model_cache.packing.pack import Packed, pack
from hatch_model_cache.recipe.file import load_recipe
from model_cache.engine import caches
from model_cache.errors import DamagedError
from verdicts import UNKEYED, look_up, observation, verdict, wheel


def packed_with(place: Path, path: str, data: bytes, home: str = "/nonexistent") -> Packed:
    """A recipe's wheel with one file more."""
    project = make_project(place / "project")
    out = make_artifacts(place / "out", project)
    description = json.loads((out / "artifacts.json").read_text())
    source = f"files/added-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    (out / source).write_bytes(data)
    description["entries"][0]["files"].append(member(path, source, data))
    (out / "artifacts.json").write_text(json.dumps(description))
    watch = Watch.of_this_host({"HOME": home})
    return pack(read(out), load_recipe(project), name=NAME, version="1.0.0", watch=watch)


class TestA03:
    """vllm-project/vllm#52154: an index with the builder's absolute paths, which nobody finds elsewhere."""

    def test_an_index_that_names_the_builders_directory_is_refused(self, tmp_path: Path) -> None:
        index = json.dumps({"artifact": "/build/cache/torch_compile_cache/abc/rank_0_0/backbone"}).encode()
        with pytest.raises(DamagedError) as caught:
            packed_with(tmp_path, "rank_0_0/index.json", index, home="/build")
        [problem] = caught.value.problems
        assert "rank_0_0/index.json" in problem
        assert "the builder's home directory (/build)" in problem

    def test_tritons_own_index_is_refused_wherever_it_leads(self, tmp_path: Path) -> None:
        path = "inductor_cache/triton/0/ABC/__grp__kernel.json"
        with pytest.raises(DamagedError) as caught:
            packed_with(tmp_path, path, b'{"child_paths": {"kernel.cubin": "/cache/kernel.cubin"}}')
        [problem] = caught.value.problems
        assert problem.endswith(f"{path}: holds absolute paths of the machine that it was made on")

    def test_one_that_names_places_in_the_cache_is_packed(self, tmp_path: Path) -> None:
        assert packed_with(tmp_path, "rank_0_0/index.json", b'{"artifact": "rank_0_0/backbone"}', home="/build")

    def test_two_roots_get_the_same_bytes(self, tmp_path: Path) -> None:
        site = make_site(tmp_path)
        run(site, tmp_path / "one")
        run(site, tmp_path / "elsewhere" / "two")
        assert files_of(tmp_path / "one") == files_of(tmp_path / "elsewhere" / "two") != {}


class TestA04:
    """vllm-project/vllm#48190: caches whose key holds the path of the environment miss in another one.

    The names of CPU kernels are made without it (test_kernel_names.py); the rest is not packed, and that is said.
    """

    def test_what_would_miss_in_another_environment_is_named_with_the_reason(self, tmp_path: Path) -> None:
        found = {place.name: place for place in caches.places(str(tmp_path), {"HOME": "/home/user"})}
        assert not found["DeepGEMM"].packed
        assert "absolute path" in found["DeepGEMM"].why
        assert found["vLLM: compiled models"].packed

    def test_the_place_of_the_environment_is_in_no_manifest_and_changes_no_verdict(self, tmp_path: Path) -> None:
        here = observation(environment={"VIRTUAL_ENV": "/opt/other", "VLLM_USAGE_SOURCE": "image"})
        assert verdict(here).answer is Answer.HIT


class TestA05:
    """sgl-project/sglang#39364: one folder is shipped, and other libraries write elsewhere."""

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        for path, size in (
            (".triton/cache/abc/kernel.cubin", 1000),
            (".cache/flashinfer/0.7.2/90a/cached_ops/x.so", 2000),
            ("tmp/torchinductor_nobody/fx/graph", 300),
            (".tilelang/cache/kernel/a.so", 400),
            (".nv/ComputeCache/1/2", 500),
            (".cache/vllm/torch_compile_cache/torch_aot_compile/key/rank_0_0/model", 600),
        ):
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"x" * size)
        (tmp_path / ".triton/cache/loop").symlink_to(tmp_path)
        return tmp_path

    def command(self, home: Path, *arguments: str, **environment: str) -> str:
        whole = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home / "tmp"), "LOGNAME": "nobody"}
        line = [sys.executable, "-m", "model_cache", "collect", *arguments]
        done = subprocess.run(line, env=whole | environment, capture_output=True, text=True, check=True)
        return done.stdout

    def test_every_root_is_listed_with_its_size_and_whether_wheels_fill_it(self, home: Path) -> None:
        told: list[dict[str, Any]] = json.loads(self.command(home, "--json"))["caches"]
        found = {one["name"]: (one["bytes"], one["packed"]) for one in told if one["files"]}
        assert found == {
            "vLLM: compiled models": (600, True),
            "Inductor": (300, False),
            "Triton": (1000, False),
            "FlashInfer": (2000, False),
            "TileLang": (400, False),
            "CUDA driver": (500, False),
        }

    def test_what_is_left_out_is_said_with_its_variable_and_never_passed_over(self, home: Path) -> None:
        lines = self.command(home).splitlines()
        left = [line for line in lines if line.startswith("left out: ")]
        for name in ("Inductor", "Triton", "FlashInfer", "TileLang", "CUDA driver"):
            assert any(line.startswith(f"left out: {name} (") for line in left)
        assert "left out: FlashInfer (FLASHINFER_WORKSPACE_BASE): built by ninja" in "\n".join(left)
        assert not any("compiled models" in line for line in left)

    def test_a_place_that_was_moved_is_found_where_it_is(self, home: Path, tmp_path: Path) -> None:
        moved = tmp_path / "moved"
        moved.mkdir()
        (moved / "x").write_bytes(b"12345")
        told = json.loads(self.command(home, "--json", TRITON_CACHE_DIR=str(moved)))["caches"]
        [triton] = [one for one in told if one["name"] == "Triton"]
        assert (triton["path"], triton["bytes"]) == (str(moved), 5)


class TestA13:
    """vllm-project/vllm#38962: the GPU's number is in the code, and the engine runs on another one."""

    def test_a_rank_on_another_gpu_than_its_number_is_unsafe(self) -> None:
        [rule] = [rule for rule in RULES if rule.fact == "device.follows_rank"]
        elsewhere = look_up()
        elsewhere["unkeyed"]["device.follows_rank"] = False
        found = verdict(observation(elsewhere))
        assert found.answer is Answer.UNSAFE
        [reason] = found.reasons
        assert reason.factor == "device.follows_rank"
        assert "CUDA_VISIBLE_DEVICES" in reason.change
        assert rule.source in reason.why

    def test_the_same_gpu_as_the_only_visible_one_is_a_hit(self) -> None:
        alone = {"CUDA_VISIBLE_DEVICES": "1", "VLLM_USAGE_SOURCE": "image"}
        assert verdict(observation(environment=alone)).answer is Answer.HIT

    def test_both_layouts_of_ranks_are_kept(self, tmp_path: Path) -> None:
        found = packed_with(tmp_path, "rank_0_0_dev0/model", blob("dev0"))
        paths = {file.path for entry in found.manifest.entries for file in entry.files}
        assert {"rank_0_0/model", "rank_0_0_dev0/model"} <= paths

    @pytest.mark.parametrize(
        ("built", "visible", "answer"),
        [
            (PER_RANK, None, Answer.HIT),
            (PER_RANK, "4,5", Answer.HIT),
            (PER_RANK, "GPU-1f", Answer.UNSAFE),
            (SINGLE, "GPU-1f", Answer.HIT),
            (SINGLE, "4,5", Answer.UNSAFE),
        ],
    )
    def test_ranks_that_see_one_gpu_each_need_a_wheel_for_that(
        self, built: str, visible: str | None, answer: Answer
    ) -> None:
        """The wheel of the factories has two ranks."""
        here = look_up()
        here["unkeyed"][FACT] = of_environment({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
        found = verdict(observation(here), wheel(unkeyed={**UNKEYED, FACT: built}))
        assert found.answer is answer
        assert [reason.factor for reason in found.reasons] == ([FACT] if answer is Answer.UNSAFE else [])


class TestA14:
    """flashinfer-ai/flashinfer#4490: ninja judges by file times, which a wheel does not keep."""

    @pytest.mark.parametrize("name", ["build.ninja", ".ninja_log", ".ninja_deps"])
    def test_a_tree_of_ninja_is_not_packed(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(DamagedError) as caught:
            packed_with(tmp_path, f"cached_ops/module/{name}", b"{}")
        assert f"cached_ops/module/{name}: ninja judges by file times" in caught.value.problems[0]
