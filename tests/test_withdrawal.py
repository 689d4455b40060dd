"""What is deployed is judged again when a key is revoked or the policy becomes stricter."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shown
from factories import (
    ENTRY_ONE,
    ENTRY_TWO,
    NAME,
    expected_files,
    files_of,
    folder_in_memory,
    install,
    make_engine,
    make_host,
    make_wheel,
    run,
)
from hatch_model_cache.packing.signing import generate, load_key, sign_wheel
from model_cache import plugin
from model_cache.cli import main
from model_cache.engine import startup
from model_cache.origin import ed25519, keyring
from model_cache.store import state
from model_cache.store.root import Root
from model_cache.store.state import State
from test_deploy import STEPS, end_this_process_at_call, leftovers
from test_recovery import killed
from test_trust import BEFORE, LATER

PYTHON = ".".join(map(str, sys.version_info[:3]))
HERE = {"engine.python": PYTHON, "engine.platform": f"linux_{os.uname().machine}"}
OTHER = {ENTRY_ONE: {"rank_0_0/model": b"N."}, ENTRY_TWO: {"rank_0_0/model": b"N."}}
"""Plain data, which `require` looks at as a pickle: an empty one."""
CONTENTS = {ENTRY_ONE: {"rank_0_0/model": b"K\x01."}, ENTRY_TWO: {"rank_0_0/model": b"K\x02."}}


class Fleet:
    """A host with a cache root, two signers, and a wheel that the first of them has signed."""

    def __init__(self, folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
        self.folder, self.root, self.monkeypatch, self.caplog = folder, root, monkeypatch, caplog
        self.path = [*sys.path]
        self.engine = make_engine(folder / "engine")
        self.private, self.public, self.key = generate(folder / "ci")
        self.other_private, self.other_public, self.other_key = generate(folder / "second")
        self.trusted = folder / "config/model-cache/trusted.d"
        self.trusted.mkdir(parents=True)

    def install(
        self, version: str = "1.0.0", key: Path | None = None, contents: Any = CONTENTS, **signing: Any
    ) -> Path:
        wheel = make_wheel(self.folder / version, contents, version=version, changes=HERE)
        if key:
            sign_wheel(wheel, load_key(str(key)), **signing)
        site = install(wheel, self.folder / f"site-{version}")
        self.use(site)
        return site

    def use(self, *sites: Path) -> None:
        self.monkeypatch.setattr(sys, "path", [*map(str, sites), str(self.engine), *self.path])

    def trust(self, *keys: Path) -> None:
        for key in keys:
            (self.trusted / key.name).write_text(key.read_text())

    def revoke(self, *keys: str) -> None:
        (self.trusted / "revoked").write_text("".join(f"{key}\n" for key in keys))

    def start(self) -> list[str]:
        """What the plug-in says when an engine starts."""
        self.caplog.set_level(logging.DEBUG, "vllm.model_cache")
        self.caplog.clear()
        plugin.register()
        return [record.getMessage().removeprefix("model-cache: ") for record in self.caplog.records]

    @property
    def state(self) -> State:
        with Root.open(str(self.root)) as root:
            return state.require(root, NAME)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Fleet]:
    for name in ("MODEL_CACHE_TRUST", "MODEL_CACHE_POLICY", "MODEL_CACHE_DISABLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MODEL_CACHE_ASSUME_TARGET", "h100-sxm5-80gb")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(keyring, "SYSTEM", str(tmp_path / "etc/trusted.d"))
    with folder_in_memory(tmp_path) as folder:
        monkeypatch.setenv("VLLM_CACHE_ROOT", str(folder / "root"))
        yield Fleet(tmp_path, folder / "root", monkeypatch, caplog)


@pytest.mark.parametrize("installed", [True, False])
def test_a_revoked_signer_s_entries_are_out_of_the_way_at_the_next_start_and_come_back(
    fleet: Fleet, installed: bool
) -> None:
    fleet.trust(fleet.public, fleet.other_public)
    site = fleet.install(key=fleet.private)
    assert "deployed" in fleet.start()[0]
    (fleet.root / ENTRY_ONE / "inductor_cache").mkdir()
    (fleet.root / ENTRY_ONE / "inductor_cache/x").write_bytes(b"added")
    if not installed:
        fleet.use()
    assert fleet.start() == []
    fleet.revoke(fleet.key)
    said = fleet.start()
    assert files_of(fleet.root) == {f"{ENTRY_ONE}/inductor_cache/x": b"added"}
    where = f"{fleet.root}/.model-cache/kept/{NAME}/{fleet.state.manifest_sha256}"
    line = (
        f"withdrawn from {fleet.root}: {NAME} 1.0.0: is signed by {fleet.key[:16]}, a key that is revoked here; what "
        f"was deployed is in {where}; files that are not ours stay: {ENTRY_ONE}/inductor_cache/x"
    )
    assert said[-1] == line
    [in_the_guide] = shown.logged("trust-and-faults.md")
    here = {
        "/cache": str(fleet.root),
        "459a01849b0fa6ed": fleet.key[:16],
        "3306237b…": where[-64:],
        "model-cache-…": NAME,
    }
    for there, name in here.items():
        in_the_guide = in_the_guide.replace(there, name)
    assert line.startswith(in_the_guide)
    assert len(said) == (2 if installed else 1)
    blobs = {path.read_bytes() for path in Path(where).rglob("blobs/*/*")}
    assert blobs == {data for files in CONTENTS.values() for data in files.values()}
    assert fleet.state.phase == "withdrawn"
    # Every start says so, until somebody has decided.
    assert line.partition("; files that")[0] in fleet.start()[-1]
    assert main(["status", "--root", str(fleet.root)]) == 0
    (fleet.trusted / "revoked").unlink()
    if not installed:
        assert fleet.start() == [f"{NAME} 1.0.0: brought it back"]
    else:
        assert "deployed" in fleet.start()[0]
        fleet.use(site)
    assert files_of(fleet.root) == {**expected_files(CONTENTS), f"{ENTRY_ONE}/inductor_cache/x": b"added"}
    assert leftovers(fleet.root) == []
    assert fleet.start() == []


def test_what_was_withdrawn_is_said_again_without_another_look(fleet: Fleet) -> None:
    fleet.trust(fleet.public, fleet.other_public)
    fleet.install(key=fleet.private)
    fleet.start()
    fleet.use()
    fleet.revoke(fleet.key)
    said = fleet.start()
    fleet.monkeypatch.setattr(startup, "deploy_installed", None)
    assert fleet.start() == said


@pytest.mark.parametrize("signed", ["not signed", "signed by an unknown key"])
@pytest.mark.parametrize("how", ["a key is trusted", "the policy says so"])
def test_what_was_deployed_before_signatures_were_required_does_not_stay(fleet: Fleet, signed: str, how: str) -> None:
    fleet.install(key=fleet.private if "by" in signed else None)
    fleet.start()
    assert files_of(fleet.root) == expected_files(CONTENTS)
    if how == "a key is trusted":
        fleet.trust(fleet.other_public)
    else:
        fleet.monkeypatch.setenv("MODEL_CACHE_POLICY", "require")
    refused, withdrawn = fleet.start()
    assert "refused, its origin is unknown" in refused
    assert f"{NAME} 1.0.0: {signed}" in withdrawn
    assert "this host requires a signature by a trusted key" in withdrawn
    assert files_of(fleet.root) == {}
    fleet.monkeypatch.setenv("MODEL_CACHE_POLICY", "off")
    fleet.start()
    assert files_of(fleet.root) == expected_files(CONTENTS)


def test_under_prefer_only_a_revoked_signer_is_withdrawn(fleet: Fleet) -> None:
    fleet.monkeypatch.setenv("MODEL_CACHE_POLICY", "prefer")
    fleet.install(key=fleet.private)
    fleet.start()
    fleet.trust(fleet.other_public)
    fleet.start()
    assert files_of(fleet.root) == expected_files(CONTENTS)
    fleet.revoke(fleet.key)
    fleet.start()
    assert files_of(fleet.root) == {}


@pytest.mark.parametrize("what", ["the signature expired", "the key expired", "no cryptography", "keys unreadable"])
def test_what_cannot_be_asked_and_what_is_only_late_takes_nothing_away(fleet: Fleet, what: str) -> None:
    """An expiry limits when a wheel may be deployed. A cold start of a whole fleet at midnight is no security."""
    fleet.trust(fleet.public, fleet.other_public)
    fleet.install(key=fleet.private, **({"expires": LATER} if what == "the signature expired" else {}))
    fleet.start()
    if what == "the signature expired":
        fleet.monkeypatch.setattr("model_cache.origin.trust.time.time", lambda: 4e10)
    if what == "the key expired":
        key = fleet.trusted / fleet.public.name
        key.write_text(f"# expires: {BEFORE}\n{key.read_text()}")
    if what == "no cryptography":
        fleet.monkeypatch.setattr(ed25519, "available", lambda: False)
    if what == "keys unreadable":
        fleet.trusted.chmod(0o777)
    (fleet.trusted / "x.pub").write_text(fleet.other_public.read_text())  # so that it looks closer
    said = fleet.start()
    assert files_of(fleet.root) == expected_files(CONTENTS)
    assert said, "but it is told"
    assert not any("withdrawn" in line for line in said)
    fleet.use()
    assert not any("withdrawn" in line for line in fleet.start())
    assert files_of(fleet.root) == expected_files(CONTENTS)
    fleet.trusted.chmod(0o755)


def test_of_a_half_deployed_version_whose_signer_is_revoked_the_one_before_comes_back(fleet: Fleet) -> None:
    fleet.trust(fleet.public, fleet.other_public)
    fleet.install(key=fleet.private)
    fleet.start()
    site = fleet.install("2.0.0", fleet.other_private, OTHER)
    killed(lambda: run(site, fleet.root, make_host(python=PYTHON)))
    fleet.revoke(fleet.other_key)
    said = fleet.start()
    assert said[-1].startswith(
        f"{NAME} 1.0.0: brought it back, since 2.0.0 is half deployed: {NAME} 2.0.0: is signed by"
    )
    assert files_of(fleet.root) == expected_files(CONTENTS)


def test_a_trusted_version_stays_when_an_untrusted_one_is_installed(fleet: Fleet) -> None:
    fleet.trust(fleet.public)
    fleet.install(key=fleet.private)
    fleet.start()
    fleet.install("2.0.0", None, OTHER)
    (line,) = fleet.start()
    assert f"{NAME} 2.0.0: refused, its origin is unknown: not signed" in line
    assert files_of(fleet.root) == expected_files(CONTENTS)
    assert fleet.state.phase == "deployed"


def test_a_withdrawn_version_is_not_rolled_back_to_and_the_one_before_can_be(fleet: Fleet) -> None:
    fleet.trust(fleet.public, fleet.other_public)
    fleet.install(key=fleet.private)
    fleet.start()
    fleet.install("2.0.0", fleet.other_private, OTHER)
    fleet.start()
    fleet.revoke(fleet.other_key)
    fleet.start()
    assert files_of(fleet.root) == {}
    assert main(["rollback", NAME]) == 0
    assert files_of(fleet.root) == expected_files(CONTENTS)
    assert main(["rollback", NAME]) == 5
    assert files_of(fleet.root) == expected_files(CONTENTS)


def test_what_cannot_be_kept_is_taken_away_all_the_same(fleet: Fleet) -> None:
    fleet.trust(fleet.public, fleet.other_public)
    fleet.install(key=fleet.private)
    fleet.start()
    fleet.revoke(fleet.key)
    fleet.monkeypatch.setattr("model_cache.store.kept.keep", lambda *_: False)
    assert fleet.start()[-1].endswith("what was deployed could not be kept")
    assert files_of(fleet.root) == {}


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount")
def test_in_a_root_that_cannot_be_written_to_it_is_an_alarm(fleet: Fleet) -> None:
    fleet.trust(fleet.public, fleet.other_public)
    fleet.root.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(fleet.root)], check=False).returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        fleet.install(key=fleet.private)
        fleet.start()
        subprocess.run(["mount", "-o", "remount,ro", str(fleet.root)], check=True)
        fleet.revoke(fleet.key)
        *_, line = fleet.start()
        assert "a key that is revoked here" in line
        assert "cannot be taken out of the engine's way" in line
        assert "the file system is read-only; give another place" in line
    finally:
        subprocess.run(["umount", str(fleet.root)], check=True)


def test_killed_at_any_call_of_a_withdrawal_nothing_of_it_is_left_after_the_next_start(fleet: Fleet) -> None:
    fleet.trust(fleet.public, fleet.other_public)
    site = fleet.install(key=fleet.private)
    (fleet.folder / "revoked").write_text(f"{fleet.key}\n")
    for end_at in range(1, 200, STEPS.get("kill", 1)):
        fleet.use(site)
        (fleet.trusted / "revoked").unlink(missing_ok=True)
        fleet.start()
        assert files_of(fleet.root) == expected_files(CONTENTS)
        fleet.use()
        fleet.revoke(fleet.key)
        pid = os.fork()
        if pid == 0:
            try:
                end_this_process_at_call(end_at)
                plugin.register()
                os._exit(0)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        fleet.start()
        assert files_of(fleet.root) == {}, end_at
        if code == 0:
            assert end_at > 10
            return
        assert code == 9
    pytest.fail("never reached the end")


@pytest.mark.parametrize("dry_run", [True, False])
def test_gc_withdraws_without_an_engine_start(fleet: Fleet, dry_run: bool, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.trust(fleet.public, fleet.other_public)
    fleet.install(key=fleet.private)
    fleet.start()
    assert main(["trust", "revoke", fleet.key]) == 0
    assert "`model-cache gc`" in capsys.readouterr().out
    assert main(["gc", "--json", *(["--dry-run"] if dry_run else [])]) == 0
    [row] = json.loads(capsys.readouterr().out)["wheels"]
    assert row["reason"] == f"not trusted: {NAME} 1.0.0: is signed by {fleet.key[:16]}, a key that is revoked here"
    assert row["action"] == "withdrawn"
    assert row["removed"] == [ENTRY_ONE, ENTRY_TWO]
    assert files_of(fleet.root) == (expected_files(CONTENTS) if dry_run else {})
    if not dry_run:
        assert row["kept"].startswith(f".model-cache/kept/{NAME}/")
        assert main(["gc"]) == 0
        assert "nothing to remove" in capsys.readouterr().out


def test_without_a_wheel_and_without_a_state_a_start_does_nothing(fleet: Fleet) -> None:
    fleet.use()
    fleet.monkeypatch.setattr(startup, "deploy_installed", None)
    assert fleet.start() == []
    (fleet.root / ".model-cache/lookups").mkdir(parents=True)
    assert fleet.start() == []
    fleet.monkeypatch.delenv("VLLM_CACHE_ROOT")
    fleet.monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    fleet.monkeypatch.setenv("HOME", "/")
    assert fleet.start() == []
