"""What surrounds a compile: a pretended GPU, or the real CPU or GPU that is here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from hatch_model_cache import targets

from .pretend.device import Log
from .pretend.header_loader import Checkpoint
from .pretend.patches import Patches


class Surroundings(Protocol):
    """What an adapter needs of it.

    Attributes:
        kind: of the target.
        patches: what was replaced.
        log: what was asked and made up.
        count: how many devices the engine sees.
        layout: which of them each rank uses (`engines.layout`).
        checkpoint: from whose headers the model's weights are loaded; None: nothing is loaded.
        packages: directory that the engine's packages lie in on the serving host; None: where they lie here.
        mode: what the engine runs in.
    """

    kind: str
    patches: Patches
    count: int
    layout: str
    checkpoint: Checkpoint | None
    packages: str | None

    @property
    def log(self) -> Log: ...
    @property
    def mode(self) -> AbstractContextManager[Any]: ...

    def before_program(self) -> None:
        """Answer for a plain module that is compiled without an engine around it."""

    def before_worker(self) -> None:
        """Answer for the model loader. Call when the engine's configuration is made and its worker is not."""

    def before_trace(self, model: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Make a model and the arguments of its first call what Dynamo can trace without values; the arguments."""


@contextmanager
def surround(record: Mapping[str, Any], *, scratch: Path, engine: str, native: bool = False) -> Iterator[Surroundings]:
    """Be where the target is, until the block ends. Call before the engine is imported.

    Args:
        record: the target, as in the manifest.
        scratch: a directory for what must be a file.
        engine: what will be imported there; its parts that ask are answered too.
        native: whether a GPU is the one that is here, and not pretended; a CPU always is.
    """
    target = targets.from_record(record)
    if isinstance(target, targets.CpuTarget):
        from .native import native as native_cpu

        with native_cpu(engine) as surroundings:
            yield surroundings
    elif native:
        from .native.gpu import native_gpu

        with native_gpu() as gpu:
            yield gpu
    else:
        from .pretend import pretend

        with pretend(target, scratch=scratch, engine=engine) as pretence:
            yield pretence
