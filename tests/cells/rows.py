"""The rows of the table, from rows.toml, and its columns."""

from __future__ import annotations

import hashlib
import json
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.hosts import SERVE_ARGS
from hatch_model_cache import targets

HERE = Path(__file__).resolve().parent
MODELS = HERE.parent / "data" / "models"
H100 = "h100-sxm5-80gb"


@dataclass(frozen=True)
class Column:
    """A target, and the version of vLLM that compiles for it and serves."""

    target: str
    vllm: str = "0.33.0"

    @property
    def engine(self) -> str:
        """What its environment is called, below .engines."""
        return f"vllm-{self.vllm}"


GPUS = {"H100": Column(H100), "A100": Column("a100-sxm4-80gb"), "B200": Column("b200")}
OLDER = {f"vLLM {version}": Column(H100, version) for version in ("0.32.0", "0.31.0")}
"""Title → column. In the order in which they are filled."""

COLUMNS = GPUS | OLDER


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """One configuration; see rows.toml for the fields."""

    part: str
    title: str
    model: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    draft: str | None = None
    tokenizer: bool = False
    url: str | None = None

    @property
    def serve_args(self) -> tuple[str, ...]:
        """Everything after ``vllm serve MODEL``; argparse takes the last of a flag given twice."""
        return (*SERVE_ARGS, *self.arguments)

    @property
    def drafts(self) -> dict[str, Path]:
        """The speculative model, by the name that the arguments give."""
        return {f"./{self.draft}": MODELS / self.draft} if self.draft else {}

    @property
    def name(self) -> str:
        """What the model is called: letters, digits, dashes."""
        words = "".join(c if c.isalnum() and c.isascii() else " " for c in self.title.lower()).split()
        return "-".join(words)

    @property
    def columns(self) -> Mapping[str, Column]:
        """Where it is shown: on every GPU, and what is of a Llama also with older versions of the engine."""
        return COLUMNS if self.title.startswith("Llama") else GPUS

    def write_model(self, directory: Path) -> None:
        """The model's configuration."""
        shutil.copytree(MODELS / self.model, directory)
        config = directory / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text("utf-8")), **self.config}, indent=1), "utf-8")

    def digest(self, target: str) -> str:
        """What an answer depends on, but for this project's own code."""
        models = [MODELS / name for name in (self.model, self.draft) if name]
        files = {f"{p.parent.name}/{p.name}": p.read_text("utf-8") for m in models for p in sorted(m.iterdir())}
        options = [self.serve_args, dict(self.environment), self.config, self.tokenizer, files]
        options += [self.url] if self.url else []
        document = json.dumps([options, targets.load(target).as_dict()], sort_keys=True)
        return hashlib.sha256(document.encode()).hexdigest()[:16]


def load() -> list[Row]:
    """Every row, in the file's order."""
    table = tomllib.loads((HERE / "rows.toml").read_text("utf-8"))
    rows = [Row(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}) for row in table["row"]]
    twice = {row.name for row in rows if sum(other.name == row.name for other in rows) > 1}
    assert not twice, f"rows of one name: {twice}"
    return rows
