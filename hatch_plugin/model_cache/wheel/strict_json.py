"""JSON from untrusted bytes: bounded before it is parsed, read field by field, all problems collected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import NoReturn, TypeVar

from model_cache.errors import DamagedError

MAX_DEPTH = 12
MAX_INTEGER = 2**63 - 1
MAX_PROBLEMS = 50

T = TypeVar("T")

# Strings are cut out before brackets are counted. An unterminated string is matched up to the end: without
# that alternative each quote would scan to the end again, which is quadratic.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+\\?(?:"|\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_SURROGATE = re.compile("[\ud800-\udfff]")


def loads(data: bytes, what: str, max_bytes: int) -> object:
    """Parse `data` (UTF-8 JSON without floats, at most `max_bytes` long and MAX_DEPTH deep).

    what: how the error names the source. Raises DamagedError, for hostile input too (never RecursionError).
    """
    if len(data) > max_bytes:
        raise DamagedError(f"{what}: is larger than {max_bytes} bytes")
    _check_depth(data, what)
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_float=_no_float,
            parse_constant=_no_float,
        )
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{what}: is not valid JSON: {error}") from None


def _check_depth(data: bytes, what: str) -> None:
    depth = 0
    for bracket in _STRING.sub(b"", data).translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise DamagedError(f"{what}: is nested deeper than {MAX_DEPTH} levels")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice!r} is given twice in one object")
    return found


def _no_float(text: str) -> NoReturn:
    raise ValueError(f"number {text} is not an integer")


class Fields:
    """One JSON object being read. A getter notes a problem and returns a harmless value instead of raising.

    The problems of all objects of one document land in one list; `done()` notes the keys nobody asked for.
    """

    def __init__(self, value: object, path: str, problems: list[str]) -> None:
        self.path = path
        self.problems = problems
        self.present = isinstance(value, dict)
        self.value: dict[str, object] = value if isinstance(value, dict) else {}
        if not self.present:
            self.problem("", f"must be an object, not {_type(value)}")
        self._asked: set[str] = set()

    def problem(self, key: str, text: str) -> None:
        """Note that the field `key` (or the object itself, for "") is wrong."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(f"{self.where(key)} {text}")

    def where(self, key: str) -> str:
        return f"{self.path}.{key}".strip(".") if key else self.path or "the document"

    def _get(self, key: str) -> tuple[bool, object]:
        self._asked.add(key)
        if key not in self.value:
            if self.present:
                self.problem(key, "is missing")
            return False, None
        return True, self.value[key]

    def done(self) -> None:
        """Note every key that no getter has asked for."""
        for key in sorted(self.value.keys() - self._asked):
            self.problem(key, "is not known")

    def text(self, key: str, pattern: re.Pattern[str] | None = None, choices: Collection[str] = ()) -> str:
        found, value = self._get(key)
        return self._text(key, value, pattern, choices) if found else ""

    def optional_text(self, key: str, pattern: re.Pattern[str] | None = None) -> str | None:
        """A string or null; the key itself must be there."""
        found, value = self._get(key)
        return self._text(key, value, pattern, ()) if found and value is not None else None

    def _text(self, key: str, value: object, pattern: re.Pattern[str] | None, choices: Collection[str]) -> str:
        if not isinstance(value, str):
            self.problem(key, f"must be a string, not {_type(value)}")
        elif "\x00" in value or _SURROGATE.search(value):
            self.problem(key, "holds a NUL or an unpaired surrogate")
        elif choices and value not in choices:
            self.problem(key, f"must be one of {', '.join(sorted(choices))}, not {value!r:.80}")
        elif pattern is not None and not pattern.fullmatch(value):
            self.problem(key, f"has a wrong form: {value!r:.80}")
        else:
            return value
        return ""

    def integer(self, key: str, minimum: int = 0) -> int:
        found, value = self._get(key)
        return self._integer(key, value, minimum) if found else 0

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of integers from 0 on."""
        return tuple(self._integer(f"{key}[{i}]", value, 0) for i, value in enumerate(self._list(key, 0)))

    def _integer(self, key: str, value: object, minimum: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            self.problem(key, f"must be an integer, not {_type(value)}")
        elif not minimum <= value <= MAX_INTEGER:
            self.problem(key, f"must be an integer from {minimum} to {MAX_INTEGER}")
        else:
            return value
        return 0

    def optional_integer(self, key: str, minimum: int = 0) -> int | None:
        """An integer or null; the key itself must be there."""
        return self.integer(key, minimum) if self._has(key) else None

    def boolean(self, key: str) -> bool:
        found, value = self._get(key)
        if found and not isinstance(value, bool):
            self.problem(key, f"must be a boolean, not {_type(value)}")
        return value is True

    def texts(
        self,
        key: str,
        pattern: re.Pattern[str] | None = None,
        choices: Collection[str] = (),
        *,
        least: int = 0,
        unique: bool = True,
    ) -> tuple[str, ...]:
        values = self._list(key, least)
        read = tuple(self._text(f"{key}[{i}]", value, pattern, choices) for i, value in enumerate(values))
        if unique and len(set(read)) != len(read):
            self.problem(key, "holds a value twice")
        return read

    def objects(self, key: str, read: Callable[[Fields], T], *, least: int = 0) -> tuple[T, ...]:
        path = self.where(key)
        values = self._list(key, least)
        return tuple(self.child(value, f"{path}[{i}]", read) for i, value in enumerate(values))

    def _list(self, key: str, least: int) -> list[object]:
        found, value = self._get(key)
        if not found:
            return []
        if not isinstance(value, list):
            self.problem(key, f"must be a list, not {_type(value)}")
            return []
        if len(value) < least:
            self.problem(key, f"must hold at least {least} item{'s' if least != 1 else ''}")
        return value

    def one(self, key: str, read: Callable[[Fields], T]) -> T:
        found, value = self._get(key)
        if not found:  # read nothing out of it, and note no follow-up problems
            return read(Fields({}, self.where(key), []))
        return self.child(value, self.where(key), read)

    def optional_one(self, key: str, read: Callable[[Fields], T]) -> T | None:
        """An object or null; the key itself must be there."""
        return self.one(key, read) if self._has(key) else None

    def _has(self, key: str) -> bool:
        """Whether `key` has another value than null; notes a problem when it is missing."""
        found, value = self._get(key)
        return found and value is not None

    def child(self, value: object, path: str, read: Callable[[Fields], T]) -> T:
        fields = Fields(value, path, self.problems)
        result = read(fields)
        fields.done()
        return result

    def mapping(self, key: str) -> dict[str, object]:
        """A table with free keys (non-empty strings without NUL) and unchecked values."""
        found, value = self._get(key)
        if not found:
            return {}
        if not isinstance(value, dict):
            self.problem(key, f"must be an object, not {_type(value)}")
            return {}
        if any(not name or "\x00" in name or _SURROGATE.search(name) for name in value):
            self.problem(key, "has a key that is empty or holds a NUL or an unpaired surrogate")
        return value

    def text_mapping(self, key: str) -> dict[str, str]:
        """A table of strings."""
        return {name: self._text(f"{key}.{name}", value, None, ()) for name, value in self.mapping(key).items()}

    def scalar_mapping(self, key: str) -> dict[str, bool | int | str | None]:
        """A table of strings, integers, booleans and nulls."""
        read: dict[str, bool | int | str | None] = {}
        for name, value in self.mapping(key).items():
            if value is None or (isinstance(value, int) and abs(value) <= MAX_INTEGER):  # bool is an int
                read[name] = value
            else:
                read[name] = self._text(f"{key}.{name}", value, None, ())
        return read


def _type(value: object) -> str:
    if value is None:
        return "null"
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)
