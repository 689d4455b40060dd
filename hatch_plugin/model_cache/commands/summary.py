"""A quick look at installed wheels, for lists: nothing is verified, nothing heavy is imported."""

from __future__ import annotations

import json
from typing import NamedTuple

from model_cache.errors import ModelCacheError
from model_cache.machine import fit
from model_cache.machine.host import Host, read_host
from model_cache.wheel.discovery import Installed
from model_cache.wheel.manifest import Engine
from model_cache.wheel.payload import InstalledPayload
from model_cache.wheel.strict_json import MAX_INTEGER

MAX_BYTES = 16 * 1024 * 1024
MAX_SHOWN = 200


class Summary(NamedTuple):
    """One installed wheel as its manifest describes it.

    problem: why it could not be read, else None. stale: what has been replaced here since it was built.
    """

    name: str
    version: str
    location: str
    model: str = ""
    engine: str = ""
    targets: tuple[str, ...] = ()
    size: int = 0
    problem: str | None = None
    stale: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        return {**self._asdict(), "targets": list(self.targets), "stale": list(self.stale)}


class Summarizer:
    """Reads the few fields that a list shows; what is installed beside the wheels is looked up once per engine."""

    def __init__(self) -> None:
        self._hosts: dict[str, Host] = {}

    def stale(self, document: dict[str, object]) -> tuple[str, ...]:
        """See `Summary.stale`. Raises KeyError, TypeError for a manifest of another form."""
        engine = Engine(**document["engine"])  # type: ignore[arg-type]
        if engine.name not in self._hosts:
            self._hosts[engine.name] = read_host(engine.name)
        return tuple(str(difference) for difference in fit.outdated(engine, self._hosts[engine.name]))

    def summarize(self, wheel: Installed) -> Summary:
        """Look at one installed wheel; whatever is wrong becomes `problem`."""
        try:
            with InstalledPayload(wheel) as payload:
                document = json.loads(payload.read("manifest.json", MAX_BYTES))
            blobs = {f["sha256"]: f["size"] for entry in document["entries"] for f in entry["files"]}
            if not all(type(size) is int and 0 <= size <= MAX_INTEGER for size in blobs.values()):
                raise ValueError
            return Summary(
                name=wheel.name,
                version=wheel.version,
                location=wheel.site,
                model=str(document["model"]["id"])[:MAX_SHOWN],
                engine=f"{document['engine']['name']} {document['engine']['version']}",
                targets=tuple(str(target["name"]) for target in document["targets"]),
                size=sum(blobs.values()),
                stale=self.stale(document),
            )
        except ModelCacheError as error:
            problem = error.message
        except Exception:  # nothing was checked, and one hostile wheel may not hide the others
            problem = "its manifest cannot be read"
        return Summary(wheel.name, wheel.version, wheel.site, problem=problem)
