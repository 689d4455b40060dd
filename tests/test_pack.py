from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import model_cache
from build_factories import NAME, TABLE, blob, document, make_artifacts, make_project, member, write_artifacts
from hatch_model_cache.compile.engines.vllm import expected_ranks
from hatch_model_cache.packing.artifacts import read
from hatch_model_cache.packing.leaks import Watch, secret_name
from hatch_model_cache.packing.pack import Packed, pack
from hatch_model_cache.recipe.file import load_recipe
from hatch_model_cache.recipe.recipe import Recipe
from model_cache.errors import DamagedError
from model_cache.wheel.manifest import parse

NOTHING = Watch(())
SOURCE = "files/h100-sxm5-80gb/backbone/rank_0_0/model"
TOKEN = "hf_" + "Ab1" * 12


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


@pytest.fixture
def recipe(project: Path) -> Recipe:
    return load_recipe(project)


@pytest.fixture
def out(tmp_path: Path, project: Path) -> Path:
    return make_artifacts(tmp_path / "out", project)


def packed(out: Path, recipe: Recipe, watch: Watch = NOTHING) -> Packed:
    return pack(read(out), recipe, name=NAME, version="1.0.0", watch=watch)


def problems(out: Path, recipe: Recipe, watch: Watch = NOTHING) -> list[str]:
    with pytest.raises(DamagedError) as caught:
        packed(out, recipe, watch)
    assert TOKEN not in str(caught.value)
    return list(caught.value.problems)


def edit(out: Path, **changes: Any) -> dict[str, Any]:
    """Change top-level fields of artifacts.json; gives the description back."""
    path = out / "artifacts.json"
    description: dict[str, Any] = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(description))
    return description


def add(out: Path, path: str, data: bytes, **changes: Any) -> None:
    """Add one file to the first entry."""
    description = json.loads((out / "artifacts.json").read_text())
    source = f"files/added-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    (out / source).write_bytes(data)
    description["entries"][0]["files"].append(member(path, source, data) | changes)
    edit(out, entries=description["entries"])


def test_one_compile_under_two_names_is_one_blob(out: Path, recipe: Recipe) -> None:
    result = packed(out, recipe)
    assert len(result.manifest.entries) == 2
    ((digest, source),) = result.blobs.items()
    assert hashlib.sha256(source.read_bytes()).hexdigest() == digest
    assert list(result.members()) == [f"blobs/{digest[:2]}/{digest}"]
    assert parse(result.manifest_bytes) == result.manifest
    assert (result.manifest.name, result.manifest.version) == (NAME, "1.0.0")


def test_the_manifest_follows_the_published_schema(out: Path, recipe: Recipe) -> None:
    schema = json.loads((Path(model_cache.__file__).parent / "wheel/manifest.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(packed(out, recipe).manifest_bytes))


def test_place_and_order_do_not_show(out: Path, recipe: Recipe, tmp_path: Path) -> None:
    first = packed(out, recipe).manifest_bytes
    shutil.copytree(out, tmp_path / "elsewhere")
    description = edit(tmp_path / "elsewhere")
    description["entries"].reverse()
    for entry in description["entries"]:
        entry["files"][0]["contains"].reverse()
    edit(tmp_path / "elsewhere", entries=description["entries"])
    assert packed(tmp_path / "elsewhere", recipe).manifest_bytes == first
    assert str(tmp_path).encode() not in first


@pytest.mark.parametrize(
    ("contains", "expected"),
    [
        (["pickle"], "cp311-none-any"),
        (["bytecode", "cubin"], "cp311-none-any"),
        (["cubin", "json"], "py3-none-any"),
        (["shared-object"], "py3-none-linux_x86_64"),
        (["pickle", "shared-object"], "cp311-none-linux_x86_64"),
    ],
)
def test_the_tag_comes_from_the_content(
    tmp_path: Path, project: Path, recipe: Recipe, contains: list[str], expected: str
) -> None:
    result = packed(make_artifacts(tmp_path / "tagged", project, contains=contains), recipe)
    assert result.tag == expected
    assert result.pure == expected.endswith("any")


def test_another_recipe(out: Path, tmp_path: Path) -> None:
    other = load_recipe(make_project(tmp_path / "other", TABLE | {"serve-args": []}))
    with pytest.raises(DamagedError, match="compiled from another recipe") as caught:
        packed(out, other)
    assert other.digest() in str(caught.value)
    assert read(out).recipe_digest in str(caught.value)


def test_artifacts_that_are_not_what_was_ordered(out: Path, recipe: Recipe) -> None:
    description = edit(out)
    edit(
        out,
        engine=description["engine"] | {"version": "0.32.0"},
        serve={"arguments": ["--enforce-eager"], "environment": {}},
    )
    assert [problem.split(":")[0] for problem in problems(out, recipe)] == [
        "engine",
        "serve.arguments",
        "serve.environment",
    ]


def test_all_problems_come_together(out: Path, recipe: Recipe) -> None:
    source = out / SOURCE
    source.write_bytes(b"changed")
    (out / "files/stranger").write_bytes(b"x")
    (out / "files/model.pid.tmp").write_bytes(b"x")
    (out / "notes.txt").write_text("x")
    (out / "files/link").symlink_to("/etc/hostname")
    (out / "files/directory").symlink_to(out / "logs")
    found = problems(out, recipe)
    for expected in (
        "notes.txt: does not belong here",
        "files/stranger: is not listed in artifacts.json",
        "files/model.pid.tmp: is the leftover of an unfinished write",
        "files/link: is a link",
        "files/directory: is a link",
        f"{SOURCE}: has 7 bytes, artifacts.json says 3000",
        f"{SOURCE}: has the sha256 ",
    ):
        assert any(problem.startswith(expected) for problem in found), (expected, found)
    assert len(found) == 7


def test_a_missing_file(out: Path, recipe: Recipe) -> None:
    source = out / SOURCE
    source.unlink()
    assert problems(out, recipe) == [f"{SOURCE}: is missing"]


def test_a_truncated_file(out: Path, recipe: Recipe) -> None:
    source = out / SOURCE
    source.write_bytes(b"")
    assert problems(out, recipe) == [f"{SOURCE}: has 0 bytes, artifacts.json says 3000"]


def test_a_listed_link_is_not_followed(out: Path, recipe: Recipe, tmp_path: Path) -> None:
    source = out / SOURCE
    source.rename(tmp_path / "moved")
    source.symlink_to(tmp_path / "moved")
    (problem,) = problems(out, recipe)
    assert problem.startswith(f"{SOURCE}: is a link")


def test_one_source_described_in_two_ways(out: Path, recipe: Recipe) -> None:
    description = edit(out)
    description["entries"][1]["files"][0]["sha256"] = "0" * 64
    edit(out, entries=description["entries"])
    (problem,) = problems(out, recipe)
    assert problem.endswith("artifacts.json says " + "0" * 64)


@pytest.mark.parametrize("name", ["rank_0_0/cache_key_factors.json", "rank_0_0/x.tmp", "rank_0_0/x.lock"])
def test_what_is_never_packed(out: Path, recipe: Recipe, name: str) -> None:
    add(out, name, b"{}")
    (problem,) = problems(out, recipe)
    assert name in problem


def test_logs_stay_behind(out: Path, recipe: Recipe) -> None:
    (out / "logs/more.tmp").write_text(TOKEN)
    assert len(packed(out, recipe).blobs) == 1


# Completeness


def test_a_missing_served_name(out: Path, recipe: Recipe) -> None:
    edit(out, entries=edit(out)["entries"][:1])
    assert problems(out, recipe) == ["served name '/models/synthetic' on h100-sxm5-80gb: no entry"]


def test_a_missing_rank(tmp_path: Path) -> None:
    table = TABLE | {"serve-args": ["-tp", "4", "--max-num-seqs=8"], "served-as": ["a"]}
    project = make_project(tmp_path / "tp", table)
    out = make_artifacts(tmp_path / "out", project, ranks=["0_0", "1_0", "2_0"])
    assert problems(out, load_recipe(project)) == [
        "served name 'a' on h100-sxm5-80gb: vllm-aot backbone has no rank 3_0"
    ]


def test_every_name_has_the_ranks_that_one_name_has(tmp_path: Path, project: Path, recipe: Recipe) -> None:
    out = make_artifacts(tmp_path / "ranks", project, ranks=["0_0", "1_0"])
    description = edit(out)
    entry = description["entries"][1]
    entry["ranks"], entry["files"] = ["0_0"], entry["files"][:1]
    edit(out, entries=description["entries"])
    assert problems(out, recipe) == [
        "served name '/models/synthetic' on h100-sxm5-80gb: vllm-aot backbone has no rank 1_0"
    ]


def test_every_name_has_the_parts_that_one_name_has(tmp_path: Path, project: Path, recipe: Recipe) -> None:
    out = make_artifacts(tmp_path / "eagle", project, prefixes=["backbone", "eagle_head"])
    entries = edit(out)["entries"]
    assert packed(out, recipe)
    edit(out, entries=entries[:-1])
    assert problems(out, recipe) == [
        "served name '/models/synthetic' on h100-sxm5-80gb: vllm-aot eagle_head has no rank 0_0"
    ]


def test_a_missing_target(tmp_path: Path) -> None:
    project = make_project(
        tmp_path / "two", TABLE | {"targets": ["h100-sxm5-80gb", "h200"]}, name="model-cache-synthetic-1b-sm90"
    )
    recipe = load_recipe(project)
    out = make_artifacts(tmp_path / "out", project)
    assert pack(read(out), recipe, name=recipe.distribution_name, version="1", watch=NOTHING)
    edit(out, entries=[e for e in edit(out)["entries"] if e["target"] != "h200"])
    found = problems(out, recipe)
    assert found[:2] == [f"served name '{served}' on h200: no entry" for served in recipe.served_as]
    assert found[2:] == ["files/h200/backbone/rank_0_0/model: is not listed in artifacts.json"]


def test_a_rank_without_a_file(out: Path, recipe: Recipe) -> None:
    description = edit(out)
    description["entries"][0]["files"][0]["path"] = "rank_0_1/model"
    edit(out, entries=description["entries"])
    assert problems(out, recipe) == [
        f"{description['entries'][0]['directory']}: lists rank 0_0 and has no file in rank_0_0/"
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["0_0"]),
        (["--tensor-parallel-size", "2"], ["0_0", "1_0"]),
        (["--tensor_parallel_size=2", "-pp", "2"], ["0_0", "1_0", "2_0", "3_0"]),
        (["-dp=2"], ["0_0", "0_1"]),
        (["-tp", "8", "-tp", "1"], ["0_0"]),
        (["-tp"], ["0_0"]),
        (["--model-loader-extra-config", "-tp=x"], ["0_0"]),
    ],
)
def test_expected_ranks(arguments: list[str], expected: list[str]) -> None:
    assert expected_ranks(arguments) == expected


def test_a_kernel_of_another_architecture(out: Path, recipe: Recipe) -> None:
    kernels = edit(out)["kernels"]
    edit(out, kernels=[kernels[0] | {"arch": "sm_86"}])
    assert problems(out, recipe) == [
        "kernel triton_poi_fused_synthetic is for sm_86, its target h100-sxm5-80gb is sm_90"
    ]


# Secrets and places


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (TOKEN, "a Hugging Face token"),
        ("sk-" + "x9" * 12, "an API key (sk-…)"),
        ("AKIA" + "ABCD1234EFGH5678", "an AWS access key id"),
        ("ghp_" + "a" * 36, "a GitHub token"),
        ("-----BEGIN " + "OPENSSH PRIVATE KEY-----", "a private key"),
    ],
)
@pytest.mark.parametrize("suffix", ["json", "py"])
def test_a_secret_in_a_text_file(out: Path, recipe: Recipe, text: str, kind: str, suffix: str) -> None:
    add(out, f"rank_0_0/notes.{suffix}", f'{{"x": "{text}"}}'.encode(), contains=["other"])
    (problem,) = problems(out, recipe)
    assert problem.endswith(f"(rank_0_0/notes.{suffix}): holds {kind}")
    assert text not in problem


@pytest.mark.parametrize("text", ["ask-for-something-that-is-rather-long", "tok_hf_" + "a" * 40, "hf_short"])
def test_what_only_resembles_a_secret(out: Path, recipe: Recipe, text: str) -> None:
    add(out, "rank_0_0/notes.py", text.encode())
    assert packed(out, recipe)


def test_a_secret_in_the_manifest(out: Path, recipe: Recipe) -> None:
    edit(out, factors={"h100-sxm5-80gb": {"env.X": TOKEN}})
    assert problems(out, recipe) == ["manifest.json: would hold a Hugging Face token"]


def watch(**environ: str) -> Watch:
    return Watch.of_this_host({"HOME": "/", **environ})


def test_the_builders_secrets_are_searched_everywhere(out: Path, recipe: Recipe) -> None:
    add(out, "rank_0_0/binary", b"\x7fELF" + blob("before") + b"correct-horse" + blob("after"), contains=["cubin"])
    (problem,) = problems(out, recipe, watch(DEPLOY_PASSWORD="correct-horse"))
    assert problem.endswith("holds the value of the environment variable DEPLOY_PASSWORD")
    assert "correct-horse" not in problem
    assert packed(out, recipe, watch(DEPLOY_PASSWORD="correct"))  # too short to be searched
    assert packed(out, recipe, watch(DEPLOY_NAME="correct-horse"))


def test_the_builders_home(out: Path, recipe: Recipe) -> None:
    add(out, "rank_0_0/binary", b"\0/home/builder/venv/x.py\0", contains=["cubin"])
    edit(out, host_answers={"nvcc": "/home/builder/cuda/bin/nvcc"})
    found = problems(out, recipe, watch(HOME="/home/builder"))
    assert [problem.partition(": ")[2] for problem in found] == [
        "holds the builder's home directory (/home/builder)",
        "would hold the builder's home directory (/home/builder)",
    ]
    assert packed(out, recipe, watch(HOME="/home/build"))
    assert packed(out, recipe, watch(HOME="/"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("HF_TOKEN", True),
        ("GITHUB_TOKENS", True),
        ("VLLM_API_KEY", True),
        ("apikey", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("DB_PASSWORD", True),
        ("TOKENIZERS_PARALLELISM", False),
        ("HF_TOKEN_PATH", False),
        ("KEYBOARD", False),
    ],
)
def test_names_of_secrets(name: str, expected: bool) -> None:
    assert secret_name(name) is expected


def test_the_synthetic_artifacts_are_made_for_every_rank_and_name(recipe: Recipe, tmp_path: Path) -> None:
    description, files = document(recipe, ranks=["0_0", "1_0"])
    assert len(files) == 2
    assert len(description["entries"]) == len(recipe.served_as)
    directory: Mapping[str, Any] = edit(write_artifacts(tmp_path / "x", description, files))
    assert directory == description
