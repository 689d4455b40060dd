"""`model-cache new`: a recipe project from the command that serves the model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_cache.console import Parser, print_json
from model_cache.errors import UsageError
from model_cache.wheel.names import printable

if TYPE_CHECKING:
    from hatch_model_cache.recipe.recipe import Recipe
    from hatch_model_cache.scaffold.request import Request
    from hatch_model_cache.scaffold.scaffold import Project

_DESCRIPTION = """\
Make a recipe project that builds as it is: put `model-cache new --target NAME
--engine NAME==VERSION --` before the command that serves the model. Defaults that
depend on the GPU are spelled out where they are certain. Nothing is overwritten,
and nothing is asked of the engine, the Hub or an index."""


def add_parsers(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register ``new``."""
    parser = commands.add_parser(
        "new",
        help="make a recipe project from the command that serves the model",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.usage = "model-cache new [DIR] --target NAME --engine NAME==VERSION [options] -- vllm serve MODEL …"
    add_arguments(parser)
    parser.set_defaults(run=_run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of everything that makes a project from a serve command."""
    from hatch_model_cache.scaffold.scaffold import PIPELINES

    parser.add_argument("directory", nargs="?", type=Path, metavar="DIR", help="new directory (default: ./ its name)")
    add_recipe_arguments(parser)
    parser.add_argument("--version", default="1.0.0", metavar="VERSION", help="the project's version (1.0.0)")
    parser.add_argument(
        "--with",
        action="append",
        metavar="NAME,…",
        dest="pipelines",
        default=[],
        help=f"add pipelines: {', '.join(PIPELINES)}",
    )
    parser.add_argument(
        "--image", metavar="IMAGE", help="the image that serves, for those pipelines (vllm/vllm-openai:vVERSION)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check everything, say what would be made, write nothing"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="print errors only")


def add_recipe_arguments(parser: argparse._ActionsContainer) -> None:
    """The arguments of everything that makes a recipe from a serve command, which it does not tell."""
    parser.add_argument(
        "--target", action="append", metavar="NAME", dest="targets", help="GPU to compile for (may be repeated)"
    )
    parser.add_argument("--engine", metavar="NAME==VERSION", help="what will load the cache: vllm==0.33.0")
    parser.add_argument(
        "--config", metavar="DIR", help="directory with config.json (default: MODEL if it is one, else the Hub's)"
    )
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="directory with the weights, or ORG/NAME@COMMIT: their headers must fit"
    )
    parser.add_argument("--revision", metavar="COMMIT", help="the model's commit on the Hub")
    parser.add_argument(
        "--served-as", action="append", metavar="NAME", help="another model string that it is served under"
    )
    parser.add_argument(
        "--env", action="append", metavar="NAME=VALUE", default=[], help="what the serving host sets (may be repeated)"
    )
    parser.add_argument(
        "--device-layout", metavar="LAYOUT", help="GPU of each of several ranks: per-rank (the default) or single"
    )
    parser.add_argument(
        "--draft", action="append", metavar="NAME=DIR", default=[], help="a speculative model, and its configuration"
    )
    parser.add_argument("--variant", metavar="WORD", help="word in the name, for several recipes of one model")
    parser.add_argument("--hardware", metavar="WORD", help="hardware in the name, for targets of several architectures")
    parser.add_argument("--name-with-org", action="store_true", help="keep the model's organisation in the name")


def _run(arguments: argparse.Namespace) -> int:
    import dataclasses

    from hatch_model_cache.scaffold import serve_line

    project, dropped = asked_project(arguments)
    recipe, notes = serve_line.pinned(project.recipe)
    project = dataclasses.replace(project, recipe=recipe, notes=notes)
    about = {"name": project.name, "version": project.version}
    directory = arguments.directory or Path(project.name)
    make(arguments, project.files(), directory, about, [*notes, *dropped], recipe.warnings())
    return 0


def make(
    arguments: argparse.Namespace,
    files: Mapping[str, bytes],
    directory: Path,
    about: Mapping[str, str],
    notes: Sequence[str],
    warnings: Sequence[str],
) -> None:
    """Write a new project, unless it is a dry run, and say what was made.

    about: what it is, for people and for `--json`.
    """
    from hatch_model_cache.scaffold import scaffold

    if arguments.dry_run:
        scaffold.require_unused(directory)
    else:
        scaffold.write(files, directory)
    answer: dict[str, Any] = {
        **about,
        "directory": str(directory),
        "files": list(files),
        "written": not arguments.dry_run,
        "notes": list(notes),
        "warnings": list(warnings),
    }
    if arguments.json:
        print_json(answer)
    elif not arguments.quiet:
        done = "made" if answer["written"] else "would make"
        lines = [f"{done} {' '.join(about.values())} in {answer['directory']}: {', '.join(answer['files'])}"]
        lines += [f"note: {note}" for note in answer["notes"]]
        lines += [f"warning: {warning}" for warning in answer["warnings"]]
        sys.stdout.writelines(f"{printable(line)}\n" for line in lines)


def asked_project(arguments: argparse.Namespace) -> tuple[Project, list[str]]:
    """The project that the arguments ask for, nothing pinned, and notes on what of the command was left out.

    Raises UsageError with every problem.
    """
    from hatch_model_cache.scaffold import request, scaffold

    problems: list[str] = []
    pipelines = _pipelines(arguments.pipelines, problems)
    if arguments.directory is not None:
        _add(problems, lambda: scaffold.require_unused(arguments.directory))
    asked = asked_request(arguments, problems)
    found = request.read(asked, scaffold.option_words(), version=arguments.version)
    recipe, line = found.recipe, found.line
    problems = [*found.problems, *problems]
    if recipe is not None:
        problems += _without_image(arguments, recipe, pipelines)
    if problems or recipe is None or line is None:
        raise UsageError("No project can be made:", problems)
    project = scaffold.Project(recipe=recipe, version=arguments.version, pipelines=pipelines, image=arguments.image)
    return project, request.left_out(line)


def asked_request(arguments: argparse.Namespace, problems: list[str]) -> Request:
    """What the arguments of `add_recipe_arguments` and the command ask to be compiled; adds to `problems`."""
    from hatch_model_cache.scaffold.request import Request

    return Request(
        command=arguments.engine_command,
        targets=arguments.targets or (),
        engine=arguments.engine,
        config=arguments.config,
        checkpoint=arguments.checkpoint,
        revision=arguments.revision,
        served_as=arguments.served_as or (),
        environment=_pairs("--env", "VALUE", arguments.env, problems),
        device_layout=arguments.device_layout,
        drafts=_pairs("--draft", "DIR", arguments.draft, problems),
        variant=arguments.variant,
        hardware=arguments.hardware,
        name_with_org=arguments.name_with_org,
    )


def _without_image(arguments: argparse.Namespace, recipe: Recipe, pipelines: Sequence[str]) -> Iterator[str]:
    from hatch_model_cache.scaffold import scaffold

    needing = [name for name in pipelines if name in scaffold.WITH_IMAGE]
    if needing and recipe.engine_name != "vllm" and not arguments.image:
        yield f"--image: is needed for {', '.join(needing)}: no image of {recipe.engine} is known here."


def _add(problems: list[str], check: Callable[[], None]) -> None:
    try:
        check()
    except UsageError as error:
        problems.append(error.message)


def _pairs(option: str, what: str, pairs: Sequence[str], problems: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if equals and name:
            found[name] = value
        else:
            problems.append(f"{option}: must be NAME={what}, not {printable(pair)!r:.100}.")
    return found


def _pipelines(given: Sequence[str], problems: list[str]) -> tuple[str, ...]:
    from hatch_model_cache.scaffold.scaffold import PIPELINES

    names = [name for item in given for name in item.split(",") if name]
    unknown = [name for name in names if name not in PIPELINES]
    if unknown:
        problems.append(f"--with: no {printable(', '.join(unknown))}; there are {', '.join(PIPELINES)}.")
    return tuple(name for name in PIPELINES if name in names)
