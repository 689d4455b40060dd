"""The README says what the code does."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from hatch_model_cache.checking.verdict import Answer
from hatch_model_cache.recipe.file import parse
from model_cache import cli, errors

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def test_the_recipe_shown_is_the_example_and_is_right() -> None:
    [shown] = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    example = ROOT / "examples" / "llama-3.1-8b"
    assert shown == (example / "pyproject.toml").read_text("utf-8")
    project = tomllib.loads(shown)
    recipe = parse(project["tool"]["hatch"]["build"]["hooks"]["model-cache"], project_dir=example)
    assert recipe.distribution_name == project["project"]["name"]


def test_the_exit_codes_are_those_of_the_errors() -> None:
    [sentence] = re.findall(r"Exit codes: ([^.]*)\.", README)
    shown = {int(code) for code in re.findall(r"\b(\d+) ", " ".join(sentence.split()))}
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.ModelCacheError)]
    expected = {c.exit_code for c in classes} | {answer.value for answer in Answer}
    assert shown == expected
    assert {int(code) for code in re.findall(r"^ *(\d+)  ", cli.EXIT_CODES, re.MULTILINE)} == expected


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`model-cache ([a-z]+)", README))))
def test_every_command_shown_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert command in capsys.readouterr().out


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def heading_anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get."""
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!http)([^)]+)\)", page.read_text("utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in heading_anchors(target), link


def test_make_has_what_the_readme_promises() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for goal in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{goal}:", makefile, re.MULTILINE), goal
