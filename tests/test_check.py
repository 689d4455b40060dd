"""`model-cache check` around a fake engine: what it is asked, what is told, and with which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build_factories import TABLE, make_project
from factories import CONTENTS, H100, make_wheel
from fakes import fake_look_up
from hatch_model_cache import cli
from hatch_model_cache.checking import check
from hatch_model_cache.checking.verdict import Answer
from hatch_model_cache.compiling import engine_process, interpreter
from hatch_model_cache.compiling.progress import Silent
from model_cache.errors import CompileError, UsageError
from verdicts import FACTORS, FLAGS, HOST, OPTIONS, OTHER_KEY, UNKEYED, look_up, wheel

COMMAND = ("--", "vllm", "serve", "test-org/Synthetic-1B", "--max-num-seqs", "1024")
TARGET = ("--target", str(H100["name"]))

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def report(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """What the fake engine saw."""
    return lambda: json.loads((tmp_path / "report.json").read_text())


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what the fake engine says: a hit, but for the changes."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv(interpreter.VARIABLE, str(fake_look_up.interpreter(tmp_path)))
    monkeypatch.setenv("FAKE_RESULT", str(tmp_path / "result.json"))
    monkeypatch.setenv("FAKE_REPORT", str(tmp_path / "report.json"))

    def set_answer(**changes: Any) -> None:
        hit = {
            "engine": vars(wheel().engine),
            "host_answers": HOST,
            "look_ups": [look_up()],
            "why_nothing": None,
            "flags": FLAGS,
            "options": OPTIONS,
        }
        (tmp_path / "result.json").write_text(json.dumps(hit | changes))

    set_answer()
    return set_answer


@pytest.fixture
def built(tmp_path: Path) -> str:
    """Path of a wheel."""
    changes = {"factors": {"f": FACTORS}, "host_answers": HOST, "unkeyed": UNKEYED}
    return str(make_wheel(tmp_path / "dist", CONTENTS, changes=changes))


@pytest.fixture
def run(answer: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> Run:
    """`model-cache check`: exit code, stdout, stderr."""

    def run_check(*words: str, command: tuple[str, ...] = COMMAND, target: tuple[str, ...] = TARGET) -> Any:
        code = cli.main(["check", *target, *words, *command])
        return (code, *capsys.readouterr())

    return run_check


def test_a_hit(run: Run, built: str) -> None:
    assert run(built) == (0, "hit: model-cache-synthetic-1b-h100-sxm5-80gb 1.0.0\n", "")


def test_a_miss_with_its_reason(run: Run, built: str, answer: Callable[..., None]) -> None:
    answer(look_ups=[look_up(OTHER_KEY, scheduler__max_num_seqs="256")])
    code, out, _ = run(built, command=("--", "vllm", "serve", "m", "--max-num-seqs", "256"))
    assert code == 10
    assert out.splitlines() == [
        "miss: model-cache-synthetic-1b-h100-sxm5-80gb 1.0.0",
        "  miss: scheduler.max_num_seqs is 256 here, 1024 in the wheel. Give --max-num-seqs 1024.",
    ]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("A=\0", "line 1: holds a NUL character"),
        ("A=1\nB=" + "x" * 200_000, "line 2: B is longer than"),
        ("A=1\n\nB", "line 3: must be NAME=value"),
        ("=x", "must be NAME=value"),
        ("A B=x", "must be NAME=value"),
        ("A =x", "must be NAME=value"),
    ],
)
def test_an_environment_file_that_no_process_could_be_given(tmp_path: Path, content: str, why: str) -> None:
    file = tmp_path / "env"
    file.write_text(content)
    with pytest.raises(UsageError) as caught:
        check.read_environment_file(file)
    assert why in str(caught.value)


def test_an_environment_file_as_docker_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_bytes("\ufeffa.b-c=1\r\n# no\n  D= x=y \nE=u\u2028v\x0bw\x85".encode())
    assert check.read_environment_file(file) == {"a.b-c": "1", "D": " x=y ", "E": "u\u2028v\x0bw\x85"}


def test_an_environment_that_is_too_large_as_a_whole(run: Run, built: str, tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("".join(f"A{number}={'x' * 100_000}\n" for number in range(40)))
    code, _, err = run(built, "--env", str(file))
    assert code == 2
    assert "cannot be started: Argument list too long" in err


def test_a_process_whose_directory_is_gone(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    with subprocess.Popen(["/bin/sleep", "60"], cwd=place) as process:
        place.rmdir()
        code, _, err = run("--from-pid", str(process.pid), command=())
        process.kill()
    assert code == 2
    assert "is not there" in err


def test_unsafe(run: Run, built: str, answer: Callable[..., None]) -> None:
    answer(host_answers=HOST | {"has_flashinfer": True})
    code, out, _ = run(built)
    assert code == 11
    assert "unsafe: has_flashinfer is True here, False in the wheel" in out


def test_a11_the_target_of_the_check_is_what_counts(run: Run, built: str) -> None:
    code, out, _ = run(built, target=("--target", "a100-sxm4-80gb"))
    assert code == 11
    assert "compute_capability is 8.0 here, 9.0 in the wheel" in out


def test_unknown_when_nothing_is_looked_up(run: Run, built: str, answer: Callable[..., None]) -> None:
    answer(look_ups=[], why_nothing="torch.compile is off")
    code, out, _ = run(built)
    assert code == 12
    assert "torch.compile is off" in out


def test_unknown_when_the_engine_s_version_has_no_adapter(run: Run, built: str, answer: Callable[..., None]) -> None:
    answer(error="vllm 9.9 is not known to this release; known: 0.33.0", unknown=True)
    code, out, _ = run(built)
    assert code == 12
    assert "vllm 9.9 is not known to this release" in out
    assert "unknown: model-cache-synthetic-1b-h100-sxm5-80gb 1.0.0" in out
    code, out, _ = run(built, "--json")
    assert code == 12
    document = json.loads(out)
    assert document["verdict"] == "unknown"
    assert "9.9" in document["problem"]
    assert [w["answer"] for w in document["wheels"]] == ["unknown"]


def test_an_engine_that_fails_is_no_verdict(run: Run, built: str, answer: Callable[..., None], tmp_path: Path) -> None:
    answer(error="ValueError: the model has an odd head size")
    code, out, err = run(built)
    assert (code, out) == (6, "")
    assert "odd head size" in err
    (tmp_path / "result.json").unlink()
    code, out, err = run(built, "--json")
    assert code == 6
    assert "without a result" in json.loads(out)["error"]["message"]


@pytest.mark.parametrize(
    ("words", "command", "said"),
    [
        ((), (), "give the engine's command line after --"),
        (("--from-pid", "1"), COMMAND, "not both"),
        ((), ("--", "vllm", "bench"), "no engine's command line"),
        ((), ("--", "vllm", "serve"), "no model after"),
        ((), ("--", "python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"), "python -m"),
        (("--env", "/nonexistent"), COMMAND, "/nonexistent cannot be read"),
    ],
)
def test_wrong_usage(run: Run, words: tuple[str, ...], command: tuple[str, ...], said: str) -> None:
    code, out, err = run(*words, command=command)
    assert (code, out) == (2, "")
    assert said in err


def test_what_is_not_found(run: Run, built: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = run("model-cache-absent")
    assert code == 5
    assert "is not installed" in err
    code, _, err = run(built, target=("--target", "h101-sxm5"))
    assert code == 2
    assert "h101-sxm5" in err
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(
        "hatch_model_cache.commands.check.probe_gpus", lambda: type("No", (), {"gpus": (), "reason": "none"})
    )
    code, _, err = run(built, target=())
    assert code == 5
    assert "give --target NAME" in err


def test_the_engine_is_asked_with_exactly_the_command_and_the_environment(
    run: Run, built: str, report: Callable[[], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_FROM_HERE", "1")
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/not/to/be/touched")
    monkeypatch.setenv("CI", "true")
    (tmp_path / "env").write_text("# a comment\n\nVLLM_FROM_FILE=a b=c \n")
    command = ("--", "env", "VLLM_FROM_COMMAND=1", "/opt/bin/vllm", "serve", "m", "--seed", "1", "--", "--json")
    assert run(built, "--env", str(tmp_path / "env"), command=command)[0] == 0
    seen = report()
    assert seen["job"]["serve_arguments"] == ["m", "--seed", "1", "--", "--json"]
    assert seen["job"]["task"] == "look-up"
    assert seen["job"]["target"]["sm_count"] == 132
    environment = seen["environment"]
    assert environment["VLLM_FROM_HERE"] == "1"
    assert environment["VLLM_FROM_FILE"] == "a b=c "
    assert environment["VLLM_FROM_COMMAND"] == "1"
    assert "CI" not in environment, "it is this pipeline's, not the host's of --target"
    assert environment["MODEL_CACHE_DISABLE"] == "1", "a check deploys nothing"
    assert environment["VLLM_CACHE_ROOT"].startswith(str(tmp_path / "temporary")), "a check leaves nothing"
    assert environment["TMPDIR"].startswith(str(tmp_path / "temporary/model-cache-check-"))
    assert list((tmp_path / "temporary").iterdir()) == []
    assert seen["cwd"] == str(Path.cwd())
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a01_a_variable_that_only_this_engine_knows_is_named(
    run: Run, built: str, answer: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A01: the variables come from the installed engine; one that no list of ours holds is compared, too."""
    monkeypatch.setenv("VLLM_BRAND_NEW", "7")
    answer(look_ups=[look_up(OTHER_KEY, env__VLLM_BRAND_NEW="7")])
    code, out, _ = run(built)
    assert code == 10
    assert "env.VLLM_BRAND_NEW is 7 here, absent in the wheel. Unset VLLM_BRAND_NEW." in out


@pytest.mark.parametrize("name", ["/models/M", "/hub/models--test-org--Synthetic-1B/snapshots/abc"])
def test_a02_another_model_string_is_named_with_the_one_to_use(
    run: Run, built: str, answer: Callable[..., None], name: str
) -> None:
    """A02: the same weights under another path, or under the snapshot's path offline."""
    answer(look_ups=[look_up(OTHER_KEY, model__model=name)])
    code, out, _ = run(built)
    assert code == 10
    assert f"model.model is {name} here" in out
    assert "Serve it as test-org/Synthetic-1B or /models/synthetic." in out


def test_json(run: Run, built: str, answer: Callable[..., None]) -> None:
    answer(look_ups=[look_up(OTHER_KEY, model__dtype="torch.float16")])
    code, out, _ = run(built, "--json")
    assert code == 10
    assert json.loads(out) == {
        "verdict": "miss",
        "problem": None,
        "wheels": [
            {
                "name": "model-cache-synthetic-1b-h100-sxm5-80gb",
                "version": "1.0.0",
                "answer": "miss",
                "reasons": [
                    {
                        "factor": "model.dtype",
                        "wheel": "torch.bfloat16",
                        "host": "torch.float16",
                        "answer": "miss",
                        "change": "give --dtype torch.bfloat16",
                        "why": "",
                    }
                ],
                "keys": {"backbone": OTHER_KEY},
                "adoptable": False,
            }
        ],
    }


class TestSeveralWheels:
    """The one that decides comes first, and its verdict is the exit code."""

    @pytest.fixture
    def others(self, tmp_path: Path) -> tuple[str, str]:
        """A wheel that misses, and one that is unsafe."""
        paths = []
        for name, changes in (
            ("model-cache-misses-h100-sxm5-80gb", {"entries.0.key": OTHER_KEY, "entries.1.key": "5" * 64}),
            ("model-cache-unsafe-h100-sxm5-80gb", {"host_answers": HOST | {"has_tilelang": True}}),
        ):
            values = {"factors": {"f": FACTORS}, "host_answers": HOST, "unkeyed": UNKEYED} | changes
            paths.append(str(make_wheel(tmp_path / name, CONTENTS, name=name, changes=values)))
        return paths[0], paths[1]

    def test_one_that_hits_is_enough(self, run: Run, built: str, others: tuple[str, str]) -> None:
        code, out, _ = run(others[0], built)
        assert code == 0
        assert out.splitlines()[0].startswith("hit: model-cache-synthetic-1b")
        assert "miss: model-cache-misses" in out

    def test_a12_one_that_is_unsafe_speaks_for_all(self, run: Run, built: str, others: tuple[str, str]) -> None:
        """A12: two wheels with one key: the engine loads whichever was deployed first."""
        code, out, _ = run(built, *others, "--json")
        assert code == 11
        document = json.loads(out)
        assert document["verdict"] == "unsafe"
        assert [w["answer"] for w in document["wheels"]] == ["unsafe", "hit", "miss"]

    def test_none_that_hits_is_a_miss(self, run: Run, others: tuple[str, str]) -> None:
        assert run(others[0])[0] == 10


def test_a13_the_ranks_of_the_command_are_those_that_look(run: Run, built: str) -> None:
    """A13: the visible device 1 is index 0 inside; a second rank is index 1, and has an artifact of its own."""
    one = ("--", "env", "CUDA_VISIBLE_DEVICES=1", *COMMAND[1:])
    assert run(built, command=one)[0] == 0
    assert run(built, command=(*COMMAND, "-tp", "2"))[0] == 0, "the wheel of the factories has two ranks"
    code, out, _ = run(built, command=(*COMMAND, "-tp", "4"))
    assert code == 10
    assert "miss: ranks is 0_0, 1_0, 2_0, 3_0 here, 0_0, 1_0 in the wheel." in out


class TestCommand:
    """`check.parse_command`."""

    @pytest.mark.parametrize(
        "words",
        ["vllm serve m -x", "/opt/venv/bin/vllm serve m -x", "/usr/bin/python3 /opt/venv/bin/vllm serve m -x"],
    )
    def test_a_path_or_an_interpreter_may_stand_before(self, words: str) -> None:
        assert check.parse_command(words.split()) == check.Command("vllm", ("m", "-x"))

    def test_flags_may_come_first(self) -> None:
        """The engine's parser finds the model; ``--config`` may hold it."""
        assert check.parse_command(["vllm", "serve", "--config", "c.yaml"]).arguments == ("--config", "c.yaml")

    def test_variables_before_the_command_are_its_own(self) -> None:
        command = check.parse_command(["A=1", "/usr/bin/env", "B=x=y", "vllm", "serve", "m", "C=3"])
        assert command.environment == {"A": "1", "B": "x=y"}
        assert command.arguments == ("m", "C=3")

    @pytest.mark.parametrize("options", [["-i"], ["-u", "HOME"]])
    def test_env_that_takes_away_is_refused(self, options: list[str]) -> None:
        with pytest.raises(UsageError, match="is not understood"):
            check.parse_command(["env", *options, "A=1", "vllm", "serve", "m"])


@pytest.mark.parametrize("line", ["no equals", "=secret", "export A=1"])
def test_an_environment_file_is_refused_with_the_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "env"
    path.write_text(f"GOOD=1\n{line}\n")
    with pytest.raises(UsageError, match=rf"{path}, line 2: must be NAME=value") as refused:
        check.read_environment_file(path)
    assert line not in str(refused.value), "it may hold a secret"


def test_from_pid_takes_command_environment_and_directory(
    run: Run, built: str, report: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    sleeper = tmp_path / "vllm"
    sleeper.write_text("import sys\nprint(flush=True)\nsys.stdin.read()\n")
    environment = {
        "FAKE_RESULT": os.environ["FAKE_RESULT"],
        "FAKE_REPORT": os.environ["FAKE_REPORT"],
        "ONLY_THERE": "1",
        "CI": "true",
    }
    with subprocess.Popen(
        [sys.executable, str(sleeper), "serve", "./m", "--seed", "7"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=tmp_path,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert check.read_process(process.pid)[1] == environment
        assert run(built, "--from-pid", str(process.pid), command=())[0] == 0
        process.communicate(b"")
    seen = report()
    assert seen["job"]["serve_arguments"] == ["./m", "--seed", "7"]
    assert seen["cwd"] == str(tmp_path)
    assert seen["environment"]["ONLY_THERE"] == "1"
    assert "HOME" not in seen["environment"]
    with pytest.raises(UsageError, match=f"process {process.pid} cannot be looked at: No such file"):
        check.read_process(process.pid)


def test_a_miss_that_the_plug_in_would_make_good(
    run: Run, built: str, answer: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer(look_ups=[look_up(OTHER_KEY, model__model="./finetune")])
    code, out, _ = run(built)
    assert code == 10
    assert "the plug-in would adopt this wheel, if config.json is the wheel's" in out
    (tmp_path / "finetune").mkdir()
    (tmp_path / "finetune/config.json").write_text('{"another": "model"}')
    code, out, _ = run(built, "--json")
    assert code == 10
    assert json.loads(out)["wheels"][0]["adoptable"] is False


class TestRecipe:
    """`model-cache check RECIPE_DIR`."""

    def test_what_is_left_to_the_gpu_is_said(self, run: Run, tmp_path: Path) -> None:
        project = make_project(tmp_path / "recipe", {**TABLE, "serve-args": ["--max-num-seqs", "8"]})
        code, out, _ = run(str(project), command=(), target=())
        assert code == 0
        assert "--max-num-batched-tokens" in out
        assert "--max-num-seqs" not in out
        assert "entry point" in out
        code, out, _ = run(str(project), "--json", command=(), target=())
        assert any("--max-num-batched-tokens" in warning for warning in json.loads(out)["warnings"])

    def test_a_recipe_that_leaves_nothing_open(self, run: Run, tmp_path: Path) -> None:
        project = str(make_project(tmp_path / "recipe", {**TABLE, "revision": "0" * 40}))
        assert run(project, command=(), target=())[:2] == (0, "everything is pinned\n")
        local = str(make_project(tmp_path / "local", TABLE, version="1.0.0+cu130"))
        assert "project.version 1.0.0+cu130 has a local part" in run(local, command=(), target=())[1]

    def test_a_directory_that_is_not_there(self, run: Run, tmp_path: Path) -> None:
        code, _, error = run(str(tmp_path / "nodir"), command=(), target=())
        assert code == 2
        assert f"{tmp_path / 'nodir'} does not exist" in error

    def test_a_wheel_without_a_command_is_wrong_usage(self, run: Run, built: str) -> None:
        assert run(built, command=(), target=())[0] == 2


def test_an_unknown_version_is_an_error_of_its_own(answer: Callable[..., None]) -> None:
    answer(error="x", unknown=True)
    arguments: Any = {"environment": dict(os.environ), "progress": Silent()}
    python = os.environ[interpreter.VARIABLE]
    with pytest.raises(engine_process.UnknownEngineError):
        check.observe(check.Command("vllm", ("m",)), H100, python, **arguments)
    answer(error="x")
    with pytest.raises(CompileError):
        check.observe(check.Command("vllm", ("m",)), H100, python, **arguments)


def test_the_exit_codes_are_the_answers() -> None:
    assert {answer.value: str(answer) for answer in Answer} == {0: "hit", 10: "miss", 11: "unsafe", 12: "unknown"}
