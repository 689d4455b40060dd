"""What every target file has: a name, a kind, and the place that each value comes from."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from model_cache.errors import UsageError

KINDS = ("cpu", "gpu")
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class TargetFileError(UsageError):
    """A target description is malformed; ``problems`` names every wrong key."""


def unknown_keys(data: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """Problems of keys that no field has."""
    return [f"`{key}`: unknown key" for key in data if key not in known]


def text_problems(
    key: str, data: Mapping[str, Any], *, pattern: re.Pattern[str] | None = None, like: str = ""
) -> list[str]:
    """Problems of a string. like: how a value that matches `pattern` looks, in words."""
    if key not in data:
        return [f"`{key}`: missing"]
    value = data[key]
    if not isinstance(value, str) or not value or value != value.strip():
        return [f"`{key}`: must be a non-empty string without surrounding blanks, not {value!r}"]
    if pattern and not pattern.fullmatch(value):
        return [f"`{key}`: must {like}, not {value!r}"]
    return []


def choice_problems(key: str, data: Mapping[str, Any], choices: Collection[str]) -> list[str]:
    """Problems of a string that must be one of `choices`."""
    found = text_problems(key, data)
    if not found and data[key] not in choices:
        return [f"`{key}`: must be one of {', '.join(choices)}, not {data[key]!r}"]
    return found


def name_problems(data: Mapping[str, Any]) -> list[str]:
    """Problems of the target's name."""
    return text_problems("name", data, pattern=NAME, like="be lower-case words joined by `-`")


def expand_sources(value: Any, fields: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """A [sources] table, whose keys are one field name or several separated by blanks, one line per field.

    fields: those that need a source.
    """
    if not isinstance(value, dict):
        return {}, [f"`sources`: must be a table, not {value!r}"]
    sources: dict[str, str] = {}
    problems: list[str] = []
    for group, text in value.items():
        if not isinstance(text, str) or not text.strip():
            problems.append(f"`sources.{group}`: must be a non-empty string, not {text!r}")
            continue
        if not group.split():
            problems.append("`sources`: an empty key names no field")
        for key in group.split():
            if key not in fields:
                problems.append(f"`sources.{group}`: `{key}` is no field that needs a source")
            elif key in sources:
                problems.append(f"`sources.{group}`: `{key}` has a source already")
            sources[key] = text
    return sources, problems


def without_source(
    data: Mapping[str, Any], fields: Collection[str], sources: Collection[str], excuse: str
) -> list[str]:
    """Problems of fields that have no source. excuse: what would have done instead, in words."""
    return [f"`{key}`: has no line in [sources]{excuse}" for key in fields if key in data and key not in sources]
