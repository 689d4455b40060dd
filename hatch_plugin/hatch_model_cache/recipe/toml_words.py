"""Values in TOML's words, for messages."""

from __future__ import annotations

import json
from typing import Any


def as_text(value: Any) -> str:
    """The text that a user will have meant by a value."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def given(value: Any) -> str:
    """What was given, in TOML's words."""
    words = {bool: "boolean", int: "integer", float: "float", str: "string", list: "list", dict: "table"}
    kind = words.get(type(value), type(value).__name__)
    if isinstance(value, (list, dict)):
        return f"a {kind}"
    article = "an" if kind[0] in "aeiou" else "a"
    return f"{article} {kind} ({json.dumps(value) if isinstance(value, (bool, str)) else value})"
