"""Verified wheels → a static site, put in the place of the one before in one step, or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from packaging.version import Version

from model_cache.errors import DamagedError, ModelCacheError, UsageError
from model_cache.store import files
from model_cache.wheel import catalogue as catalogues
from model_cache.wheel import small_file
from model_cache.wheel.catalogue import Catalogue, Labels, Offer, Package
from model_cache.wheel.names import printable

from . import page, simple, variants
from .shelf import Shelf, Wheel, url_of

__all__ = ["Built", "Site", "build", "catalogue_of"]

_PAGE = "index.html"


@dataclass(frozen=True)
class Site:
    """An index that is there already. catalogue: what it says it holds; None for a place that is free."""

    path: Path
    catalogue: Catalogue | None

    @classmethod
    def at(cls, path: Path) -> Site:
        """The site at `path`. Raises UsageError when something is there that no index build has made."""
        path = path.resolve()
        try:
            names = [entry.name for entry in path.iterdir()] if small_file.mode(path) else []
            if not names:
                return cls(path, None)
            data = small_file.read(path / catalogues.FILE_NAME, catalogues.MAX_BYTES)
            site = cls(path, catalogues.parse(data))
        except NotADirectoryError:
            raise UsageError(f"{path}: is no directory; give another place with --out") from None
        except FileNotFoundError:
            raise UsageError(f"{path}: holds files and is no index; give an empty or a new directory") from None
        except (OSError, DamagedError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UsageError(f"{path}: is no index that can be replaced: {reason}") from None
        if strange := sorted(site.files() - site.expected()):
            raise UsageError(
                f"{path}: holds files of others, which a new index would delete; move them away",
                [printable(name) for name in strange[:20]],
            )
        return site

    def files(self) -> set[str]:
        """Relative paths of the files that are there."""
        found = (Path(folder, name) for folder, _, names in os.walk(self.path) for name in names)
        return {path.relative_to(self.path).as_posix() for path in found}

    def expected(self) -> set[str]:
        """Relative paths of the files that the catalogue makes."""
        if self.catalogue is None:
            return set()
        names = {_PAGE, catalogues.FILE_NAME, *(unquote(part.url) for part in self.catalogue.parts())}
        folders = [simple.FOLDER, *(f"{simple.FOLDER}/{name}" for name in simple.projects(self.catalogue))]
        return names | {f"{folder}/{name}" for folder in folders for name in ("index.html", "index.json")}

    def known(self) -> dict[str, str]:
        """File name → sha256 of the wheels that entered this site, which were verified then."""
        return {package.file: package.sha256 for package in self._packages()}

    def _packages(self) -> Iterator[Package]:
        return self.catalogue.packages() if self.catalogue else iter(())


@dataclass(frozen=True)
class Built:
    """What a build has done, or would do. added, removed: file names of wheels; changed: whether any byte differs."""

    catalogue: Catalogue
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: bool


def catalogue_of(shelf: Shelf) -> Catalogue:
    """The catalogue of these wheels, in an order of its own."""
    packages = sorted((wheel.package for wheel in shelf.wheels), key=lambda one: (one.name, Version(one.version)))
    return Catalogue(
        wheels=tuple(package for package in packages if isinstance(package, Offer)),
        others=tuple(package for package in packages if not isinstance(package, Offer)),
        labels=tuple(labels for labels, _ in _labels(shelf)),
    )


def _labels(shelf: Shelf) -> Iterator[tuple[Labels, bytes]]:
    """For every version that has variants: the file that says what their labels mean, and its bytes."""
    found: dict[tuple[str, str], set[str]] = {}
    for wheel in shelf.wheels:
        if wheel.label is not None:
            found.setdefault((wheel.package.name, wheel.package.version), set()).add(wheel.label)
    for (name, version), labels in sorted(found.items()):
        data, file = variants.document(labels), variants.index_name(name, version)
        digest = hashlib.sha256(data).hexdigest()
        yield Labels(url=url_of(file), sha256=digest, size=len(data), name=name, version=version, file=file), data


def build(shelf: Shelf, site: Site, *, url: str | None = None, dry_run: bool = False) -> Built:
    """Make `site` the index of `shelf`.

    url: where the site will be served, for the install lines of its page; None: its own address. Readers see the old
    site or the new one. On any failure the old one stays. Raises DamagedError for a wheel that has changed since it
    was verified, ModelCacheError when the site cannot be written.
    """
    catalogue = catalogue_of(shelf)
    small = dict(_small_files(shelf, catalogue, url))
    before, now = site.known(), {wheel.package.file: wheel.package.sha256 for wheel in shelf.wheels}
    built = Built(
        catalogue,
        added=tuple(sorted(file for file, sha256 in now.items() if before.get(file) != sha256)),
        removed=tuple(sorted(before.keys() - now.keys())),
        changed=not _is_there(site, small, shelf.wheels),
    )
    if built.changed and not dry_run:
        with _replacing(site.path) as folder:
            for path, data in small.items():
                _put_small(folder / path, data, site.path / path)
            for wheel in shelf.wheels:
                name = unquote(wheel.package.url)
                _put_wheel(folder / name, wheel, site.path / name)
    return built


def _small_files(shelf: Shelf, catalogue: Catalogue, url: str | None) -> Iterator[tuple[str, bytes]]:
    yield catalogues.FILE_NAME, catalogue.to_json_bytes()
    yield _PAGE, page.page(catalogue, url)
    yield from simple.pages(catalogue)
    yield from ((unquote(labels.url), data) for labels, data in _labels(shelf))
    for wheel in shelf.wheels:
        yield from ((unquote(name), data) for name, data in wheel.beside.items())


def _is_there(site: Site, small: Mapping[str, bytes], wheels: tuple[Wheel, ...]) -> bool:
    """Whether the site holds exactly this."""
    names = {*small, *(unquote(wheel.package.url) for wheel in wheels)}
    return (
        site.files() == names
        and all((site.path / name).read_bytes() == data for name, data in small.items())
        and all(_sha256(site.path / unquote(wheel.package.url)) == wheel.package.sha256 for wheel in wheels)
    )


def _put_small(path: Path, data: bytes, before: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        # The same file, not the same bytes anew: its time, and so what browsers and proxies keep of it, stays.
        if before.read_bytes() == data:
            os.link(before, path)
            return
    path.write_bytes(data)


def _put_wheel(path: Path, wheel: Wheel, before: Path) -> None:
    """The wheel from the old site if it is there unharmed, else a copy; never a link to the publisher's own file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        if _sha256(before) == wheel.package.sha256:
            os.link(before, path)
            return
    shutil.copyfile(wheel.path, path)
    if _sha256(path) != wheel.package.sha256:
        raise DamagedError(f"{wheel.path}: changed while the index was built; build it again")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A new directory that takes the place of `path` at the end, and is deleted on any error."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        yield temporary
        _readable_for_all(temporary)
        _switch(temporary, path)
    except OSError as error:
        where = printable(str(error.filename or path))
        raise ModelCacheError(f"{where}: the index cannot be written: {error.strerror or error}") from error
    finally:
        if temporary:  # the unfinished new site, or the old one
            shutil.rmtree(temporary, ignore_errors=True)


def _readable_for_all(folder: Path) -> None:
    """Modes by policy, whatever the umask: a file server runs as somebody else."""
    for directory, _, names in os.walk(folder):
        Path(directory).chmod(files.DIRECTORY_MODE)
        for name in names:
            Path(directory, name).chmod(files.FILE_MODE)


def _switch(new: Path, path: Path) -> None:
    """Put `new` in the place of `path`, and what was there under the name of `new`."""
    parent = os.open(path.parent, files.DIRECTORY)
    try:
        files.sync_file_system(parent)
        if not small_file.mode(path):
            new.rename(path)
        elif not files.exchange(parent, new.name, path.name):
            # a file system without the exchange: for a moment there is no site
            aside = new.with_name(f"{new.name}.old")
            path.rename(aside)
            try:
                new.rename(path)
            except BaseException:
                aside.rename(path)
                raise
            aside.rename(new)
        files.sync_file_system(parent)
    finally:
        os.close(parent)
