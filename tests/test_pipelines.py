"""The pipelines that a project can be given, each checked by the tools that know its language."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hatch_model_cache import cli as build_cli
from hatch_model_cache.matrix import cells, matrix_file
from hatch_model_cache.recipe.file import load_recipe
from hatch_model_cache.scaffold import templating
from hatch_model_cache.scaffold.scaffold import PIPELINES
from model_cache import cli

pytestmark = pytest.mark.fleet

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
MODEL = ROOT / "tests" / "data" / "models" / "llama-tiny"
HOSTILE = """a "quote", a 'quote', a \\ and a $VAR, $(VAR), ${{ secrets.X }}, [= x =], é, \U0001f600"""
COMMON = ("--engine", "vllm==0.33.0", "--config", str(MODEL), "--target", "h100-sxm5-80gb")
LINE = ("--", "vllm", "serve", "org/Model", "--max-model-len", "512", "--tensor-parallel-size", "2")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe project with all pipelines and values that are not harmless."""
    directory = tmp_path_factory.mktemp("pipelines") / "project"
    arguments = ["new", str(directory), "--quiet", *COMMON, "--with", ",".join(PIPELINES), "--env", f"NOTE={HOSTILE}"]
    assert cli.main([*arguments, *LINE, "--hf-overrides", HOSTILE]) == 0
    return directory


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a matrix, with its pipelines and the child pipeline of one."""
    directory = tmp_path_factory.mktemp("matrix") / "project"
    arguments = ["matrix", "new", str(directory), "--quiet", *COMMON, "--target", "a100-sxm4-80gb"]
    assert cli.main([*arguments, "--with", "github,gitlab", "--env", f"NOTE={HOSTILE}", *LINE]) == 0
    command = [sys.executable, "-m", "model_cache", "matrix", "emit", str(directory), "--format", "gitlab"]
    child = subprocess.run(command, check=True, capture_output=True).stdout
    (directory / "child-pipeline.yml").write_bytes(child)
    return directory


@pytest.fixture(params=["one recipe", "a matrix"])
def either(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue("project" if request.param == "one recipe" else "matrix")
    return found


def passes(tool: str, *arguments: str | Path) -> None:
    done = subprocess.run([str(BIN / tool), *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


WORKFLOW = ".github/workflows/wheels.yml"


def test_actionlint_finds_nothing(either: Path) -> None:
    passes("actionlint", either / WORKFLOW)


def test_zizmor_finds_nothing(either: Path) -> None:
    """Above `informational`: it wants OpenID Connect for uploads, which private indexes do not have."""
    passes("zizmor", "--offline", "--persona", "pedantic", "--min-severity", "low", either / WORKFLOW)


def test_a_tool_that_finds_nothing_would_find_something(project: Path, tmp_path: Path) -> None:
    text = (project / WORKFLOW).read_text("utf-8")
    bad = tmp_path / WORKFLOW
    bad.parent.mkdir(parents=True)
    bad.write_text(re.sub(r"@[0-9a-f]{40} # (v[0-9.]+)", r"@\1", text).replace("needs: build", "needs: bild"), "utf-8")
    for tool, *arguments in (["actionlint"], ["zizmor", "--offline", "--min-severity", "low"]):
        with pytest.raises(AssertionError):
            passes(tool, *arguments, bad)


def test_actions_are_pinned_to_what_was_looked_up(either: Path) -> None:
    known = tomllib.loads((templating.DIRECTORY / "actions.toml").read_text("utf-8"))
    used = re.findall(r"uses: (.*)", (either / WORKFLOW).read_text("utf-8"))
    assert used
    for use in used:
        name, _, commit = use.partition("@")
        assert known[name.partition("/")[2].replace("-", "_")] == commit
        assert re.fullmatch(r"[0-9a-f]{40} # v[0-9]+\.[0-9]+\.[0-9]+", commit)


def test_gitlab_takes_its_pipelines(project: Path, matrix: Path) -> None:
    files = [project / ".gitlab-ci.yml", matrix / ".gitlab-ci.yml", matrix / "child-pipeline.yml"]
    passes("check-jsonschema", "--builtin-schema", "vendor.gitlab-ci", *files)
    for file in files[0], files[2]:
        assert {"sign", "publish"} <= documents(file)[0].keys()


def test_hadolint_finds_nothing(project: Path) -> None:
    passes("hadolint", "--no-color", project / "Dockerfile")


def test_kubernetes_takes_its_resources(project: Path, tmp_path: Path) -> None:
    """For KServe, whose resource it does not know: the pod in there, which is a pod's like any other."""
    [service] = documents(project / "deploy/kserve.yaml")
    pod = {key: value for key, value in service["spec"]["predictor"].items() if key != "minReplicas"}
    wrapped = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "predictor"}, "spec": pod}
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(wrapped), "utf-8")
    files = sorted((project / "deploy/kubernetes").iterdir())
    assert len(files) == 2
    passes("kubernetes-validate", "--strict", *files, tmp_path / "pod.yaml")
    assert service["apiVersion"] == "serving.kserve.io/v1beta1"


def served(container: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a container, as Kubernetes starts it."""
    plain = [word.replace("$$(", "$(") for word in container["command"]]
    return plain, {item["name"]: item["value"].replace("$$(", "$(") for item in container["env"]}


def test_what_is_served_is_what_the_recipe_says(project: Path) -> None:
    recipe = load_recipe(project)
    expected = ["vllm", "serve", "org/Model", *recipe.serve_args]
    deployment, _ = documents(project / "deploy/kubernetes/serve.yaml")
    [service] = documents(project / "deploy/kserve.yaml")
    for pod in deployment["spec"]["template"]["spec"], service["spec"]["predictor"]:
        command, environment = served(pod["containers"][0])
        assert command == [*expected, "--port", "8000"]
        assert environment.items() >= recipe.environment.items()
        assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    tree = ast.parse((project / "deploy/ray_serve/app.py").read_text("utf-8"))
    values = {
        ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target): node.value
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
    }
    assert ast.literal_eval(values["COMMAND"]) == expected
    assert ast.literal_eval(values["ENVIRONMENT"]) == recipe.environment
    assert ast.literal_eval(values["GPUS"]) == 2


def test_a_value_in_a_dockerfile(project: Path) -> None:
    [line] = re.findall(r"^ENV NOTE=(.*)$", (project / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert line.startswith('"')
    assert re.sub(r"\\(.)", r"\1", line[1:-1]) == HOSTILE
    assert not re.search(r"(?<!\\)[$]", line), "Docker would put a variable there"


def shell_texts(path: Path) -> Iterator[str]:
    """The shell scripts in a file: every string in YAML, code blocks in Markdown, RUN in a Dockerfile."""
    text = path.read_text("utf-8")
    if path.suffix in (".yml", ".yaml"):
        yield from (found for found in _strings(documents(path)) if re.search(r"\bmodel[-_]cache [a-z]+ ", found))
    elif path.suffix == ".md":
        yield from re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    elif path.name == "Dockerfile":
        yield from re.findall(r"^RUN (.*?[^\\])$", text, re.DOTALL | re.MULTILINE)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _strings(inner)


def commands(directory: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every command of ours in a project's files, as a shell would split it."""
    for path in sorted(directory.rglob("*")):
        for text in shell_texts(path) if path.is_file() else ():
            plain = re.sub(r"\s#.*", "", re.sub(r'"\w*=\$\((.*?)\)"', r"; \1; ", text).replace("\\\n", " "))
            lexer = shlex.shlex(plain, posix=True, punctuation_chars="\n;&|()<>")
            lexer.whitespace, lexer.commenters = " \t", ""
            words: list[str] = []
            for word in [*lexer, "\n"]:
                if set(word) <= set("\n;&|()<>"):
                    if words and Path(words[0]).name == "model-cache":
                        yield path, words[1:]
                    elif words[:3] == ["python3", "-m", "model_cache"]:
                        yield path, words[3:]
                    words = []
                elif words or "=" not in word:  # NAME=value before a command
                    words.append(word)


def test_every_command_of_ours_is_one(project: Path, matrix: Path) -> None:
    found = [*commands(project), *commands(matrix)]
    assert {words[0] for _, words in found} >= {"check", "compile", "deploy", "matrix", "sign", "verify"}
    assert len(found) >= 15
    for path, words in found:
        own = words[: words.index("--")] if "--" in words else words
        try:
            cli.make_parser().parse_args(own) if own[0] not in cli.BUILD_COMMANDS else _parse_build_command(own)
        except Exception as error:
            raise AssertionError(f"{path}: {shlex.join(own)}: {error}") from error


def _parse_build_command(words: list[str]) -> None:
    """Parse, and stop before anything runs."""
    import importlib

    from hatch_model_cache.commands import MODULES
    from model_cache.console import Parser

    parser = Parser(prog="model-cache")
    module = importlib.import_module(f"hatch_model_cache.commands.{MODULES[words[0]]}")
    module.add_parsers(parser.add_subparsers(required=True))
    parser.parse_args(words)
    assert build_cli.main


def test_a_new_matrix_is_right_as_it_is(matrix: Path) -> None:
    found = cells.cells(matrix_file.load(matrix))
    assert [cell.name for cell in found] == [f"model-cache-model-{t}" for t in ("h100-sxm5-80gb", "a100-sxm4-80gb")]
    assert found[0].recipe.environment == {"NOTE": HOSTILE}
    assert found[0].recipe.serve_args[-2:] == ("--max-num-seqs", "1024"), "each target has its own defaults"
    assert found[1].recipe.serve_args[-2:] == ("--max-num-seqs", "256")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--with", "docker"), "--with: docker is for one recipe"),
        (("--variant", "long"), "--variant: write variants"),
    ],
)
def test_what_a_matrix_cannot_have(
    arguments: tuple[str, ...], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["matrix", "new", str(tmp_path / "m"), *COMMON, *arguments, *LINE]) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_a_matrix_pins_its_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--engine", "vllm==0.33.0", "--target", "h200")
    assert cli.main(["matrix", "new", str(tmp_path / "m"), *arguments, *LINE]) == 2
    assert "give --config or --revision" in capsys.readouterr().err
    assert cli.main(["matrix", "new", str(tmp_path / "m"), *arguments, "--revision", "0" * 40, *LINE]) == 0
    [cell] = cells.cells(matrix_file.load(tmp_path / "m"))
    assert cell.recipe.revision == "0" * 40


def test_the_image_can_be_named(tmp_path: Path) -> None:
    image = "registry.test/engine@sha256:" + "0" * 64
    arguments = ["new", str(tmp_path / "p"), *COMMON, "--with", "kserve", "--image", image, *LINE]
    assert cli.main(arguments) == 0
    [service] = documents(tmp_path / "p/deploy/kserve.yaml")
    assert service["spec"]["predictor"]["containers"][0]["image"] == image
