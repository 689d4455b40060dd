"""The commands that README and the guides show, for the tests that run them.

A test takes what it runs with `commands("cpu.md", "model-cache targets probe", …)`, all in literals: `test_shown` reads
them in the sources of the tests, and fails for a command that nobody takes.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}

NOT_RUN = {
    ("README.md", "make demo"): "six minutes and more; what it does is test_road, step by step",
    ("README.md", "make test"): "it is what runs these tests",
    ("README.md", "vllm serve meta-llama/Llama-3.1-8B-Instruct"): "needs the GPU and the weights; `rehearse` is run",
    (
        "object-storage.md",
        "VLLM_ASSETS_CACHE=",
    ): "a cell of engine/test_cells serves a URL so, from a server of its own",
    ("engine-version.md", "uv pip compile"): "asks a package index for a version to come; test_prepare reads the lists",
    ("engine-version.md", "make versions"): "makes environments of 9 GB; it is what runs test_conformance",
    ("torch.md", "export TORCHINDUCTOR_CACHE_DIR"): "of a GPU host; test_torch_engine has one that is pretended",
    ("torch.md", "python -m model_cache.torch"): "the same",
    ("torch.md", "python my_service.py"): "the same, with a program of its own",
    ("trust-and-faults.md", "sigstore sign"): "needs the network and an account; the bundle is of services of our own",
}
"""(page, how the command begins) → why it cannot be run here."""

SECONDS = 600
SCRIPTS = ("sh", "console", "")
PROGRAMS = re.compile(r"(cd|export|make|model-cache|pip|python|twine|uv|vllm) ")
"""How a script without a language begins."""

STEERING = re.compile(r"MODEL_CACHE|PYTHONPATH|VIRTUAL_ENV|VLLM|XDG")
"""Variables of the tests' own environment that a reader of the pages has not."""

END = "\x1e"


@dataclass(frozen=True)
class Command:
    """text: as it is shown; output: what is shown to come of it, if anything is."""

    page: str
    text: str
    output: str | None = None


@dataclass(frozen=True)
class Ran:
    """output: what the command has printed, to both streams."""

    command: Command
    output: str


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language; "" for those without."""
    return [body for _, of, body in _fenced(page) if of == language]


def logged(page: str) -> list[str]:
    """The lines of an engine's log that a page shows, unfolded, without the name before them."""
    logs = [body for body in blocks(page, "") if body.startswith("model-cache: ")]
    return [" ".join(line.split("\n")) for body in logs for line in body.strip()[13:].split("\nmodel-cache: ")]


def commands(page: str, *beginnings: str) -> list[Command]:
    """All commands of a page, in their order; or for each beginning the one that begins so."""
    everything = _commands(page)
    if not beginnings:
        return list(everything)
    chosen = []
    for beginning in beginnings:
        found = [command for command in everything if command.text.startswith(beginning)]
        assert len(found) == 1, f"{page}: {len(found)} commands begin with {beginning!r}"
        chosen += found
    return chosen


def run(
    shown: Sequence[Command],
    place: Path,
    *,
    swap: Mapping[str, str] | None = None,
    codes: Mapping[str, int] | None = None,
    **environment: str,
) -> list[Ran]:
    """Run commands one after the other in one shell.

    Args:
        place: where it starts; HOME, unless `environment` says another.
        swap: what is something else here, in the commands.
        codes: how a command begins → the exit code that it must have; 0 for all others.
    """
    script = []
    for command in shown:
        text = command.text
        for there, here in (swap or {}).items():
            text = text.replace(there, here)
        assert "…" not in text, f"{command.page}: {text}"
        wanted = next((code for begin, code in (codes or {}).items() if command.text.startswith(begin)), 0)
        script.append(f"{text}\ncode=$?; printf '{END}'; [ $code = {wanted} ] || exit 99")
    kept = {name: value for name, value in os.environ.items() if not STEERING.match(name)}
    variables = {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(place)}
    done = subprocess.run(
        ["/bin/bash", "-c", "\n".join(script)],
        cwd=place,
        env={**variables, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    outputs = done.stdout.split(END)[:-1]
    return [Ran(command, output) for command, output in zip(shown, outputs, strict=True)]


def _fenced(page: str) -> Iterator[tuple[str, str, str]]:
    """(text since the block before, language, content)"""
    parts = re.split(r"^```(\w*)\n", PAGES[page].read_text("utf-8"), flags=re.MULTILINE)
    for start in range(0, len(parts) - 4, 4):
        before, language, body, _ = parts[start : start + 4]
        yield before, language, body


@functools.cache
def _commands(page: str) -> tuple[Command, ...]:
    found: list[Command] = []
    open_end = False
    for before, language, body in _fenced(page):
        if language not in SCRIPTS:
            open_end = False
        elif re.search(r"^\$ ", body, re.MULTILINE):
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                text, _, output = part.partition("\n")
                found.append(Command(page, text, output.rstrip("\n") + "\n" if output.strip() else None))
            open_end = False
        elif language == "sh" or PROGRAMS.match(body):
            found += [Command(page, line) for line in body.splitlines() if line.strip()]
            open_end = True
        elif open_end and not before.strip():
            found[-1] = Command(page, found[-1].text, body)
            open_end = False
        else:
            open_end = False
    return tuple(found)
