"""Feed hostile manifests, archives, signature files and catalogues to their readers, and watch what the process does.

    python tests/fuzz/run.py [--inputs 112000] [--seed N]

Each input must be read or be refused by a ModelCacheError, in bounded time. An audit hook watches for writes outside
the sandbox and for anything that is unpickled, unmarshalled, compiled or started; every archive carries a pickle that
would touch a file. Prints a table of counts; exit code 1 when anything happened, or when nothing was tried.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1]), str(HERE.parents[2] / "hatch_plugin")]

import mutate  # noqa: E402

from factories import CONTENTS, ENTRY_ONE, make_document, make_host, make_wheel, wheel_name  # noqa: E402
from fuzz_signature import KEY, fuzz_signature  # noqa: E402
from model_cache.errors import ModelCacheError  # noqa: E402
from model_cache.origin import ed25519, signature, trust  # noqa: E402
from model_cache.store import deploy  # noqa: E402
from model_cache.wheel import catalogue, manifest  # noqa: E402
from model_cache.wheel.archive import WheelPayload  # noqa: E402
from model_cache.wheel.contents import look  # noqa: E402
from model_cache.wheel.verify import verify  # noqa: E402
from test_catalogue import FULL  # noqa: E402

WARM_UP = 60
SECONDS = 5.0
"""No input may take longer."""

FORBIDDEN = {
    *("pickle.find_class", "marshal.loads", "compile", "exec"),
    *("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect"),
}
IMPORTING = {"marshal.loads", "compile", "exec"}
"""What importing a module of the standard library does, too."""

WRITES = {
    *("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink"),
    *("os.chmod", "os.truncate", "os.utime"),
}

OURS = signature.to_bytes(
    [
        signature.Signature(
            key=key,
            dist_info={"METADATA": "0" * 64, "entry_points.txt": "1" * 64, "WHEEL": "2" * 64},
            created="2026-01-31T00:00:00Z",
            expires="2036-01-31T00:00:00Z",
            value=bytes(range(64)),
        )
        for key in (KEY, "a" * 64)
    ]
)
BUNDLED = signature.to_bytes(
    [
        signature.Signature(
            key="b" * 64,
            dist_info={"METADATA": "0" * 64, "entry_points.txt": "1" * 64},
            value=b'{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json"}',
            algorithm=signature.SIGSTORE,
        )
    ]
)


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


class Watch:
    """Notes what a process does that reading a file never needs. Paths relative to a descriptor are ours."""

    def __init__(self, sandbox: Path) -> None:
        self.sandbox = f"{sandbox}/"
        self.on = False
        self.warming = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in FORBIDDEN and not (self.warming and event in IMPORTING):
            self.seen.append(f"{event} {arguments!r:.100}")
        elif event == "open" and isinstance(arguments[0], str):
            path, mode, flags = arguments
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
            if writes and path.startswith("/") and not path.startswith((self.sandbox, "/dev/null")):
                self.seen.append(f"open {path} {mode}")
            if writes and ".." in path.split("/"):
                self.seen.append(f"open {path}")
        elif event in WRITES:
            for path in (a for a in arguments if isinstance(a, str)):
                if (path.startswith("/") and not path.startswith(self.sandbox)) or ".." in path.split("/"):
                    self.seen.append(f"{event} {path}")


class Fuzzer:
    """The four readers, their seeds, and the sandbox."""

    def __init__(self, sandbox: Path, seed: int) -> None:
        self.sandbox = sandbox
        self.chance = random.Random(seed)
        self.marker = sandbox / "fired"
        self.host = make_host()
        planted = pickle.dumps(Touch(self.marker))
        contents = {**CONTENTS, ENTRY_ONE: {"rank_0_0/model": planted, "rank_1_0/model": b"x" * 300}}
        self.contents = contents
        self.document = make_document(contents)
        self.manifest = json.dumps(self.document, sort_keys=True, indent=1).encode() + b"\n"
        self.wheel = make_wheel(sandbox / "seed", contents).read_bytes()
        self.path = sandbox / "in" / wheel_name(self.document)
        self.path.parent.mkdir()
        self.slowest = 0.0
        self.watch = Watch(sandbox)
        self.trusts = [trust.Trust(policy, trust.Keyring()) for policy in ("off", "prefer", "require")]

    def manifests(self) -> bytes:
        if self.chance.random() < 0.5:
            return mutate.document(self.document, self.chance)
        return mutate.data(self.manifest, [self.manifest, OURS], self.chance)

    def archives(self) -> bytes:
        what = self.chance.randrange(4)
        if what == 0:
            return mutate.archive(self.wheel, self.chance)
        if what == 1:
            return mutate.data(self.wheel, [self.wheel, self.manifest], self.chance)
        # Consistent around a changed manifest, or around other changed members, so that what comes later is reached.
        changed = mutate.document(self.document, self.chance)

        def edit(files: dict[str, bytes]) -> None:
            if what == 2:
                files[next(name for name in files if name.endswith("manifest.json"))] = changed
            else:
                name = self.chance.choice([*files])
                files[name] = mutate.data(files[name], [*files.values()], self.chance)

        return make_wheel(self.sandbox / "seed", self.contents, edit=edit).read_bytes()

    def signatures(self) -> bytes:
        signed = self.chance.choice([OURS, BUNDLED])
        if self.chance.random() < 0.5:
            return mutate.document(json.loads(signed), self.chance)
        return mutate.data(signed, [OURS, BUNDLED, self.manifest], self.chance)

    def catalogues(self) -> bytes:
        seed = FULL.to_json_bytes()
        if self.chance.random() < 0.5:
            return mutate.document(json.loads(seed), self.chance)
        return mutate.data(seed, [seed, self.manifest], self.chance)

    def read_catalogue(self, data: bytes) -> None:
        catalogue.parse(data)

    def read_manifest(self, data: bytes) -> None:
        manifest.parse(data)

    def read_signature(self, data: bytes) -> None:
        fuzz_signature(data)
        signature.parse(data)

    def read_archive(self, data: bytes) -> None:
        self.path.write_bytes(data)
        with WheelPayload(str(self.path)) as payload:
            found = verify(payload, trust=self.trusts[1])
            list(look(payload, found.manifest))
            root = self.sandbox / "root"
            try:
                deploy.deploy(payload, str(root), self.host)
            finally:
                shutil.rmtree(root, ignore_errors=True)

    def run(self, make: Callable[[], bytes], read: Callable[[bytes], object], count: int) -> Counter[str]:
        """Feed `count` inputs; what happened, by kind."""
        counts: Counter[str] = Counter()
        for _ in range(count):
            data = make()
            start = time.perf_counter()
            self.watch.on = True
            try:
                read(data)
                counts["accepted"] += 1
            except ModelCacheError as error:
                counts["refused"] += 1
                if not error.message or "\n" in error.message:
                    raise AssertionError(f"not one line: {error.message!r}") from error
            except BaseException as error:
                self.watch.on = False
                kept = Path(tempfile.gettempdir(), "fuzz-input")
                kept.write_bytes(data)
                raise AssertionError(f"{type(error).__name__}: {error}; the input is in {kept}") from error
            finally:
                self.watch.on = False
            self.slowest = max(self.slowest, time.perf_counter() - start)
        return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=112_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        fuzzer = Fuzzer(Path(folder).resolve(), options.seed)
        fuzzer.read_archive(fuzzer.wheel)  # the seed is good
        if ed25519.available():
            ed25519.is_valid(bytes(range(32)), bytes(64), b"")  # imports cryptography
        tenth = options.inputs // 10
        parts: dict[str, tuple[Callable[[], bytes], Callable[[bytes], object], int]] = {
            "manifests": (fuzzer.manifests, fuzzer.read_manifest, 4 * tenth),
            "archives": (fuzzer.archives, fuzzer.read_archive, 3 * tenth),
            "signature files": (fuzzer.signatures, fuzzer.read_signature, 2 * tenth),
            "catalogues": (fuzzer.catalogues, fuzzer.read_catalogue, options.inputs - 9 * tenth),
        }
        fuzzer.watch.warming = True  # what is imported late is imported now
        for make, read, _ in parts.values():
            fuzzer.run(make, read, WARM_UP)
        fuzzer.watch.warming = False
        total = 0
        failed = False
        for title, (make, read, count) in parts.items():
            try:
                counts = fuzzer.run(make, read, count)
            except AssertionError as failure:
                print(f"{title}: {failure}")
                failed = True
                continue
            total += sum(counts.values())
            shown = ", ".join(f"{number:,} {what}" for what, number in sorted(counts.items()))
            print(f"{title}: {sum(counts.values()):,} inputs: {shown}, 0 crashes")
            failed = failed or not counts
        fired = fuzzer.marker.exists()
        print(f"{total:,} inputs, slowest {fuzzer.slowest:.2f} s, seed {options.seed}")
        print(f"planted pickle fired: {'YES' if fired else 'never'}; forbidden: {fuzzer.watch.seen[:5] or 'nothing'}")
        return 1 if failed or fired or fuzzer.watch.seen or total < options.inputs or fuzzer.slowest > SECONDS else 0


if __name__ == "__main__":
    sys.exit(main())
