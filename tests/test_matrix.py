"""`matrix.toml`: what is read from it, which wheels follow, which of them are stale, and what a pipeline is given."""

from __future__ import annotations

import io
import json
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from build_factories import CONFIG
from factories import make_wheel
from hatch_model_cache import targets
from hatch_model_cache.compile import engines
from hatch_model_cache.compiling import interpreter
from hatch_model_cache.matrix import builder, cells, display, emission, matrix_file, records
from hatch_model_cache.matrix.cells import Cell, merged
from hatch_model_cache.matrix.machine import weight
from hatch_model_cache.packing import signing
from model_cache import cli
from model_cache.errors import CompileError, NotFoundError, UsageError

TEXT = """
version = "1.2.0"
engines = ["vllm==0.33.0"]
targets = ["h100-sxm5-80gb", "a100-sxm4-80gb"]
environment = { VLLM_USAGE_SOURCE = "ci", SHARED = "all" }

[models."org/Small"]
config = "model"
served-as = ["org/Small", "/models/small"]
serve-args = ["--max-model-len", "512"]
environment = { SHARED = "small" }
variants = ["default", "long"]

[models."org/Large"]
revision = "0123456789abcdef0123456789abcdef01234567"
version = "2.0.0"
targets = ["hopper"]
serve-args = ["--tensor-parallel-size", "4"]

[variants.long]
serve-args = ["--max-model-len", "131072"]
environment = { LONG = "1" }

[hardware]
hopper = ["h100-sxm5-80gb", "h200"]

[[exclude]]
target = "a100-*"
variant = "long"

[[include]]
model = "org/Large"
target = "b200"
"""
SMALL, LONG = "model-cache-small-h100-sxm5-80gb", "model-cache-small-long-h100-sxm5-80gb"
PINS = ("--max-num-batched-tokens", "8192", "--max-num-seqs", "1024")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with the matrix above."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "matrix.toml").write_text(TEXT)
    return tmp_path


def read(directory: Path, text: str = TEXT) -> list[Cell]:
    return cells.cells(matrix_file.parse(tomllib.loads(text), directory))


def problems(directory: Path, text: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        read(directory, text)
    return list(caught.value.problems)


# What follows from the file


def test_the_cells(directory: Path) -> None:
    found = read(directory)
    assert [cell.identifier for cell in found] == [
        f"{SMALL}==1.2.0",
        f"{LONG}==1.2.0",
        "model-cache-small-a100-sxm4-80gb==1.2.0",
        "model-cache-large-hopper==2.0.0",
        "model-cache-large-b200==2.0.0",
    ]
    small, long, a100, hopper, _ = (cell.recipe for cell in found)
    assert small.serve_args == ("--max-model-len", "512", *PINS)
    assert long.serve_args == ("--max-model-len", "131072", *PINS), "a variant replaces what it names"
    assert a100.serve_args[2:] == ("--max-num-batched-tokens", "2048", "--max-num-seqs", "256")
    assert small.environment == {"VLLM_USAGE_SOURCE": "ci", "SHARED": "small"}
    assert long.environment == {"VLLM_USAGE_SOURCE": "ci", "SHARED": "small", "LONG": "1"}
    assert small.served_as == ("org/Small", "/models/small")
    assert hopper.targets == ("h100-sxm5-80gb", "h200"), "one wheel for a group"
    assert hopper.config is None


def test_a_group_with_its_natural_name_needs_no_option(directory: Path) -> None:
    text = TEXT.replace("hopper", "sm90")
    [cell] = [cell for cell in read(directory, text) if cell.name == "model-cache-large-sm90"]
    assert cell.recipe.hardware is None


def test_the_engine_can_be_in_the_version(directory: Path) -> None:
    found = read(directory, TEXT.replace('"1.2.0"', '"{engine}.7"'))
    assert found[0].identifier == f"{SMALL}==0.33.0.7"


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ([["-a", "1", "--b_c", "2"], ["--b-c=3"]], ["-a", "1", "--b-c=3"]),
        ([["--x", "1", "--x", "2"], []], ["--x", "1", "--x", "2"]),
        ([["--x", "1", "--x", "2"], ["--x", "3"]], ["--x", "3"]),
        ([["--seed", "-1"], ["--no-y"]], ["--seed", "-1", "--no-y"]),
        ([["--list", "a", "b"], ["--list", "c"]], ["--list", "c"]),
    ],
)
def test_later_arguments_replace_earlier_ones(sets: list[list[str]], expected: list[str]) -> None:
    assert merged(*sets) == expected


def test_ranks_weigh(directory: Path) -> None:
    assert {cell.name: weight(cell) for cell in read(directory)} == {
        SMALL: 1,
        LONG: 1,
        "model-cache-small-a100-sxm4-80gb": 1,
        "model-cache-large-hopper": 3,
        "model-cache-large-b200": 3,
    }


def test_the_notes_of_targets_that_differ(directory: Path) -> None:
    text = TEXT.replace('["h100-sxm5-80gb", "h200"]', '["h100-sxm5-80gb", "a100-sxm4-80gb"]')
    [cell] = [cell for cell in read(directory, text) if cell.name == "model-cache-large-hopper"]
    assert cell.recipe.serve_args == ("--tensor-parallel-size", "4")
    assert "choose one for all" in cell.project.notes[0]


@pytest.mark.parametrize(
    ("pattern", "count"),
    [("*small*", 3), (SMALL, 1), (f"{SMALL}==1.2.0", 1), ("Model_Cache_small_*==1.*", 3), ("*==2.0.0", 2)],
)
def test_only(directory: Path, pattern: str, count: int) -> None:
    assert len(cells.chosen(read(directory), [pattern])) == count


def test_only_what_is_there(directory: Path) -> None:
    with pytest.raises(NotFoundError, match="no such wheel"):
        cells.chosen(read(directory), [SMALL, f"{SMALL}==9"])


def test_a_speculative_model_goes_to_the_variant_that_names_it(directory: Path) -> None:
    text = TEXT.replace(
        'variants = ["default", "long"]', 'variants = ["default", "long"]\ndrafts = { "org/D" = "model" }'
    )
    named = """--speculative-config", '{"model": "org/D", "num_speculative_tokens": 3}'"""
    text = text.replace('["--max-model-len", "131072"]', f'["--max-model-len", "131072", "{named}]')
    found = {cell.name: cell.recipe for cell in read(directory, text)}
    assert found[LONG].draft_dirs == {"org/D": directory / "model"}
    assert found[SMALL].draft_dirs == {}
    assert "drafts/org-d/config.json" in read(directory, text)[1].project.files()
    told = problems(directory, text.replace('"org/D" = "model"', '"org/D" = "nowhere"'))
    assert [problem.partition(": ")[0] for problem in told] == ['models."org/Small".drafts."org/D"']
    told = problems(directory, text.replace('"model": "org/D"', '"model": "org/E"'))
    assert told[0].startswith("org/Small × h100-sxm5-80gb × vllm==0.33.0 × long: drafts: has no 'org/E'")


# Problems


def test_all_problems_come_together_with_their_paths(directory: Path) -> None:
    found = problems(
        directory,
        """
version = "one"
engine = ["vllm==0.33.0"]
engines = ["vllm>=0.33"]
targets = ["h100-sxm5-80gb", "h100-sxm5-80gb", "h100-smx5"]
serve-args = "--max-model-len 512"
environment = { HF_TOKEN = "x", 1a = "b" }
[models."org/Small"]
served-as = []
variants = ["lang"]
targets = ["hoper"]
hardware = "x"
[models."org/Large"]
config = "../elsewhere"
engines = 7
serve-args = ["--model", "x"]
[variants.long]
serve_args = []
[variants.Long]
[variants.default]
[hardware]
h200 = ["h100-nvl"]
hopper = ["h100"]
[[include]]
model = "org/Smal"
[[exclude]]
gpu = "h200"
[[exclude]]
""",
    )
    paths = [problem.partition(": ")[0] for problem in found]
    assert sorted(paths) == sorted(
        [
            "version",
            "engine",
            "engines[0]",
            "targets[1]",
            "targets[2]",
            "serve-args",
            "environment.HF_TOKEN",
            "environment.1a",
            'models."org/Small".hardware',
            'models."org/Small"',
            'models."org/Small".served-as',
            'models."org/Small".variants[0]',
            'models."org/Small".targets[0]',
            'models."org/Large".config',
            'models."org/Large".engines',
            'models."org/Large".serve-args[0]',
            "variants.long.serve_args",
            "variants.Long",
            "variants.default",
            "hardware.h200",
            "hardware.hopper[0]",
            "include[0]",
            "include[0].model",
            "exclude[0].gpu",
            "exclude[1]",
        ]
    )
    assert "engine: unknown key; did you mean `engines`?" in found
    assert "variants.long.serve_args: unknown key; did you mean `serve-args`?" in found


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("[[exclude]]\ntarget", '[[exclude]]\nmodel = "x"\ntarget'), "exclude[0]: matches nothing"),
        (('target = "b200"', 'target = "hopper"'), "include[0]: org/Large × hopper × vllm==0.33.0 × default is in the"),
        (("[models.", "[model."), "models: is required and missing"),
        (('"--tensor-parallel-size", "4"', '"org/Large"'), 'models."org/Large".serve-args[0]: '),
        (('engines = ["vllm==0.33.0"]', ""), 'models."org/Small".engines: is missing'),
        (("[models.", "include = 3\n[models."), "include: must be tables"),
    ],
)
def test_one_problem(directory: Path, change: tuple[str, str], expected: str) -> None:
    text = TEXT if change[1] != "include = 3\n[models." else TEXT.partition("[[exclude]]")[0]
    assert any(problem.startswith(expected) for problem in problems(directory, text.replace(*change)))


def test_two_wheels_of_one_name(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.adapter("vllm"), "VERSIONS", frozenset({"0.33.0", "0.34.0"}))
    text = TEXT.replace('engines = ["vllm==0.33.0"]', 'engines = ["vllm==0.33.0", "vllm==0.34.0"]')
    found = problems(directory, text)
    assert found[0].startswith(f"{SMALL}==1.2.0: two engines give this one wheel (vllm==0.33.0 and vllm==0.34.0)")
    told_apart = text.replace('"1.2.0"', '"{engine}.1"').replace('"2.0.0"', '"{engine}.2"')
    assert len(read(directory, told_apart)) == 10


def test_an_engine_version_that_no_adapter_knows(directory: Path) -> None:
    found = problems(directory, TEXT.replace('engines = ["vllm==0.33.0"]', 'engines = ["vllm==9.9.0"]'))
    assert any(p.startswith("engines[0]: 'vllm==9.9.0' is not known to this release, which knows ") for p in found)


def test_a_combination_that_makes_no_recipe_is_told_with_its_place(directory: Path) -> None:
    text = TEXT.replace('targets = ["hopper"]', 'targets = ["x86-64-avx512"]')
    found = problems(directory, text)
    assert found[0].startswith("org/Large × x86-64-avx512 × vllm==0.33.0 × default: targets: ")


@pytest.mark.parametrize("what", ["missing", "directory", "toml", "nested"])
def test_files_that_cannot_be_read(tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "matrix.toml"
    if what == "directory":
        path.mkdir()
        (path / "matrix.toml").mkdir()
    elif what != "missing":
        path.write_text("a = [" if what == "toml" else "a = " + "[" * 9999)
    assert cli.main(["matrix", "plan", str(path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "matrix.toml" in line


# What is stale


@pytest.fixture
def order(directory: Path) -> Callable[..., builder.Order]:
    """The first cell as it is now."""

    def make(text: str = TEXT) -> builder.Order:
        found = read(directory, text)[:1]
        return builder.orders(found, directory / "work", directory / "dist")[0]

    return make


def build_falsely(order: builder.Order, directory: Path) -> Path:
    """Record a made-up wheel for an order."""
    wheel = make_wheel(directory / "dist", name=order.cell.name, version=order.cell.version)
    record = records.Record(order.key, wheel.name, records.content_of(wheel), 1.0)
    records.write(order.cell, record, directory / "work")
    return wheel


def test_up_to_date_and_why_not(
    order: Callable[..., builder.Order], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert order().state == records.State(True, "not built yet")
    wheel = build_falsely(order(), directory)
    assert order().state == records.State(False, "up to date", wheel)
    recipe = "the recipe, its configuration or its project changed"
    assert order(TEXT.replace("512", "1024")).state.reason == recipe
    (directory / "model/generation_config.json").write_text("{}")
    assert order().state.reason == recipe
    (directory / "model/generation_config.json").unlink()
    assert not order().state.stale
    (directory / "model/model.safetensors").write_bytes(b"weights")
    assert not order().state.stale, "weights are not part of it"
    with monkeypatch.context() as patch:
        patch.setattr("model_cache.__version__", "99")
        assert order().state.reason == "another version of hatch-model-cache"
    with monkeypatch.context() as patch:
        patch.setattr(records, "_own_source", lambda: "0" * 64)
        assert order().state.reason == "another source of hatch-model-cache"
    make_wheel(wheel.parent, name=SMALL, version="1.2.0", changes={"model.id": "org/Other"})
    assert order().state.reason == f"{wheel.name} is not as it was built"
    wheel.write_bytes(b"other")
    assert order().state.reason == f"{wheel.name} is not as it was built"
    wheel.unlink()
    assert order().state.reason == f"{wheel.name} is not there any more"


def test_a_wheel_that_was_signed_is_still_up_to_date(order: Callable[..., builder.Order], directory: Path) -> None:
    wheel = build_falsely(order(), directory)
    before = wheel.read_bytes()
    private, _, _ = signing.generate(directory / "release")
    signing.sign_wheel(wheel, signing.load_key(str(private)))
    assert wheel.read_bytes() != before
    assert order().state == records.State(False, "up to date", wheel)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"key": {}}', '{"key": 3, "wheel": "../x"}'])
def test_a_record_that_is_none_means_a_build(
    order: Callable[..., builder.Order], directory: Path, content: str
) -> None:
    build_falsely(order(), directory)
    [record] = (directory / "work/records").iterdir()
    record.write_text(content)
    assert order().state.reason == "not built yet"


def test_the_source_of_this_project_is_in_the_key() -> None:
    assert len(records._own_source()) == 64
    assert records._own_source() == records._own_source()


# The command line


def test_plan(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["matrix", "plan", str(directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["wheel", "version", "engine"]
    assert lines[1] == f"{SMALL:37}  1.2.0    vllm==0.33.0  build: not built yet"
    assert lines[6:] == ["5 of 5 wheels are to be built"]
    assert cli.main(["matrix", "plan", str(directory / "matrix.toml"), "--only", LONG, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["stale"] == 1
    [cell] = answer["cells"]
    assert (cell["name"], cell["variant"], cell["stale"], cell["file"]) == (LONG, "long", True, None)
    assert not (directory / ".model-cache-matrix").exists(), "a plan writes nothing"


def emitted(directory: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["matrix", "emit", str(directory), *arguments]) == 0
    return capsys.readouterr().out


def test_emit_for_github(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = emitted(directory, capsys, "--format", "github")
    assert text.count("\n") == 1, "GITHUB_OUTPUT takes lines"
    matrix = json.loads(text)
    assert [cell["wheel"] for cell in matrix["include"]][:2] == [f"{SMALL}==1.2.0", f"{LONG}==1.2.0"]


def test_emit_for_gitlab(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline: dict[str, Any] = yaml.safe_load(emitted(directory, capsys, "--format", "gitlab", "--only", LONG))
    job = pipeline[f"{LONG}==1.2.0"]
    assert job["script"] == [f"model-cache matrix build {directory} --only {LONG}==1.2.0"]
    assert pipeline["stages"] == ["build", "sign", "publish"]


def test_emit_leaves_out_what_is_up_to_date(
    directory: Path, order: Callable[..., builder.Order], capsys: pytest.CaptureFixture[str]
) -> None:
    build_falsely(order(), directory)
    place = ("--work", str(directory / "work"), "--out", str(directory / "dist"), "--only", SMALL)
    assert json.loads(emitted(directory, capsys, "--format", "github", *place)) == {"include": []}
    assert len(json.loads(emitted(directory, capsys, "--format", "json", "--all", *place))["cells"]) == 1
    pipeline = yaml.safe_load(emitted(directory, capsys, "--format", "gitlab", *place))
    assert "up-to-date" in pipeline, "a pipeline without jobs is an error"


def test_github_takes_so_many_jobs(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emission, "GITHUB_JOBS", 4)
    found = builder.orders(read(directory), directory / "work", directory / "dist")
    with pytest.raises(UsageError, match="5 wheels are to be built, and GitHub takes 4"):
        emission.emit(found, "github", path=".")
    assert emission.emit(found[:4], "github", path=".")


def test_a_live_table_shows_first_what_is_going_on(directory: Path) -> None:
    orders = builder.orders(read(directory), directory / "work", directory / "dist")
    table = display.LiveTable(orders)
    table.begun(orders[3].cell)
    table.ended(builder.Outcome(orders[0], error=CompileError("no")))
    table.ended(builder.Outcome(orders[1], directory / "x.whl"))
    names = [orders[at].cell.identifier for at in (3, 0, 2, 4, 1)]
    assert [name for name, _ in table._ordered()] == names
    table.finish()
    assert [name for name, _ in table._ordered()] == [order.cell.identifier for order in orders]


@pytest.mark.parametrize("width", [50, 40, 30, 22])
def test_a_narrow_table_tells_wheels_apart(width: int) -> None:
    names = [f"model-cache-qwen3-8b-long-context-{name}" for name in ("h100-sxm5-80gb", "h100-pcie-80gb", "h200")]
    shown = [display.shortened(name, width) for name in names]
    assert len(set(shown)) == len(names)
    assert all(len(text) <= width for text in shown)
    assert [text[-4:] for text in shown] == ["80gb", "80gb", "h200"]


def test_a_live_table_is_as_wide_as_the_terminal(directory: Path) -> None:
    orders = builder.orders(read(directory), directory / "work", directory / "dist")
    output = io.StringIO()
    Console(file=output, width=60).print(display.LiveTable(orders)._table())
    lines = output.getvalue().splitlines()
    assert len(lines) == 1 + len(orders)
    assert all(len(line) <= 60 for line in lines)
    assert all(order.cell.name[-6:] in line for order, line in zip(orders, lines[1:], strict=True))


def test_a_count_that_is_none(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "matrix.toml").write_text(TEXT)
    assert cli.main(["matrix", "build", str(directory), "--jobs", "x"]) == 2
    assert "--jobs: must be a whole number, 1 or more, not 'x'" in capsys.readouterr().err


def test_a_matrix_without_an_interpreter(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "matrix.toml").write_text(TEXT)
    monkeypatch.delenv(interpreter.VARIABLE, raising=False)
    monkeypatch.setattr(interpreter, "is_here", lambda _: False)
    assert cli.main(["matrix", "build", str(directory)]) == 2
    error = capsys.readouterr().err
    assert "No interpreter with vllm is known: set MODEL_CACHE_PYTHON" in error
    assert "MODEL_CACHE_ARTIFACTS" not in error


def test_a_large_matrix_is_planned_in_seconds(directory: Path) -> None:
    models = "".join(f'[models."org/M{n}"]\nconfig = "model"\nvariants = ["default", "v"]\n' for n in range(8))
    names = json.dumps([name for name in targets.names() if targets.load(name).kind == "gpu"])
    text = f'engines = ["vllm==0.33.0"]\ntargets = {names}\n{models}[variants.v]\nserve-args = ["--seed", "1"]\n'
    begun = time.process_time()
    orders = builder.orders(read(directory, text), directory / "work", directory / "dist")
    assert len(orders) >= 240
    assert time.process_time() - begun < 8


words = st.sampled_from(
    [*matrix_file._TOP, *matrix_file._MODEL_OPTIONS, *matrix_file._AXES, "default", "long", "org/M", "hopper", "b200"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | words | st.sampled_from(["vllm==0.33.0", "*"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(st.dictionaries(words, values, max_size=6))
def test_whatever_a_file_holds_is_read_or_refused(directory: Path, table: dict[str, Any]) -> None:
    right = tomllib.loads(TEXT)
    for candidate in (table, right | table):
        told: tuple[str, ...] = ()
        try:
            cells.cells(matrix_file.parse(candidate, directory))
        except UsageError as error:
            told = error.problems or ("nothing",)
        assert all(": " in problem for problem in told), told
