"""Writes docs/reference.md from the code: commands, exit codes, recipe options, variables, targets, the manifest.

python docs/reference.py; tests/test_reference.py fails when the page is old.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
from collections.abc import Iterator
from pathlib import Path

import model_cache
from hatch_model_cache import Compiled, compile_model, targets
from hatch_model_cache.commands import MODULES
from hatch_model_cache.recipe import recipe
from model_cache import cli
from model_cache.console import Parser

PAGE = Path(__file__).with_name("reference.md")
WIDTH = 110  # columns of the help texts; argparse asks the environment

VARIABLES = {
    "MODEL_CACHE_ADOPT": "`0`: do not adopt a wheel for other weights of the same model. Plug-in.",
    "MODEL_CACHE_ARTIFACTS": "Absolute path of the artifact directory that the build hook packs.",
    "MODEL_CACHE_ASSUME_TARGET": "Take this host for one with that target, instead of looking. Deploy, plug-in.",
    "MODEL_CACHE_DISABLE": "`1`: the plug-in does nothing.",
    "MODEL_CACHE_MEND": "`0`: do not mend faults of an engine's version. Plug-in.",
    "MODEL_CACHE_POLICY": "`require`, `prefer` or `off`: what this host demands of signatures.",
    "MODEL_CACHE_PYTHON": "The engine's interpreter. Build, check, rehearse.",
    "MODEL_CACHE_SIGNING_KEY": "Private key with which the build hook signs, and `sign` without `--key`.",
    "MODEL_CACHE_TRUST": "Files and directories of trusted keys, besides the system's and the user's.",
    "MODEL_CACHE_TRUST_PLACE": "`1`: deploy into a place that everybody may write to.",
}
"""Every variable that users set, and what for."""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), "utf-8")


def page() -> str:
    """The whole page as Markdown."""
    parts = (
        "# Reference\n\nMade from the code by `python docs/reference.py`.",
        _commands(),
        "## Exit codes\n\n```\n" + "\n".join(cli.EXIT_CODES.splitlines()[1:]) + "\n```",
        "## Recipe options\n\nThe table `[tool.hatch.build.hooks.model-cache]` of a recipe's `pyproject.toml`.\n\n"
        + recipe.options_table().rstrip(),
        _variables(),
        _python(),
        _targets(),
        _manifest(),
    )
    return "\n\n".join(parts) + "\n"


def _commands() -> str:
    os.environ["COLUMNS"] = str(WIDTH)
    blocks = [f"### model-cache {name}\n\n```\n{parser.format_help().rstrip()}\n```" for name, parser in _parsers()]
    return "\n\n".join(["## Commands", *blocks])


def _parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command's parser, those of subcommands behind it."""
    root = Parser(prog="model-cache")
    commands = root.add_subparsers()
    for module in sorted(set(MODULES.values())):
        importlib.import_module(f"hatch_model_cache.commands.{module}").add_parsers(commands)
    build = _subparsers(root)
    serving = {name: parser for name, parser in _subparsers(cli.make_parser()).items() if name not in MODULES}
    for name, parser in sorted({**build, **serving}.items()):
        yield name, parser
        for inner, inner_parser in _subparsers(parser).items():
            yield f"{name} {inner}", inner_parser


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
    return found


def _variables() -> str:
    rows = [f"| `{name}` | {text} |" for name, text in sorted(VARIABLES.items())]
    return "\n".join(["## Environment variables", "", "| variable | meaning |", "|---|---|", *rows])


def _python() -> str:
    parameters = [f"    {name}," for name in map(str, inspect.signature(compile_model).parameters.values())]
    parameters = [name.replace("'", "") for name in parameters]  # annotations are strings
    parameters.insert(1, "    *,")  # all but the model are given by name
    call = "\n".join(["compile_model(", *parameters, ") -> Compiled"])
    texts = f"{call}\n\n{inspect.getdoc(compile_model)}\n\nCompiled\n\n{inspect.getdoc(Compiled)}"
    return f"## Python\n\nIn `hatch_model_cache`; see the [guide](guides/compile.md#from-python).\n\n```\n{texts}\n```"


def _targets() -> str:
    rows = []
    for target in targets.load_all().values():
        if isinstance(target, targets.CpuTarget):
            rows.append(f"| `{target.name}` | CPU | {target.vec_isa} |")
        else:
            what = f"compute capability {target.compute_capability}, {target.sm_count} SMs"
            rows.append(f"| `{target.name}` | {target.device_name} | {what} |")
    return "\n".join(["## Targets", "", "| name | the driver calls it | what it is |", "|---|---|---|", *rows])


def _manifest() -> str:
    path = next(Path(model_cache.__file__).parent.rglob("manifest.schema.json"))
    schema = json.loads(path.read_text("utf-8"))
    rows = [f"| `{name}` | {_about(schema, value)} |" for name, value in schema["properties"].items()]
    link = f"[{path.name}](../hatch_plugin/{path.relative_to(Path(model_cache.__file__).parent.parent).as_posix()})"
    intro = f"`manifest.json` in the wheel's data package; {link} is the whole of it."
    return "\n".join(["## Manifest", "", intro, "", "| key | holds |", "|---|---|", *rows])


def _about(schema: dict[str, object], value: dict[str, object]) -> str:
    """What a property's description says, else the names in it."""
    if "description" in value:
        return str(value["description"])
    inner = value.get("properties")
    items = value.get("items")
    if isinstance(items, dict) and "$ref" in items:
        definitions = schema["$defs"]
        assert isinstance(definitions, dict)
        inner = definitions[str(items["$ref"]).rpartition("/")[2]]["properties"]
    if isinstance(inner, dict):
        return ", ".join(f"`{name}`" for name in inner)
    return "see the schema"


if __name__ == "__main__":
    main()
