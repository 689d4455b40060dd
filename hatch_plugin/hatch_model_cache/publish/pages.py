"""HTML from templates. Whatever a wheel says is escaped: it becomes no markup and steers no text around it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from model_cache.wheel.names import printable

__all__ = ["render", "template_text"]

_TEMPLATES = Path(__file__).parent / "templates"


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _shown(value: object) -> object:
    """Every value on its way into a page: line by line without control characters."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return "\n".join(map(printable, value.split("\n")))
    return value


def render(template: str, **values: Any) -> bytes:
    """The page that `template` makes of `values`."""
    return _environment().get_template(template).render(values).encode()


def template_text(name: str) -> str:
    """A style sheet or script of ours, as it is."""
    return (_TEMPLATES / name).read_text("utf-8")
