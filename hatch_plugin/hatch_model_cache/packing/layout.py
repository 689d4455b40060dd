"""What a wheel would hold, laid out as an installer leaves it: for a deploy without a wheel."""

from __future__ import annotations

import shutil
from pathlib import Path

from hatch_model_cache.packing.pack import Packed
from hatch_model_cache.recipe.naming import ENTRY_POINT_GROUP, data_package
from model_cache.wheel.discovery import Installed
from model_cache.wheel.manifest import FILE_NAME
from model_cache.wheel.names import normalize
from model_cache.wheel.payload import InstalledPayload


class LaidOut(InstalledPayload):
    """Packed artifacts as a payload. Nobody has installed them, so nobody can uninstall them."""

    direct = True


def lay_out(packed: Packed, site: Path) -> LaidOut:
    """Write the content of the wheel that `packed` describes into the empty directory `site`, and open it."""
    manifest = packed.manifest
    package = data_package(manifest.name)
    info = f"{package}-{manifest.version}.dist-info"
    for member, source in packed.members().items():
        target = site / package / member
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    (site / package / FILE_NAME).write_bytes(packed.manifest_bytes)
    (site / info).mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {manifest.name}\nVersion: {manifest.version}\n"
    (site / info / "METADATA").write_text(metadata, "utf-8")
    entry_points = f"[{ENTRY_POINT_GROUP}]\n{manifest.name} = {package}\n"
    (site / info / "entry_points.txt").write_text(entry_points, "utf-8")
    return LaidOut(Installed(normalize(manifest.name), manifest.version, str(site), info))
