"""The catalogue for people: one HTML file, without any request, that says what the index has and how to install it."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup
from packaging.version import Version

from model_cache.errors import UsageError
from model_cache.origin.signature import short
from model_cache.store.files import human
from model_cache.wheel.catalogue import Catalogue, Offer, Package
from model_cache.wheel.names import normalize

from . import simple
from .pages import render, template_text

__all__ = ["base_url", "page"]

SERVING = "hatch-model-cache"
"""What every model cache depends on."""

_HERE = "INDEX"
"""Stands in install lines for the index's address, which the page learns from the browser."""

_BASE_URL = re.compile(r"(https?|file)://[A-Za-z0-9._~%:/\[\]-]*")


@dataclass(frozen=True)
class Row:
    """An offer as the page shows it. pip, uv, requirements: what to run, and to write, to install it."""

    offer: Offer
    older: bool
    pip: str
    uv: str
    requirements: str
    requirements_command: str = "pip install --require-hashes -r requirements.txt"

    @property
    def engine(self) -> str:
        return f"{self.offer.engine.name} {self.offer.engine.version}"

    @property
    def size(self) -> str:
        return human(self.offer.size)

    @property
    def saves(self) -> str:
        """The compile that a start does without; "" when nobody has said."""
        return duration(self.offer.compile_seconds) if self.offer.compile_seconds else ""

    @property
    def signature(self) -> tuple[str, str, str]:
        """(state, in words, the key's id as people read it)."""
        keys = self.offer.keys
        if not keys:
            return "none", "Not signed", ""
        checked = [key for key in keys if key.checked]
        if checked:
            return "checked", "Signed", short(checked[0].id)
        return "named", "Signature not checked", short(keys[0].id)

    @property
    def searched(self) -> str:
        """What the search looks into."""
        offer = self.offer
        words = [offer.name, offer.version, self.engine, offer.model.id, *offer.model.served_as]
        words += [word for target in offer.targets for word in (target.name, target.hardware)]
        return " ".join([*words, *offer.model.architectures, *(key.id for key in offer.keys)]).lower()


def base_url(text: str) -> str:
    """The address of a site as install lines hold it, with a slash at its end. Raises UsageError."""
    if not _BASE_URL.fullmatch(text):
        raise UsageError(
            f"--url must be the site's address like https://wheels.example/caches, without credentials or query, "
            f"not {text!r:.200}"
        )
    return text.rstrip("/") + "/"


def duration(seconds: int) -> str:
    """Seconds for people: "45 s", "1 min 23 s", "2 h 5 min"."""
    if seconds < 60:
        return f"{seconds} s"
    minutes, rest = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def page(catalogue: Catalogue, url: str | None) -> bytes:
    """The page's bytes. url: of the site, as `base_url` gives it; None: the browser's address of the page counts."""
    rows = _rows(catalogue, f"{url or _HERE + '/'}{simple.FOLDER}/")
    style, script = template_text("catalogue.css"), template_text("catalogue.js")
    return render(
        "catalogue.html",
        rows=rows,
        here=None if url else _HERE,
        style=Markup(style),  # noqa: S704 (ours, not a wheel's)
        script=Markup(script),  # noqa: S704
        policy=_policy(style, script),
        models=len({row.offer.model.id for row in rows}),
        total=human(sum(row.offer.size for row in rows)),
        targets=sorted({(target.name, target.hardware) for row in rows for target in row.offer.targets}),
        engines=sorted({(row.offer.engine.name, row.offer.engine.version) for row in rows}, key=_by_version),
        has_older=any(row.older for row in rows),
        has_serving=_newest(catalogue.others, SERVING) is not None,
    )


def _by_version(engine: tuple[str, str]) -> tuple[str, Version]:
    return engine[0], Version(engine[1])


def _policy(style: str, script: str) -> str:
    """The content security policy: our style and our script run, and nothing is fetched from anywhere."""

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; style-src 'sha256-{digest(style)}'; script-src 'sha256-{digest(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _rows(catalogue: Catalogue, index: str) -> list[Row]:
    serving = _newest(catalogue.others, SERVING)
    ordered = sorted(catalogue.wheels, key=lambda one: (one.model.id.lower(), one.name))
    rows = []
    for _, group in groupby(ordered, key=lambda one: (one.model.id.lower(), one.name)):
        offers = sorted(group, key=lambda one: (one.yanked is None, Version(one.version)), reverse=True)
        seen: set[tuple[str, str]] = set()
        for offer in offers:
            engine = (offer.engine.name, offer.engine.version)
            rows.append(_row(offer, serving, index, older=engine in seen))
            seen.add(engine)
    return rows


def _row(offer: Offer, serving: Package | None, index: str, *, older: bool) -> Row:
    wanted = f"{offer.name}=={offer.version}"
    hashed = [offer, serving] if serving else [offer]
    requirements = [f"{one.name}=={one.version} --hash=sha256:{one.sha256}" for one in hashed]
    return Row(
        offer,
        older,
        pip=f"pip install --index-url {index} {shlex.quote(wanted)}",
        uv=f"uv pip install --index-url {index} {shlex.quote(wanted)}",
        requirements="\n".join([f"--index-url {index}", *requirements]),
    )


def _newest(packages: Sequence[Package], name: str) -> Package | None:
    there = [one for one in packages if normalize(one.name) == name and one.yanked is None]
    return max(there, key=lambda one: Version(one.version), default=None)
