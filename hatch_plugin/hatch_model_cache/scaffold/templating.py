"""The project's templates. Their marks are `[= value =]`, `[% statement %]` and `[# comment #]`: none of what is
written with them (TOML, YAML with `${{ }}`, shell) uses these."""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_cache.errors import UsageError

if TYPE_CHECKING:
    from jinja2 import Environment

DIRECTORY = Path(__file__).parent / "templates"
SUFFIX = ".jinja"


def render(name: str, values: Mapping[str, Any]) -> str:
    """The text of the template `name` (relative to `DIRECTORY`, with its suffix)."""
    return _environment().get_template(name).render(values).rstrip("\n") + "\n"


def render_folder(name: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Every template below `DIRECTORY`/`name`: path without the suffix, relative to the folder -> text."""
    folder = DIRECTORY / name
    found = {}
    for path in sorted(folder.rglob(f"*{SUFFIX}")):
        text = render(path.relative_to(DIRECTORY).as_posix(), values)
        found[path.relative_to(folder).as_posix().removesuffix(SUFFIX)] = text
    return found


def as_toml(value: Any) -> str:
    """A string, boolean, list or mapping of strings as TOML, in one line, whatever characters it holds."""
    import tomlkit

    if isinstance(value, Mapping):
        pairs = (f"{tomlkit.key(key).as_string()} = {as_toml(item)}" for key, item in value.items())
        return "{ " + ", ".join(pairs) + " }" if value else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return str(tomlkit.item(value).as_string())


def grouped(arguments: Sequence[str]) -> list[list[str]]:
    """Arguments in groups of a flag and its values, one for each line."""
    groups: list[list[str]] = []
    for argument in arguments:
        if groups and not re.match(r"-[^\d.]", argument):  # a negative number is a value
            groups[-1].append(argument)
        else:
            groups.append([argument])
    return groups


def quoted(value: str) -> str:
    """A string for YAML, in double quotes. JSON's escapes are YAML's; what JSON need not escape, YAML may not hold."""
    return re.sub(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", _escaped, json.dumps(value, ensure_ascii=False))


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _in_dockerfile(value: str) -> str:
    """A string for ENV, in double quotes."""
    if "\n" in value or "\r" in value:
        raise UsageError(f"a Dockerfile cannot set a variable to a text of several lines: {value!r:.60}")
    return '"' + re.sub(r'(["\\$])', r"\\\1", value) + '"'


@functools.cache
def _environment() -> Environment:
    try:
        import jinja2
        import tomlkit  # noqa: F401 - asked for here, so that one line names the extra
    except ImportError as error:
        raise UsageError(f"this needs {error.name}: pip install 'hatch-model-cache[new]'") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(DIRECTORY),
        autoescape=False,  # noqa: S701 - no HTML comes out of these; every value goes through a filter of its language
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        variable_start_string="[=",
        variable_end_string="=]",
        block_start_string="[%",
        block_end_string="%]",
        comment_start_string="[#",
        comment_end_string="#]",
    )
    environment.filters |= {
        "toml": as_toml,
        "grouped": grouped,
        "shell": lambda value: shlex.quote(value) if isinstance(value, str) else shlex.join(value),
        "quoted": quoted,
        "python": repr,
        "pod": lambda value: value.replace("$(", "$$("),  # Kubernetes would put a variable there
        "dockerfile": _in_dockerfile,
    }
    return environment
