"""Where a wheel is from: keys, policies, and the one decision that every way into the cache root takes."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from factories import (
    CONTENTS,
    ENTRY_ONE,
    NAME,
    expected_files,
    files_of,
    install,
    make_host,
    make_wheel,
    run,
)
from hatch_model_cache.packing.signing import generate, load_key, sign_wheel
from model_cache import cli
from model_cache.engine import startup
from model_cache.engine.stamp import identity, manifest_lines
from model_cache.errors import DamagedError, NotTrustedError, UsageError
from model_cache.origin import keyring, trust
from model_cache.origin.keyring import Keyring, load, load_files
from model_cache.origin.signature import parse, to_bytes
from model_cache.origin.trust import Origin, Trust
from model_cache.wheel import manifest
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.discovery import find
from model_cache.wheel.names import data_package
from model_cache.wheel.verify import read_manifest, verify

PACKAGE = data_package(NAME)
PICKLED = {ENTRY_ONE: {"rank_0_0/model": pickle.dumps([b"the model"])}}
LATER, BEFORE = "2999-01-31T00:00:00Z", "2001-01-31T00:00:00Z"


@pytest.fixture(autouse=True)
def empty_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that trusts nobody yet."""
    for name in ("MODEL_CACHE_TRUST", "MODEL_CACHE_POLICY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(keyring, "SYSTEM", str(tmp_path / "etc/trusted.d"))


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return make_wheel(tmp_path / "dist", PICKLED)


def make_key(tmp_path: Path, name: str = "ci", **options: Any) -> tuple[Path, Path, str]:
    """(private, public, id)."""
    return generate(tmp_path / name, **options)


def signed(wheel: Path, private: Path, **options: Any) -> Path:
    sign_wheel(wheel, load_key(str(private)), **options)
    return wheel


def trusted_by(tmp_path: Path, public: Path, *, text: str | None = None) -> Path:
    """Make this host trust a key, in the user's directory."""
    folder = tmp_path / "config/model-cache/trusted.d"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / public.name).write_text(text or public.read_text())
    return folder


def judged(wheel: Path, policy: Trust | None = None) -> Origin:
    with WheelPayload(str(wheel)) as payload:
        return verify(payload, trust=policy).origin


def refusal(wheel: Path, policy: Trust | None = None) -> str:
    with pytest.raises(NotTrustedError) as caught:
        judged(wheel, policy)
    assert caught.value.exit_code == 7
    return str(caught.value)


def forge(tmp_path: Path, original: Path, **options: Any) -> Path:
    """A consistent forgery of a signed wheel: other payload, fitting manifest and RECORD, the old signature kept."""
    with WheelPayload(str(original)) as payload:
        signature = payload.read("manifest.sig", 10**6) if "manifest.sig" in payload.files() else None

    def keep(files: dict[str, bytes]) -> None:
        if signature:
            files[f"{PACKAGE}/manifest.sig"] = signature

    other = {ENTRY_ONE: {"rank_0_0/model": pickle.dumps([b"another model"])}}
    return make_wheel(tmp_path / "forged", other, edit=keep, **options)


# The decision


def test_nobody_is_trusted_and_nothing_required_by_default(wheel: Path, tmp_path: Path) -> None:
    assert Trust.of_this_host().policy == "prefer"
    assert judged(wheel).text == "not signed: intact, origin unknown"
    private, _, key = make_key(tmp_path)
    assert judged(signed(wheel, private)).text == f"signed by an unknown key ({key[:16]}): intact, origin unknown"


def test_a_trusted_key_makes_signatures_required(wheel: Path, tmp_path: Path) -> None:
    private, public, key = make_key(tmp_path, name="ci")
    trusted_by(tmp_path, public)
    assert Trust.of_this_host().policy == "require"
    assert refusal(wheel).endswith(
        "refused, its origin is unknown: not signed; this host requires a signature by a trusted key "
        f"(this host trusts: {key[:16]} (ci))"
    )
    assert judged(signed(wheel, private)) == Origin("trusted", key, f"{key[:16]} (ci)")


@pytest.mark.parametrize("policy", ["require", "prefer", "off"])
def test_a_consistent_forgery(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    private, public, _ = make_key(tmp_path)
    monkeypatch.setenv("MODEL_CACHE_POLICY", policy)
    unsigned = forge(tmp_path / "a", wheel)
    with_old_signature = forge(tmp_path / "b", signed(wheel, private))
    if policy != "require":
        assert judged(unsigned).text == "not signed: intact, origin unknown"
        assert not judged(with_old_signature).trusted
    trusted_by(tmp_path, public)
    if policy == "require":
        assert "not signed" in refusal(unsigned)
    if policy != "off":
        # A wrong signature is never better than none.
        assert "is wrong: the manifest is not the one that was signed" in refusal(with_old_signature)
    else:
        assert judged(with_old_signature).status == "off"


def test_the_signature_is_checked_before_the_manifest_is_parsed(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public, _ = make_key(tmp_path)
    signed(wheel, private)
    trusted_by(tmp_path, public)
    monkeypatch.setattr(manifest, "parse", lambda *_: pytest.fail("parsed before it was trusted"))
    assert "is wrong" in refusal(forge(tmp_path, wheel))


@pytest.mark.parametrize("offset", [0, 100, -2])
def test_one_other_byte_of_the_manifest_is_noticed(wheel: Path, tmp_path: Path, offset: int) -> None:
    private, public, _ = make_key(tmp_path)
    signed(wheel, private)
    with WheelPayload(str(wheel)) as payload:
        data, signatures = payload.read("manifest.json", 10**6), payload.read("manifest.sig", 10**6)
        policy = Trust.of_files([str(public)])
        assert policy.judge(payload, data, signatures).trusted
        other = bytearray(data)
        other[offset] ^= 1
        with pytest.raises(NotTrustedError, match="is wrong"):
            policy.judge(payload, bytes(other), signatures)
        with pytest.raises(NotTrustedError, match="is wrong"):
            policy.judge(payload, data + b" ", signatures)


@pytest.mark.parametrize("field", ["created", "expires", "dist_info"])
def test_what_the_signer_said_cannot_be_changed(wheel: Path, tmp_path: Path, field: str) -> None:
    private, public, _ = make_key(tmp_path)
    signed(wheel, private, created=BEFORE, expires="2001-02-01T00:00:00Z")
    with WheelPayload(str(wheel)) as payload:
        data = payload.read("manifest.json", 10**6)
        [one] = parse(payload.read("manifest.sig", 10**6))
        value: Any = dict(one.dist_info, METADATA="0" * 64) if field == "dist_info" else LATER
        other = to_bytes([type(one)(**{**vars(one), field: value})])
        with pytest.raises(NotTrustedError, match="is wrong"):
            Trust.of_files([str(public)]).judge(payload, data, other)


@pytest.mark.parametrize("name", ["METADATA", "entry_points.txt", "WHEEL"])
def test_the_small_files_are_signed_too(tmp_path: Path, wheel: Path, name: str) -> None:
    """METADATA can name another package to install, entry_points.txt code to run."""
    private, public, _ = make_key(tmp_path)
    signed(wheel, private)
    with WheelPayload(str(wheel)) as payload:
        signatures = payload.read("manifest.sig", 10**6)

    def change(files: dict[str, bytes]) -> None:
        files[f"{PACKAGE}/manifest.sig"] = signatures
        files[f"{PACKAGE}-1.0.0.dist-info/{name}"] += b"\n[console_scripts]\nx = os:abort\n"

    policy = Trust.of_files([str(public)])
    changed = make_wheel(tmp_path / "changed", PICKLED, edit=change)
    assert refusal(changed, policy).endswith(f"does not cover what is there\n  - {name}")

    def add(files: dict[str, bytes]) -> None:
        files[f"{PACKAGE}/manifest.sig"] = signatures
        files[f"{PACKAGE}-1.0.0.dist-info/extra.txt"] = b""

    assert "extra.txt (added)" in refusal(make_wheel(tmp_path / "added", PICKLED, edit=add), policy)


def test_an_installed_wheel_is_judged_like_a_file(wheel: Path, tmp_path: Path) -> None:
    private, public, _ = make_key(tmp_path)
    site = install(signed(wheel, private), tmp_path / "site")
    trusted_by(tmp_path, public)
    (site / f"{PACKAGE}-1.0.0.dist-info/REQUESTED").touch()
    root = tmp_path / "root"
    assert run(site, root).changed
    assert files_of(root) == expected_files(PICKLED)
    metadata = site / f"{PACKAGE}-1.0.0.dist-info/METADATA"
    metadata.write_bytes(metadata.read_bytes() + b"Requires-Dist: evil\n")
    with pytest.raises(NotTrustedError, match="METADATA"):
        run(site, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_nothing_is_written_for_a_wheel_that_is_not_trusted(wheel: Path, tmp_path: Path) -> None:
    _, public, _ = make_key(tmp_path)
    trusted_by(tmp_path, public)
    with pytest.raises(NotTrustedError):
        run(install(wheel, tmp_path / "site"), tmp_path / "root")
    assert not (tmp_path / "root").exists()


# Rotation, expiry, revocation


def test_a_wheel_with_two_signatures_serves_old_and_new_hosts(wheel: Path, tmp_path: Path) -> None:
    old, new = make_key(tmp_path, "old"), make_key(tmp_path, "new")
    signed(signed(wheel, old[0]), new[0])
    for _, public, key in (old, new):
        assert judged(wheel, Trust.of_files([str(public)])).key == key
    folder = trusted_by(tmp_path, new[1])
    (folder / "revoked").write_text(f"{old[2]}  # lost on a train\n")
    assert judged(wheel).key == new[2]


@pytest.mark.parametrize("policy", ["require", "prefer"])
def test_a_revoked_key_is_refused_under_every_policy(
    wheel: Path, tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public, key = make_key(tmp_path)
    signed(wheel, private)
    folder = trusted_by(tmp_path, public)
    (folder / "revoked").write_text(f"# these\n\n{key}\n")
    monkeypatch.setenv("MODEL_CACHE_POLICY", policy)
    assert "a key that is revoked here" in refusal(wheel)
    (folder / public.name).unlink()  # also when nobody knows the key
    assert "a key that is revoked here" in refusal(wheel)
    # A revocation in one place counts for a key in another.
    monkeypatch.setenv("MODEL_CACHE_TRUST", str(public))
    assert "a key that is revoked here" in refusal(wheel)


def test_no_other_signature_hides_a_revoked_one(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_CACHE_POLICY", "prefer")
    lost, unknown, old = (make_key(tmp_path, name) for name in ("lost", "unknown", "old"))
    for private, _, _ in (lost, unknown, old):
        signed(wheel, private)
    folder = trusted_by(tmp_path, old[1], text=f"# expires: {BEFORE}\n{old[1].read_text()}")
    assert judged(wheel).status == "expired"
    (folder / "revoked").write_text(lost[2])
    assert "a key that is revoked here" in refusal(wheel)


def test_an_expired_key_counts_no_more(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public, key = make_key(tmp_path)
    signed(wheel, private)
    text = public.read_text()
    for expires, good in ((LATER, True), (BEFORE, False)):
        trusted_by(tmp_path, public, text=text.replace("-----BEGIN", f"# expires: {expires}\n-----BEGIN", 1))
        assert Trust.of_this_host().policy == "require"  # also when the only key is over
        if good:
            assert judged(wheel).trusted
        else:
            assert f"a key that expired on {BEFORE}" in refusal(wheel)
    monkeypatch.setenv("MODEL_CACHE_POLICY", "prefer")
    assert judged(wheel).text == (f"signed by {key[:16]} (ci), a key that expired on {BEFORE}: intact, origin unknown")


def test_an_expired_signature_counts_no_more(wheel: Path, tmp_path: Path) -> None:
    private, public, _ = make_key(tmp_path)
    signed(wheel, private, expires=BEFORE)
    policy = Trust.of_files([str(public)])
    assert f"a signature that expired on {BEFORE}" in refusal(wheel, policy)
    with WheelPayload(str(wheel)) as payload:
        data, signatures = payload.read("manifest.json", 10**6), payload.read("manifest.sig", 10**6)
        limit = keyring.timestamp(BEFORE)
        assert policy.judge(payload, data, signatures, now=limit - 1).trusted
        with pytest.raises(NotTrustedError):
            policy.judge(payload, data, signatures, now=limit)


def test_of_two_files_of_one_key_the_stricter_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, public, key = make_key(tmp_path)
    text = public.read_text()
    folder = tmp_path / "keys"
    folder.mkdir()
    for name, expires in (("a", LATER), ("b", BEFORE), ("c", "")):
        (folder / f"{name}.pub").write_text((f"# expires: {expires}\n" if expires else "") + text)
    assert load_files([str(folder)]).keys[key].expires == BEFORE


# Places


def test_keys_are_found_in_all_three_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {name: make_key(tmp_path, name) for name in ("system", "user", "file", "folder")}
    for name, place in (("system", "etc/trusted.d"), ("user", "config/model-cache/trusted.d"), ("folder", "more")):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / f"{name}.pub").write_text(keys[name][1].read_text())
        (tmp_path / place / "README").write_text("no key")
    monkeypatch.setenv("MODEL_CACHE_TRUST", f"{keys['file'][1]}:{tmp_path / 'more'}")
    assert {key.name for key in load().keys.values()} == {"system", "user", "file", "folder"}


@pytest.mark.parametrize(
    ("value", "why"), [("{}/none.pub", "no such file"), ("keys", "is not absolute"), ("{}/empty", "no file ends in")]
)
def test_a_named_place_without_a_key_is_an_error_not_a_blank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheel: Path, value: str, why: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("MODEL_CACHE_TRUST", value.format(tmp_path))
    assert why in refusal(wheel)
    monkeypatch.setenv("MODEL_CACHE_POLICY", "off")
    assert judged(wheel)


X25519 = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VuAyEA" + "A" * 43 + "=\n-----END PUBLIC KEY-----\n"


def chown(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, -1)


@pytest.mark.parametrize(
    ("where", "spoil", "why"),
    [
        ("key", lambda p: p.chmod(0o666), "mode 0666"),
        ("key", lambda p: p.chmod(0o664), "mode 0664"),
        ("key", chown, "belongs to uid 12345"),
        ("folder", lambda p: p.chmod(0o777), "mode 0777"),
        ("folder", lambda p: p.chmod(0o1777), "mode 1777"),
        ("folder", chown, "belongs to uid 12345"),
        ("above", lambda p: p.chmod(0o777), "mode 0777"),
        ("above", chown, "belongs to uid 12345"),
        ("revoked", lambda p: p.chmod(0o666), "mode 0666"),
    ],
)
def test_a_place_that_others_could_write_to_is_refused(
    tmp_path: Path, wheel: Path, where: str, spoil: Callable[[Path], None], why: str
) -> None:
    private, public, _ = make_key(tmp_path)
    folder = trusted_by(tmp_path, public)
    (folder / "revoked").write_text("")
    assert judged(signed(wheel, private)).trusted
    spoil({"key": folder / public.name, "folder": folder, "above": folder.parent, "revoked": folder / "revoked"}[where])
    text = refusal(wheel)
    assert why in text
    assert len(text.splitlines()) == 1


def test_a_link_is_judged_where_it_leads(tmp_path: Path, wheel: Path) -> None:
    private, public, _ = make_key(tmp_path)
    folder = trusted_by(tmp_path, public)
    real = tmp_path / "real"
    real.mkdir()
    (folder / public.name).rename(real / public.name)
    (folder / public.name).symlink_to(real / public.name)
    assert judged(signed(wheel, private)).trusted
    real.chmod(0o777)
    assert "mode 0777" in refusal(wheel)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not one Ed25519 public key"),
        ("{key}{key}", "not one Ed25519 public key"),
        ("# expires: soon\n{key}", "not a time"),
        ("# expire: 2027-01-31T00:00:00Z\n{key}", "is not `# expires:"),
        ("# Expires 2027-01-31T00:00:00Z\n{key}", "is not `# expires:"),
        (
            "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VuAyEA" + "A" * 43 + "=\n-----END PUBLIC KEY-----\n",
            "not one Ed25519",
        ),
        ("x" * 70_000, "larger than"),
        ("\udcff", "no text file"),
    ],
)
def test_a_key_file_that_is_none_is_an_error(tmp_path: Path, wheel: Path, text: str, why: str) -> None:
    _, public, _ = make_key(tmp_path)
    folder = trusted_by(tmp_path, public)
    data = text.format(key=public.read_text()) if "{key}" in text else text
    (folder / public.name).write_bytes(data.encode("utf-8", "surrogateescape"))
    assert why in refusal(wheel)


def test_a_revocation_that_cannot_be_read_is_an_error(tmp_path: Path, wheel: Path) -> None:
    _, public, key = make_key(tmp_path)
    (trusted_by(tmp_path, public) / "revoked").write_text(f"{key[:16]}\n")
    assert "is no key id" in refusal(wheel)


def test_a_wheel_cannot_bring_its_own_key(wheel: Path, tmp_path: Path) -> None:
    text = make_key(tmp_path)[1].read_bytes()

    def bring(files: dict[str, bytes]) -> None:
        files[f"{PACKAGE}/trusted.pub"] = text

    with pytest.raises(DamagedError, match=r"trusted\.pub is not listed"):
        judged(make_wheel(tmp_path / "with", PICKLED, edit=bring))


def test_no_other_file_may_lie_beside_the_manifest(tmp_path: Path) -> None:
    for name in ("manifest.sig2", "Manifest.sig", "manifest.sig/x", "blobs/manifest.sig"):

        def add(files: dict[str, bytes], name: str = name) -> None:
            files[f"{PACKAGE}/{name}"] = b"{}"

        with pytest.raises(DamagedError):
            judged(make_wheel(tmp_path / name.replace("/", "-"), PICKLED, edit=add))


# Policies


def test_an_unknown_policy_is_an_error(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_CACHE_POLICY", "maybe")
    with pytest.raises(UsageError, match="require, prefer, off"):
        judged(wheel)


def test_require_without_any_key_refuses_everything(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_CACHE_POLICY", "require")
    assert "this host trusts: none" in refusal(wheel)
    private, _, _ = make_key(tmp_path)
    assert "signed by an unknown key" in refusal(signed(wheel, private))


def test_a_malformed_signature_file_is_damage_under_every_policy(tmp_path: Path) -> None:
    def add(files: dict[str, bytes]) -> None:
        files[f"{PACKAGE}/manifest.sig"] = b"{}"

    wheel = make_wheel(tmp_path / "dist", PICKLED, edit=add)
    for policy in trust.POLICIES:
        with pytest.raises(DamagedError, match="not a valid signature file"):
            judged(wheel, Trust(policy, Keyring()))


def test_without_cryptography_a_known_key_cannot_be_checked(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public, key = make_key(tmp_path)
    signed(wheel, private)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    assert judged(wheel).status == "unknown-key"  # nobody is trusted: nothing is needed
    trusted_by(tmp_path, public)
    assert "pip install 'hatch-model-cache[sign]'" in refusal(wheel)
    monkeypatch.setenv("MODEL_CACHE_POLICY", "prefer")
    assert judged(wheel).text == (
        f"signed by {key[:16]} (ci), not checked (the Python package cryptography is missing): intact, origin unknown"
    )


def test_inspect_shows_what_deploy_would_refuse(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, public, _ = make_key(tmp_path)
    trusted_by(tmp_path, public)
    assert cli.main(["inspect", str(wheel)]) == 0
    assert "  origin     not signed: origin unknown\n" in capsys.readouterr().out
    assert cli.main(["verify", str(wheel)]) == 7
    assert "refused, its origin is unknown: not signed" in capsys.readouterr().err


# The command line, the plug-in


def test_verify_with_exactly_these_keys(wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = make_key(tmp_path, "ours"), make_key(tmp_path, "theirs")
    trusted_by(tmp_path, theirs[1])
    signed(wheel, theirs[0])
    assert cli.main(["verify", str(wheel)]) == 0
    assert cli.main(["verify", str(wheel), "--trust", str(ours[1])]) == 7
    assert cli.main(["verify", str(wheel), "--trust", str(ours[1]), "--trust", str(theirs[1])]) == 0
    assert cli.main(["verify", str(wheel), "--trust", str(tmp_path / "none")]) == 5
    capsys.readouterr()
    assert cli.main(["verify", str(wheel), "--trust", str(ours[1]), "--json"]) == 7
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"]["kind"] == "not-trusted"
    assert answer["wheels"][0]["status"] == "not-trusted"
    unsigned = make_wheel(tmp_path / "unsigned", PICKLED)
    assert cli.main(["verify", str(unsigned), "--trust", str(ours[1])]) == 7
    err = capsys.readouterr().err
    assert "not signed; --trust requires a signature by a trusted key" in err
    assert "this host" not in err


def test_trust_is_managed_on_the_command_line(wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private, public, key = make_key(tmp_path, "ci")
    signed(wheel, private)
    old = os.umask(0o002)
    try:
        assert cli.main(["trust", "add", str(public), "--expires", LATER]) == 0
    finally:
        os.umask(old)
    capsys.readouterr()
    assert cli.main(["trust", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["policy"] == "require"
    assert [(k["key"], k["name"], k["expires"], k["status"]) for k in listed["keys"]] == [(key, "ci", LATER, "trusted")]
    assert cli.main(["verify", str(wheel)]) == 0
    assert cli.main(["trust", "revoke", key[:16]]) == 0
    assert cli.main(["verify", str(wheel)]) == 7
    assert cli.main(["trust", "remove", key[:8]]) == 0
    assert cli.main(["trust", "remove", key[:8]]) == 5
    assert cli.main(["trust", "remove", "../x"]) == 2
    assert cli.main(["verify", str(wheel)]) == 7  # still revoked
    assert cli.main(["trust", "add", str(tmp_path / "none")]) == 5
    assert cli.main(["trust", "add", str(private)]) == 2
    capsys.readouterr()
    revoked = tmp_path / "config/model-cache/trusted.d/revoked"
    for system in ([], ["--system"]):
        assert cli.main(["trust", "add", str(public), *system]) == 2
        assert f"{key} is revoked here" in (err := capsys.readouterr().err)
        assert f"take this id out of {revoked} first" in err
    revoked.unlink()
    assert cli.main(["trust", "add", str(public), "--system"]) == 0
    assert str(tmp_path / "etc/trusted.d") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("policy", "left", "said"),
    [
        ("", "prefer", "the policy falls from require to prefer: unsigned wheels are accepted"),
        ("require", "require", "the policy is require: every wheel is refused"),
    ],
)
def test_removing_the_last_key_says_what_that_means(
    policy: str,
    left: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MODEL_CACHE_POLICY", policy)
    (_, one, first), (_, two, second) = make_key(tmp_path, "one"), make_key(tmp_path, "two")
    for public in (one, two):
        trusted_by(tmp_path, public)
    assert cli.main(["trust", "remove", first, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["policy"], answer["trusted"]) == ("require", 1)
    assert cli.main(["trust", "remove", second]) == 0
    assert f"  no trusted signer is left; {said}" in capsys.readouterr().out
    trusted_by(tmp_path, two)
    assert cli.main(["trust", "remove", second, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["policy"], answer["trusted"]) == (left, 0)


def test_removing_the_last_key_of_a_named_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, public, key = make_key(tmp_path)
    folder = trusted_by(tmp_path, public)
    monkeypatch.setenv("MODEL_CACHE_TRUST", str(folder))
    assert cli.main(["trust", "remove", key]) == 0
    assert "every wheel is refused now: " in capsys.readouterr().out
    assert cli.main(["trust", "add", str(public)]) == 0


@pytest.mark.parametrize("kind", ["fifo", "device", "directory", "large"])
def test_only_a_small_regular_file_can_be_added(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "k.pub"
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "device":
        file = Path("/dev/zero")
    elif kind == "directory":
        file.mkdir()
    else:
        file.write_text("#" * 70_000)
    assert cli.main(["trust", "add", str(file)]) == 2
    err = capsys.readouterr().err
    assert "cannot be read" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("words", ["add {}", "revoke " + "a" * 64])
def test_a_place_for_keys_that_cannot_be_made(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    public = make_key(tmp_path)[1]
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert cli.main(["trust", *words.format(public).split()]) == 1
    err = capsys.readouterr().err
    assert "cannot be written" in err
    assert len(err.splitlines()) == 1


def test_deploy_tells_the_origin(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public, key = make_key(tmp_path)
    trusted_by(tmp_path, public)
    site = install(signed(wheel, private), tmp_path / "site")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr("model_cache.machine.host.read_host", lambda *_: make_host())
    assert cli.main(["deploy", "--root", str(tmp_path / "root"), "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["wheels"]
    assert row["origin"]["status"] == "trusted"
    assert cli.main(["deploy", "--root", str(tmp_path / "root")]) == 0
    assert f"signed by {key[:16]} (ci) (trusted)" in capsys.readouterr().out


def test_the_plug_in_refuses_what_is_not_trusted_with_one_line(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public, key = make_key(tmp_path)
    trusted_by(tmp_path, public)
    monkeypatch.setattr(startup, "read_host", lambda *_: make_host())
    said: list[str] = []

    def say(message: str, *, alarm: bool = False) -> None:
        said.append(message)

    root = tmp_path / "root"
    monkeypatch.syspath_prepend(str(install(wheel, tmp_path / "site")))
    startup.deploy_installed(find(NAME), str(root), "identity", say)
    [line] = said
    assert "refused, its origin is unknown: not signed" in line
    assert not root.exists()
    said.clear()
    signed(wheel, private)
    install(wheel, tmp_path / "site")
    startup.deploy_installed(find(NAME), str(root), "identity", say)
    [line] = said
    assert line.endswith(f"; signed by {key[:16]} (ci) (trusted)")
    assert files_of(root) == expected_files(PICKLED)


def test_another_key_policy_or_revocation_makes_the_plug_in_look_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {identity([])}

    def is_new() -> bool:
        before = len(seen)
        seen.add(identity([]))
        return len(seen) > before

    assert not is_new()
    _, public, key = make_key(tmp_path)
    folder = trusted_by(tmp_path, public)
    assert is_new()
    (folder / "revoked").write_text(f"{key}\n")
    assert is_new()
    monkeypatch.setenv("MODEL_CACHE_POLICY", "prefer")
    assert is_new()
    monkeypatch.setenv("MODEL_CACHE_TRUST", str(public))
    assert is_new()
    public.write_text(public.read_text() + "\n")
    assert is_new()


def test_another_signature_makes_the_plug_in_look_again(wheel: Path, tmp_path: Path) -> None:
    private, _, _ = make_key(tmp_path)
    site = install(wheel, tmp_path / "site")
    before = manifest_lines(find(NAME, [str(site)]))
    with WheelPayload(str(signed(wheel, private))) as payload:
        (site / PACKAGE / "manifest.sig").write_bytes(payload.read("manifest.sig", 10**6))
    assert manifest_lines(find(NAME, [str(site)])) != before


def test_reading_the_manifest_alone_judges_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_CACHE_POLICY", "require")
    with (
        WheelPayload(str(make_wheel(tmp_path / "dist", CONTENTS))) as payload,
        pytest.raises(NotTrustedError),
    ):
        read_manifest(payload)
