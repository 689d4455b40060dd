"""From what a user names to a wheel's bytes: an installed distribution, or the path of a .whl file."""

from __future__ import annotations

import os
import stat

from model_cache.errors import DamagedError, NotFoundError, UsageError
from model_cache.wheel import small_file
from model_cache.wheel.discovery import Installed, find, scan
from model_cache.wheel.payload import InstalledPayload, Payload


def open_payload(name: str) -> Payload:
    """The payload that `name` means: the path of a .whl file, or the name of an installed distribution.

    Raises NotFoundError when there is neither, UsageError when the file is no .whl file, DamagedError when it is no
    acceptable wheel or when two versions of one distribution are installed in one place, ModelCacheError when the path
    cannot be looked at.
    """
    if name.endswith(".whl") or os.sep in name:
        from model_cache.wheel.archive import WheelPayload

        if not stat.S_ISREG(small_file.mode(name)):
            raise NotFoundError(f"{name}: there is no such file")
        if not name.endswith(".whl"):
            raise UsageError(f"{name}: is no .whl file; give one, or the name of an installed wheel")
        return WheelPayload(name)
    return InstalledPayload(installed(name))


def installed(name: str) -> Installed:
    """The installed distribution `name`. Raises NotFoundError or, if it is there twice, DamagedError."""
    wheels = find(name)
    if not wheels:
        known = [wheel.name for wheel in scan().wheels]
        hint = f"installed are: {', '.join(known)}" if known else "no model cache wheel is installed"
        raise NotFoundError(f"{name}: is not installed; {hint}")
    if len(wheels) > 1:
        versions = ", ".join(wheel.version for wheel in wheels)
        raise DamagedError(
            f"{wheels[0].name}: versions {versions} are all in {wheels[0].site}; "
            "uninstall the wheel until none is left, then install it again"
        )
    return wheels[0]
