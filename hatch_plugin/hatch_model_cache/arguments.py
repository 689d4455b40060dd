"""What `compile_model` may be given: the types of its arguments, which a command line has by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence


def problems(arguments: Mapping[str, object]) -> list[str]:
    """Everything that is wrong with the types of `arguments`, by name, one line each; None is nothing given."""
    found = []
    for name, value in arguments.items():
        if value is not None or name in _REQUIRED:
            found += [f"{name}: {text}" for text in _KINDS[name](value)]
    return found


def _text(value: object) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"must be a string, not {value!r:.80}"


def _path(value: object) -> Iterator[str]:
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        yield f"must be a path, not {value!r:.80}"
    elif "\0" in path:
        yield "must not hold a NUL character"


def _words(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield f"must be a list of strings, not a string: write {[value]!r:.80}"
    elif not isinstance(value, Sequence) or not all(isinstance(word, str) for word in value):
        yield f"must be a list of strings, not {value!r:.80}"


def _word_or_words(value: object) -> Iterator[str]:
    if not isinstance(value, str):
        yield from _words(value)


def _texts(value: object) -> Iterator[str]:
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        yield f"must be a mapping of strings to strings, not {value!r:.80}"


def _paths(value: object) -> Iterator[str]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        yield f"must be a mapping of strings to paths, not {value!r:.80}"
        return
    for name, path in value.items():
        yield from (f"{name!r:.80} {text}" for text in _path(path))


def _switch(value: object) -> Iterator[str]:
    if not isinstance(value, bool):
        yield f"must be True or False, not {value!r:.80}"


def _bytes(value: object) -> Iterator[str]:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        yield f"must be a number of bytes above 0, not {value!r:.80}"


_REQUIRED = frozenset({"model", "targets", "serve_args", "served_as", "native"})

_KINDS = {
    "model": _text,
    "targets": _word_or_words,
    "serve_args": _words,
    "engine": _text,
    "config": _path,
    "checkpoint": _path,
    "revision": _text,
    "served_as": _words,
    "environment": _texts,
    "device_layout": _text,
    "drafts": _paths,
    "out": _path,
    "into_cache_root": _path,
    "native": _switch,
    "capture": _path,
    "overlap": _bytes,
}
