"""Every command that README and the guides show is run by a test, and has the options that are shown."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import shown
from model_cache import cli

HERE = Path(__file__).resolve().parent


@functools.cache
def taken() -> Counter[shown.Command]:
    """What the tests take, from their sources."""
    return Counter(_taken())


def _taken() -> Iterator[shown.Command]:
    for path in HERE.rglob("*.py"):
        source = path.read_text("utf-8")
        if "shown.commands(" not in source or path == Path(__file__):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "shown.commands":
                yield from shown.commands(*map(ast.literal_eval, node.args))


@pytest.mark.parametrize("page", [page for page in shown.PAGES if shown.commands(page)])
def test_every_command_is_run_by_a_test(page: str) -> None:
    not_run = [shown.commands(of, beginning)[0] for of, beginning in shown.NOT_RUN if of == page]
    here = Counter(shown.commands(page)) - Counter(not_run)
    left = [command.text for command in here - taken()]
    assert not left, "no test runs these"
    needless = [command.text for command in Counter(not_run) & taken()]
    assert not needless, "these are run: they can leave NOT_RUN"


def test_the_pages_have_commands() -> None:
    for page, path in shown.PAGES.items():
        assert not re.search(r"^```(bash|shell)", path.read_text("utf-8"), re.MULTILINE), f"{page}: write ```sh"
    assert {"README.md", "cpu.md", "publish.md"} < {page for page in shown.PAGES if shown.commands(page)}
    assert len(shown.commands("README.md")) > 20


@functools.cache
def options(words: tuple[str, ...]) -> frozenset[str]:
    """The options that a command's help names; none if there is no such command."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit):
        cli.main([*words, "--help"])
    return frozenset(re.findall(r"--[a-z][a-z-]*", said.getvalue()))


@pytest.mark.parametrize("page", shown.PAGES)
def test_every_option_shown_is_one(page: str) -> None:
    text = shown.PAGES[page].read_text("utf-8")
    inline = re.findall(r"`(?:[A-Z_]+=\S+ )*model-cache ([^`]+)`", text)
    lines = re.findall(r"\bmodel-cache ([a-z][^#)\n]*)", "\n".join(c.text for c in shown.commands(page)))
    for words in (part.split(" -- ")[0].split() for part in (*inline, *lines)):
        flags = {re.split(r"[=\]|]", word.strip("[]"))[0] for word in words if word.startswith(("--", "[--"))}
        if flags - {"--"}:
            command = tuple(words[: 2 if words[0] in TWO else 1])
            assert flags - {"--"} <= options(command), f"model-cache {' '.join(words)}"


TWO = ("index", "matrix", "sigstore", "targets", "trust")
"""Commands of two words."""
