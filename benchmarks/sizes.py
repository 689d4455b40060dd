"""What is compared with a wheel: the cache root that it is deployed into, as it is and as a tar.gz."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from hatch_model_cache.packing import artifacts


def tree(root: Path) -> int:
    """Bytes of all files below a directory; a link counts nothing."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def tar(root: Path) -> int:
    """Bytes of a directory as `tar -cz` makes them."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "root.tar.gz"
        subprocess.run(["tar", "-czf", str(archive), "-C", str(root), "."], check=True)
        return archive.stat().st_size


def of_wheel(wheel: Path, directory: Path) -> dict[str, int]:
    """Bytes of a wheel, and of the cache root that it makes, from the artifacts that it was packed from.

    root_bytes: every file in its place; distinct_bytes: equal ones once; tar_bytes: the root as a tar.gz.
    """
    found = artifacts.read(directory)
    distinct = {file.sha256: file.size for _, file, _ in found.files()}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for entry, file, source in found.files():
            place = root / entry.directory / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found.path(source), place)
        return {
            "root_bytes": tree(root),
            "distinct_bytes": sum(distinct.values()),
            "tar_bytes": tar(root),
            "wheel_bytes": wheel.stat().st_size,
        }
