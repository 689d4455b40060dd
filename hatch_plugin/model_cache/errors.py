"""The exceptions of hatch-model-cache, one per exit code of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class ModelCacheError(Exception):
    """A failure that is told to the user in one or two lines, without a traceback.

    message: what failed, where, and what to do.
    problems: every single finding, one line each; empty when the message says it all.
    """

    exit_code: ClassVar[int] = 1
    kind: ClassVar[str] = "failure"

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.problems: tuple[str, ...] = tuple(problems)

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  - {problem}" for problem in self.problems)])

    def as_dict(self) -> dict[str, object]:
        """The object that `--json` prints under the key "error"."""
        return {"kind": self.kind, "message": self.message, "problems": list(self.problems)}


class UsageError(ModelCacheError):
    """Bad input: a wrong argument, option or recipe."""

    exit_code = 2
    kind = "usage"


class DamagedError(ModelCacheError):
    """Something is not what its manifest or its own format says; nothing of it may be used."""

    exit_code = 3
    kind = "damaged"


class MismatchError(ModelCacheError):
    """The wheel is intact and was built for something else than this host."""

    exit_code = 4
    kind = "mismatch"


class NotFoundError(ModelCacheError):
    """No such wheel is installed, or no such file exists."""

    exit_code = 5
    kind = "not-found"


class CompileError(ModelCacheError):
    """The compile ended without usable artifacts."""

    exit_code = 6
    kind = "compile"


class NotTrustedError(ModelCacheError):
    """Nobody this host trusts has signed the wheel, a signature is wrong, or it cannot be checked here."""

    exit_code = 7
    kind = "not-trusted"
