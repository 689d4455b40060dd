"""Wheels that can be had somewhere, as far as that can be known without downloading them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hatch_model_cache.recipe.naming import model_slug
from model_cache.errors import DamagedError, ModelCacheError
from model_cache.store.files import human
from model_cache.wheel.manifest import Manifest
from model_cache.wheel.names import PREFIX, normalize, printable

from .web import NoPartsError

__all__ = ["Offer", "Offers", "Unread", "Wanted", "may_be_for"]


@dataclass(frozen=True)
class Wanted:
    """What is looked for. model: the model's id, or a name it is served under; hardware: what its
    name may say of the hardware, if that is known."""

    model: str
    hardware: tuple[str, ...] = ()

    def matches(self, model: str, served_as: tuple[str, ...]) -> bool:
        """Whether a wheel for `model`, served as these names, is one for what is wanted."""
        return self.model == model or self.model in served_as


@dataclass(frozen=True)
class Offer:
    """A wheel for the wanted model.

    source: where it was found; url: where it is downloaded from; sha256, size: of the file. keys: ids of the keys that
    its signature file names: nothing is proven yet. yanked: why an index withdraws it, None when it does not. install:
    the command that installs exactly this.
    """

    source: str
    file: str
    url: str
    sha256: str
    size: int
    manifest: Manifest
    keys: tuple[str, ...]
    install: str
    yanked: str | None = None


@dataclass(frozen=True)
class Unread:
    """A wheel that may be the wanted one and could not be looked into, and why."""

    source: str
    file: str
    reason: str


@dataclass
class Offers:
    """What one place has. others: models it has wheels for, besides the wanted one."""

    found: list[Offer] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    others: set[str] = field(default_factory=set)

    def add(self, other: Offers) -> None:
        """Take in what another place has."""
        self.found += other.found
        self.unread += other.unread
        self.others |= other.others

    def look(self, source: str, file: str, read: Callable[[], Offer | str | None]) -> None:
        """Note what `read` finds out: an offer, the other model that a wheel is for, or that there is none."""
        try:
            answer = read()
        except NoPartsError as error:
            size = "all of it" if error.size is None else human(error.size)
            reason = f"the server sends no parts of files: {size} would have to be downloaded (--download MB)"
            self.unread.append(Unread(source, file, reason))
        except DamagedError as error:
            self.unread.append(Unread(source, file, " ".join([error.message, *error.problems[:1]])))
        except ModelCacheError as error:
            self.unread.append(Unread(source, file, error.message))
        else:
            if isinstance(answer, Offer):
                self.found.append(answer)
            elif answer is not None:
                self.others.add(printable(answer))


def may_be_for(projects: Iterable[str], wanted: Wanted) -> list[str]:
    """Of the names of projects those that the wanted model's wheels have; all of them if none has such a name, since
    a model may be looked for by a name it is served under."""
    ours = sorted({normalize(name) for name in projects if normalize(name).startswith(PREFIX)})
    slugs = {normalize(model_slug(wanted.model, with_org=with_org)) for with_org in (False, True)} - {""}
    return [name for name in ours if name.startswith(tuple(f"{PREFIX}{slug}-" for slug in slugs))] or ours
