"""The checkpoint of a recipe: the headers of its safetensors files, here or on the Hub, and the values of tiny tensors.

No weight is read. Tiny tensors are: scales and the like, whose values decide what an engine makes of the others.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_model_cache.recipe import safetensors_header
from hatch_model_cache.recipe.safetensors_header import Header, Readable, Tensor
from model_cache.errors import DamagedError, NotFoundError, UsageError
from model_cache.wheel.names import printable

if TYPE_CHECKING:
    from hatch_model_cache.publish.hub_address import HubAddress

TINY = 16
"""Numbers that a tensor may have for its values to be read."""

MAX_FILES = 2000
MAX_HEADERS_BYTES = 256 << 20
"""Of all headers of a checkpoint together; those of the largest known have 12 MB."""

MAX_INDEX_BYTES = 64 << 20
INDEXES = ("model.safetensors.index.json", "consolidated.safetensors.index.json")
"""Files that say which of the others belong together; vLLM reads them too."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.safetensors")
_HUB = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)@(?P<revision>.*)", re.ASCII)

_RUN_BYTES = 1 << 20
_GAP_BYTES = 64 << 10
_MOST_RUNS = 64
"""Tiny tensors that lie close together are read in one piece; of the pieces of a file so many at most."""

_BLOCK_BYTES = 128 << 10
"""What is asked of the Hub at a time."""


@dataclass(frozen=True)
class Headers:
    """What a checkpoint says of its tensors.

    Attributes:
        files: name → header.
        index: name → bytes of the files in `INDEXES` that are there.
        values: name of the file and place in it → the bytes of a tiny tensor.
        named: of those, the tensors' names.
    """

    files: Mapping[str, Header]
    index: Mapping[str, bytes]
    values: Mapping[tuple[str, int], bytes]
    named: Sequence[str]

    def digest(self) -> str:
        """SHA-256 (hex) of all of it: the same for the same files, wherever they are."""
        document = {
            "files": {name: hashlib.sha256(header.raw).hexdigest() for name, header in self.files.items()},
            "index": {name: hashlib.sha256(data).hexdigest() for name, data in self.index.items()},
            "values": sorted([name, at, data.hex()] for (name, at), data in self.values.items()),
        }
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    def record(self) -> dict[str, Any]:
        """As the manifest says it."""
        tensors = sum(len(header.tensors) for header in self.files.values())
        return {"digest": self.digest(), "files": len(self.files), "tensors": tensors, "values": len(self.named)}

    def write(self, directory: Path) -> None:
        """Leave files that look like the checkpoint's from outside: a header, and a hole where its weights were.

        They take no more space than the headers. Raises UsageError where that cannot be.
        """
        try:
            for name, data in self.index.items():
                (directory / name).write_bytes(data)
            for name, header in self.files.items():
                with (directory / name).open("xb") as file:
                    file.write(header.raw)
                    file.truncate(header.size)
                    for at in sorted(at for of, at in self.values if of == name):
                        file.seek(at)
                        file.write(self.values[name, at])
        except OSError as error:
            raise UsageError(f"{directory} cannot hold the headers of the checkpoint: {error.strerror}") from None


def problem(text: str, project: Path) -> str | None:
    """Why `text` is no `checkpoint` that a recipe in `project` can have; None when it is one. The Hub is not asked."""
    found = _HUB.fullmatch(text)
    if found and not (project / text).is_dir():
        from hatch_model_cache.publish.hub_address import is_commit

        if not is_commit(found["revision"]):
            return f"{text!r:.200} must name a whole commit of the Hub: other names mean other files tomorrow."
        return None
    try:
        names = [path.name for path in (project / text).resolve().iterdir() if path.suffix == ".safetensors"]
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        reason = getattr(error, "strerror", None) or "a loop of links"
        return f"{text!r:.200} is neither a directory ({reason}) nor ORG/NAME@COMMIT on the Hub."
    return None if names else f"{text!r:.200} holds no *.safetensors."


def identity(text: str, project: Path | None) -> str:
    """What of a `checkpoint` decides the artifacts, in words: a commit names its files, of a directory it is a digest.

    Raises as `read`.
    """
    return text if _is_remote(text, project) else read(text, project).digest()


def read(text: str, project: Path | None) -> Headers:
    """The headers of a recipe's `checkpoint`.

    Args:
        text: a directory, relative to `project` or absolute, or ORG/NAME@COMMIT.
        project: directory of the recipe.

    Raises:
        UsageError: if it cannot be read, or huggingface_hub is missing.
        DamagedError: if a header is wrong, or the files do not belong together.
        NotFoundError, ModelCacheError: as the Hub answers.
    """
    if _is_remote(text, project):
        from hatch_model_cache.publish.hub_address import HubAddress

        repo, _, commit = text.partition("@")
        return _of_hub(HubAddress(repo, commit))
    return _of_directory(((project or Path()) / text).resolve())


def _is_remote(text: str, project: Path | None) -> bool:
    return bool(_HUB.fullmatch(text)) and not ((project or Path()) / text).is_dir()


def _of_directory(directory: Path) -> Headers:
    @contextmanager
    def opened(name: str) -> Iterator[tuple[Readable, int]]:
        # a link is followed: that is how the Hub's cache holds files
        with open(directory / name, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise DamagedError(f"{directory / name}: is not a regular file")
            yield file, status.st_size

    try:
        return _read(sorted(path.name for path in directory.iterdir()), opened, str(directory))
    except OSError as error:
        where = printable(str(error.filename or directory))
        raise UsageError(f"the checkpoint's {where:.300} cannot be read: {error.strerror}") from None


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _of_hub(address: HubAddress) -> Headers:
    from hatch_model_cache.publish.hub import Hub

    hub = Hub()
    with hub.told(address):
        from huggingface_hub import HfFileSystem

        remote = HfFileSystem(endpoint=hub.endpoint, skip_instance_cache=True)
        place = f"{address.repo}@{address.revision}"

        @contextmanager
        def opened(name: str) -> Iterator[tuple[Readable, int]]:
            with remote.open(f"{place}/{name}", "rb", block_size=_BLOCK_BYTES) as file:
                yield file, int(file.size)

        listed = hub.api.list_repo_tree(address.repo, revision=address.revision)
        return _read(sorted(entry.path for entry in listed), opened, str(address))


def _read(there: Sequence[str], opened: Any, what: str) -> Headers:
    """Read the files of a checkpoint.

    Args:
        there: names of everything that lies beside each other.
        opened: a context manager that opens one: the file, and its size in bytes.
        what: names the place in errors.
    """
    names = [name for name in there if _NAME.fullmatch(name)]
    if not names:
        raise NotFoundError(f"{what}: holds no *.safetensors")
    if len(names) > MAX_FILES:
        raise DamagedError(f"{what}: holds {len(names)} safetensors files, more than {MAX_FILES}")
    index = {name: _index(opened, name, what) for name in INDEXES if name in there}
    for name, data in index.items():
        _check_index(data, names, f"{what}/{name}")
    files: dict[str, Header] = {}
    values: dict[tuple[str, int], bytes] = {}
    named: list[str] = []
    left = MAX_HEADERS_BYTES
    for name in names:
        with opened(name) as (file, size):
            header = safetensors_header.read(file, size, f"{what}/{name}")
            for tensor, data in _tiny(file, header):
                values[name, tensor.begin] = data
                named.append(tensor.name)
        files[name] = header
        left -= len(header.raw)
        if left < 0:
            raise DamagedError(f"{what}: its headers have more than {MAX_HEADERS_BYTES} bytes")
    return Headers(files, index, values, sorted(set(named)))


def _index(opened: Any, name: str, what: str) -> bytes:
    with opened(name) as (file, size):
        if size > MAX_INDEX_BYTES:
            raise DamagedError(f"{what}/{name}: is larger than {MAX_INDEX_BYTES} bytes")
        data: bytes = file.read(size)
    return data


def _check_index(data: bytes, names: Sequence[str], what: str) -> None:
    """Raise DamagedError unless an index names files that are there: with one missing, so are its tensors."""
    try:
        document = json.loads(data)  # its other fields may be anything
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{what}: is not valid JSON: {error}") from None
    table = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(table, dict) or not table or not all(isinstance(file, str) for file in table.values()):
        raise DamagedError(f"{what}: has no weight_map from tensors to files")
    missing = sorted(set(table.values()) - set(names))
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise DamagedError(f"{what}: names {printable(missing[0])!r:.120}{more}, which is not there")


def _tiny(file: Readable, header: Header) -> Iterator[tuple[Tensor, bytes]]:
    """The tiny tensors of a file with their bytes, but for those that lie too far apart."""
    runs: list[list[Tensor]] = []
    for tensor in header.tensors:
        if 0 < tensor.count <= TINY:
            close = runs and tensor.begin - runs[-1][-1].end <= _GAP_BYTES
            if close and tensor.end - runs[-1][0].begin <= _RUN_BYTES:
                runs[-1].append(tensor)
            else:
                runs.append([tensor])
    for run in runs[:_MOST_RUNS]:
        begin = run[0].begin
        file.seek(begin)
        data = file.read(run[-1].end - begin)
        yield from ((tensor, data[tensor.begin - begin : tensor.end - begin]) for tensor in run)
