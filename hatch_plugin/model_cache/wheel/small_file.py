"""Files that a user names: what one is, and what is in it, without waiting for a FIFO or filling the memory."""

from __future__ import annotations

import errno
import os
import stat

from model_cache.errors import ModelCacheError
from model_cache.wheel.names import printable


def mode(path: str | os.PathLike[str]) -> int:
    """`st_mode` of what a path leads to, 0 if nothing is there. Raises ModelCacheError when that cannot be known."""
    try:
        return os.stat(path).st_mode  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelCacheError(f"{printable(os.fspath(path)):.300}: cannot be read: {reason}") from None


def read(path: str | os.PathLike[str], limit: int) -> bytes:
    """A regular file of at most `limit` bytes. Raises OSError, also for another kind of file or a larger one."""
    with open(path, "rb", opener=_open) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", os.fspath(path))
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit} bytes", os.fspath(path))
    return data


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
