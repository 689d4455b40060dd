"""The model card of a wheel on the Hub: README.md with the front matter that the Hub reads, from the manifest alone."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from model_cache.errors import UsageError
from model_cache.origin.signature import short
from model_cache.store.files import human
from model_cache.wheel.manifest import Manifest
from model_cache.wheel.names import printable

from .hub_address import HubAddress
from .installing import pip_line, pull_line

__all__ = ["FILE_NAME", "pinned_commit", "render"]

FILE_NAME = "README.md"
MAX_BYTES = 1024 * 1024
_TEMPLATE = Path(__file__).with_name("templates") / "card.md.jinja"


def render(
    manifest: Manifest, wheel: str, size: int, sha256: str, *, pinned: HubAddress, url: str, keys: Sequence[str]
) -> bytes:
    """The card's bytes; the same wheel and commit always give the same.

    wheel, size, sha256: of the wheel's file. pinned: the commit that holds it. url: where it is downloaded from.
    keys: ids of the keys that have signed it. Raises UsageError without jinja2.
    """
    try:
        from huggingface_hub import ModelCardData
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise UsageError(
            f"a model card needs the Python package {error.name}: pip install 'hatch-model-cache[hub]'"
        ) from None
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)  # noqa: S701
    environment.filters.update(text=_text, code=_code)
    engine, serve = manifest.engine, manifest.serve
    variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(serve.environment.items())]
    parts = [("torch", engine.torch), ("Triton", engine.triton), ("CUDA", engine.cuda)]
    card = environment.from_string(_TEMPLATE.read_text("utf-8")).render(
        manifest=manifest,
        front_matter=ModelCardData(tags=_tags(manifest)).to_yaml(),
        versions=", ".join([f"{engine.name} {engine.version}", *(f"{name} {value}" for name, value in parts if value)]),
        wheel=wheel,
        size=human(size),
        sha256=sha256,
        pinned=pinned,
        keys=[short(key) for key in keys],
        pull_line=pull_line(pinned),
        pip_line=pip_line(manifest.name, url, sha256),
        serve_line=_line(" ".join([*variables, shlex.join(["vllm", "serve", manifest.model.id, *serve.arguments])])),
    )
    return card.encode()


def _tags(manifest: Manifest) -> list[str]:
    """What people search the Hub for. There is no ``base_model``: the Hub would list the wheel as a fine-tune."""
    return ["model-cache", manifest.engine.name, "torch.compile", *(target.name for target in manifest.targets)]


def pinned_commit(card: bytes, address: HubAddress) -> str | None:
    """The commit that a card of this repository installs from."""
    match = re.search(rf"{re.escape(f'hf://{address.repo}@')}([0-9a-f]{{40}})\b", card.decode("utf-8", "replace"))
    return match[1] if match else None


def _text(value: str) -> str:
    """A manifest's text in a table of Markdown: it may not end the cell or become a link, a tag or a heading."""
    return re.sub(r"([\\`*_\[\]<>|!#&~])", r"\\\1", _line(value))


def _code(value: str) -> str:
    """A manifest's text between backticks in a table."""
    return _line(value).replace("`", "'").replace("|", r"\|")


def _line(value: str) -> str:
    return printable(value).replace("```", "'''")
