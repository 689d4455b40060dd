"""First file of a compile process. Run by path in the engine's interpreter, which need not have hatch-model-cache:

    python -s -P bootstrap.py <job.json> <descriptor>

It makes this package importable without putting its site-packages on the path (they could shadow the engine's own), and
lets the engine's packages be imported through a fixed neutral directory, so that no path of the building machine is
traced into an artifact.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import signal
import sys
from pathlib import Path


def _adopt(name: str, directory: Path) -> None:
    """Make the package in `directory` importable as `name`."""
    if importlib.util.find_spec(name) is not None:
        # the engine's environment has a copy of its own; this process must be of one version
        sys.modules.pop(name, None)
    spec = importlib.util.spec_from_file_location(
        name, directory / "__init__.py", submodule_search_locations=[str(directory)]
    )
    if spec is None or spec.loader is None:
        raise SystemExit(f"cannot import {name} from {directory}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _neutral_path(links: Path) -> None:
    """Replace every site-packages on sys.path by a link to it under `links`."""
    links.mkdir()
    found = [i for i, entry in enumerate(sys.path) if entry.endswith(("site-packages", "dist-packages"))]
    for number, index in enumerate(found):
        link = links / str(number)
        link.symlink_to(sys.path[index])
        sys.path[index] = str(link)


def _end_with_parent() -> None:
    """Have the kernel kill this process when the one that started it is gone, however that ended."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def main() -> int:
    gc.disable()  # imports make no garbage; a fifth of their time goes into looking for it (`worker.perform`)
    _end_with_parent()
    job, descriptor = Path(sys.argv[1]), int(sys.argv[2])
    here = Path(__file__).resolve().parent
    _neutral_path(job.parent / "packages")
    _adopt("model_cache", here.parent.parent / "model_cache")
    _adopt("hatch_model_cache", here.parent)
    from hatch_model_cache.compile import worker

    return worker.main(job, descriptor)


if __name__ == "__main__":
    sys.exit(main())
