"""`max-wheel-size`: a wheel that an index would refuse is refused where it is built, and says where its bytes are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import shown
from build_factories import TABLE, make_artifacts, make_project
from hatch_model_cache.packing.signing import generate
from hatch_model_cache.packing.wheel_size import parse_size
from hatch_model_cache.recipe.file import load_recipe
from model_cache.errors import UsageError
from test_hook import built, refused

TWO = TABLE | {"targets": ["h100-sxm5-80gb", "h200"]}
NAME = "model-cache-synthetic-1b-sm90"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("100 MB", 100_000_000),
        ("1kB", 1000),
        ("1.5 GiB", 3 * 2**29),
        ("0.001 MB", 1000),
        ("999999999 GB", 999_999_999 * 10**9),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["100", "100 mb", "-1 MB", "0 MB", "1e3 MB", "1 MB ", "٣ MB", "0.0000001 kB", "MB"])
def test_what_is_no_size(tmp_path: Path, text: str) -> None:
    project = make_project(tmp_path, TABLE | {"max-wheel-size": text})
    with pytest.raises(UsageError) as caught:
        load_recipe(project)
    assert any("max-wheel-size: must " in problem for problem in caught.value.problems)


@pytest.mark.fleet
def test_a_wheel_within_the_limit(tmp_path: Path) -> None:
    project = make_project(tmp_path / "one", TWO | {"max-wheel-size": "1 MB"}, name=NAME)
    wheel, _ = built(project, MODEL_CACHE_ARTIFACTS=make_artifacts(tmp_path / "compiled", project))
    assert wheel.stat().st_size < 10**6


@pytest.mark.fleet
def test_a_larger_one_is_deleted_and_says_where_its_bytes_are(tmp_path: Path) -> None:
    project = make_project(tmp_path / "one", TWO | {"max-wheel-size": "10 kB"}, name=NAME)
    output = refused(project, "-t", "wheel", MODEL_CACHE_ARTIFACTS=make_artifacts(tmp_path / "compiled", project))
    first, *parts = (line for line in output.splitlines() if "warning: " not in line)
    assert "more than `max-wheel-size` allows (10.0 kB)" in first
    [in_the_guide] = [block for block in shown.blocks("publish.md", "") if "max-wheel-size" in block]
    assert set(without_sizes("\n".join([first, *parts]))) == set(without_sizes(in_the_guide))
    sizes = {match[1]: float(match[2]) for part in parts if (match := re.fullmatch(r"  - (.+): ([\d.]+) kB", part))}
    assert sizes.keys() == {"vllm-aot for h100-sxm5-80gb", "vllm-aot for h200", "manifest and metadata"}
    assert sizes["vllm-aot for h200"] >= 3, "the payload does not compress"


def without_sizes(text: str) -> list[str]:
    return re.sub(r"[\d.]+ [kM]B", "SIZE", text).splitlines()


@pytest.mark.fleet
def test_a_signature_counts_too(tmp_path: Path) -> None:
    project = make_project(tmp_path / "one")
    compiled = make_artifacts(tmp_path / "compiled", project)
    wheel, _ = built(project, MODEL_CACHE_ARTIFACTS=compiled)
    limit = f"{(wheel.stat().st_size + 50) / 1000} kB"
    fits = make_project(tmp_path / "two", TABLE | {"max-wheel-size": limit})
    assert built(fits, MODEL_CACHE_ARTIFACTS=compiled)[0].read_bytes() == wheel.read_bytes(), "the limit is not in it"
    private, _, _ = generate(tmp_path / "key")
    (fits / "dist" / wheel.name).unlink()
    output = refused(fits, "-t", "wheel", MODEL_CACHE_ARTIFACTS=compiled, MODEL_CACHE_SIGNING_KEY=private)
    assert "more than `max-wheel-size` allows" in output
