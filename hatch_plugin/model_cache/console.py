"""The border between commands and the terminal: wrong arguments, errors, and streams that are closed or full."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, TextIO

from model_cache.errors import ModelCacheError, UsageError


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of ending the process, so that `--json` holds for wrong arguments too."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is left over here, and so in the parser of the command that it was given to: argparse hands it
        up, and the outermost parser would point at its own help."""
        namespace, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return namespace, rest

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")


def run(command: Callable[[], int], *, as_json: bool, interrupted: str = "interrupted") -> int:
    """Run a command, tell its error in words, and return its exit code.

    as_json: tell an error as one JSON object on stdout. interrupted: what is said after Ctrl-C.
    """
    _open_standard_streams()
    try:
        code = _run(command, as_json=as_json, interrupted=interrupted)
    except SystemExit:  # --help, --version
        if _flush():
            raise
        return 1
    return code if _flush() else code or 1


def _run(command: Callable[[], int], *, as_json: bool, interrupted: str) -> int:
    try:
        return command()
    except ModelCacheError as error:
        print_error(error, as_json=as_json)
        return error.exit_code
    except OSError as error:
        # Of stdout, `_flush` will speak: what could not be written is still in its buffer.
        if error.filename is not None or (not isinstance(error, BrokenPipeError) and _flushes(sys.stdout)):
            where = f"{error.filename}: " if error.filename is not None else ""
            print_error(ModelCacheError(f"{where}{error.strerror or error}"), as_json=as_json)
        return 1
    except KeyboardInterrupt:
        _to_stderr(interrupted)
        return 130


def print_json(answer: object) -> int:
    """Print one JSON object as a command's answer; returns 0, the exit code of a command that has answered."""
    sys.stdout.write(json.dumps(answer, indent=1, ensure_ascii=False) + "\n")
    return 0


def print_error(error: ModelCacheError, *, as_json: bool) -> None:
    """Tell an error: one line and its problems on stderr, or one JSON object on stdout."""
    if as_json:
        with suppress(OSError):  # `run` says so at its end
            sys.stdout.write(json.dumps({"error": error.as_dict()}, indent=1) + "\n")
        return
    from model_cache.wheel.names import printable

    # What a wheel says may be quoted in there. Line ends of a message are ours, those of a problem are not.
    lines = [*error.message.split("\n"), *(f"  - {problem}" for problem in error.problems)]
    _to_stderr("\n".join(map(printable, lines)))


def _to_stderr(text: str) -> None:
    try:
        sys.stderr.write(f"model-cache: {text}\n")
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


def _open_standard_streams() -> None:
    """Fill the places of closed standard streams: the next file to be opened would be given their numbers, and get
    what we or our children print. What is written to a closed stdout fails as it would have."""
    for number, stream, flags in (
        (0, sys.stdin, os.O_RDONLY),
        (1, sys.stdout, os.O_RDONLY),
        (2, sys.stderr, os.O_WRONLY),
    ):
        if stream is None:
            descriptor = os.open(os.devnull, flags)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.set_inheritable(number, True)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files need not be text. Argparse swallows errors of `--help`: written through, they would go unseen.
        sys.stdout.reconfigure(errors="backslashreplace", write_through=False)


def _flushes(stream: TextIO) -> bool:
    try:
        stream.flush()
    except OSError:
        return False
    return True


def _flush() -> bool:
    """Whether all output has arrived. The reader may have gone (`| head`): that is no news to the user."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
        return False
    except OSError as error:
        _discard(sys.stdout)
        _to_stderr(f"standard output cannot be written to: {error.strerror or error}")
        return False
    return True


def _discard(stream: TextIO) -> None:
    """Keep the interpreter from complaining when it flushes `stream` at its end."""
    with suppress(OSError, ValueError):
        number = stream.fileno()
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, number)
        os.close(descriptor)
