"""verify + deploy of a large wheel against `sha256sum` and `cp` of the same tree, run one after the other. Prints JSON.

    python benchmarks/deploy_throughput.py [--gib 2] [--files 4000] [--rounds 5] [--folder DIR]

ratio: seconds of sha256sum and cp over seconds of verify + deploy, medians (limit 0.8: at most a quarter slower). Both
sides find the tree in the page cache and end with everything on the disk (`sync`); peak memory is that of the deploying
process, whose limit is 64 MiB. Needs about three times the size on the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import spread

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "hatch_plugin")]

PER_ENTRY = 50
LIMIT = 0.8
MEMORY_LIMIT = 64 * 1024 * 1024


def make_site(folder: Path, size: int, files: int) -> Path:
    """An installed wheel with that many bytes in that many files of different sizes."""
    from hashlib import sha256

    from factories import NAME, VERSION, dump, make_document, members
    from model_cache.wheel.names import data_package

    package = data_package(NAME)
    entries: dict[str, dict[str, bytes]] = {
        f"torch_compile_cache/torch_aot_compile/{entry:064x}": {
            f"rank_{file}_0/model": b"" for file in range(min(PER_ENTRY, files - entry * PER_ENTRY))
        }
        for entry in range(-(-files // PER_ENTRY))
    }
    # The document first with a byte of each file, then the real sizes: the contents never are in memory at once.
    document = make_document(entries)
    block = os.urandom(1024 * 1024)
    number = 0
    for entry in document["entries"]:
        for file in entry["files"]:
            length = size // files + (number % 101 - 50) * (size // files // 120)
            data = number.to_bytes(8, "big") + (block * (length // len(block) + 1))[: length - 8]
            digest = sha256(data).hexdigest()
            path = folder / package / "blobs" / digest[:2] / digest
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            file.update(sha256=digest, size=length)
            number += 1
    for name, data in members(document, {}).items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    (folder / package / "manifest.json").write_bytes(dump(document))
    assert (folder / f"{package}-{VERSION}.dist-info").is_dir()
    return folder / package / "blobs"


def deploy(site: str, root: str) -> None:
    """What is measured; runs in a process of its own, which prints its seconds and its peak memory."""
    from factories import NAME, make_host
    from model_cache.store.deploy import deploy
    from model_cache.wheel.discovery import find
    from model_cache.wheel.payload import InstalledPayload

    start = time.perf_counter()
    with InstalledPayload(find(NAME, [site])[0]) as payload:
        outcome = deploy(payload, root, make_host())
    os.sync()
    seconds = time.perf_counter() - start
    assert all(entry.action == "deployed" for entry in outcome.entries)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak_rss_bytes": peak, "bytes": outcome.bytes_written}))


def shell(command: str, folder: Path) -> float:
    start = time.perf_counter()
    subprocess.run(["/bin/sh", "-c", command], cwd=folder, check=True)
    return time.perf_counter() - start


def measure(folder: Path, size: int, files: int, rounds: int) -> dict[str, Any]:
    tree = make_site(folder / "site", size, files)
    found = [one_round(folder, tree) for _ in range(rounds)]
    seconds = {what: spread.of([one[what] for one in found]) for what in ("sha256sum", "cp", "deploy")}
    shells = statistics.median(one["sha256sum"] + one["cp"] for one in found)
    return {
        "rounds": rounds,
        "bytes": max(one["bytes"] for one in found),
        "files": files,
        "seconds": seconds,
        "ratio": round(shells / seconds["deploy"]["median"], 2),
        "limit": LIMIT,
        "peak_rss_bytes": max(one["peak_rss_bytes"] for one in found),
        "memory_limit_bytes": MEMORY_LIMIT,
    }


def one_round(folder: Path, tree: Path) -> dict[str, float]:
    """Seconds of each, and what the deploying process tells of itself."""
    os.sync()
    # Read once, so that whoever comes first does not pay for the disk.
    shell(f"cat {tree}/*/* > /dev/null", folder)
    sha = shell(f"find {tree} -type f -print0 | xargs -0 sha256sum > sums", folder)
    copy = shell(f"cp -r {tree} copy && sync", folder)
    shutil.rmtree(folder / "copy")
    os.sync()
    command = [sys.executable, __file__, "--deploy", str(folder / "site"), str(folder / "root")]
    ours = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    shutil.rmtree(folder / "root")
    return {"sha256sum": sha, "cp": copy, "deploy": ours["seconds"], **ours}


def table(found: dict[str, Any]) -> list[str]:
    """The section of the page."""
    labels = {
        "sha256sum": "`sha256sum`",
        "cp": "`cp`, `sync`",
        "deploy": "`model-cache`, which hashes before, while and after copying",
    }
    memory = f"{found['peak_rss_bytes'] / 2**20:.0f} MiB (at most {found['memory_limit_bytes'] >> 20})"
    return [
        f"## Verify and deploy {found['bytes'] / 2**30:.1f} GiB in {found['files']:,} files",
        "",
        "Against `sha256sum`, then `cp`, of the same tree in the page cache; each ends with everything on the disk.",
        "",
        f"| median of {found['rounds']} (spread) | s |",
        "|---|---|",
        *(f"| {label} | {spread.text(found['seconds'][what])} |" for what, label in labels.items()),
        "",
        f"The first two over the third: {found['ratio']:.2f} (at least {found['limit']}). Memory: {memory}.",
        "`sha256sum` takes one core, `model-cache` up to four, and Python hashes with the CPU's own instructions.",
        "",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--files", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where to work (default: a new temporary directory)")
    parser.add_argument("--deploy", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.deploy:
        deploy(*options.deploy)
        return 0
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        Path(folder).chmod(0o755)
        print(json.dumps(measure(Path(folder), int(options.gib * 2**30), options.files, options.rounds), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
