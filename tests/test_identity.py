"""Signers whom Sigstore vouches for by a name: checked by the real `sigstore` package, without a network."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factories import CONTENTS, NAME, expected_files, files_of, install, make_host, make_wheel, run
from fakes.sigstore_services import EPOCH, ISSUER, PERSON, Services, b64, edited
from hatch_model_cache.packing.signing import generate, load_key, sign_wheel
from hatch_model_cache.packing.sigstore_bundle import attach, message
from model_cache import cli
from model_cache.errors import NotTrustedError, UsageError
from model_cache.origin import identity, keyring
from model_cache.origin.keyring import Keyring, load
from model_cache.origin.signature import SIGSTORE, parse, to_bytes
from model_cache.origin.trust import Origin, Trust
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.names import data_package
from model_cache.wheel.verify import verify

PACKAGE = data_package(NAME)
PICKLED = {entry: dict.fromkeys(files, b"N.") for entry, files in CONTENTS.items()}


@pytest.fixture(scope="module")
def services() -> Services:
    return Services()


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that trusts nobody yet and has no network."""

    def no_network(*_: object) -> NoReturn:
        raise AssertionError("asked the network")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    for name in ("MODEL_CACHE_TRUST", "MODEL_CACHE_POLICY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(keyring, "SYSTEM", str(tmp_path / "etc/trusted.d"))


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return make_wheel(tmp_path / "dist", PICKLED)


@pytest.fixture
def root(tmp_path: Path, services: Services) -> Path:
    path = tmp_path / "trusted_root.json"
    path.write_text(json.dumps(services.trusted_root()))
    return path


def signed(wheel: Path, services: Services, **options: Any) -> Path:
    attach(wheel, services.bundle(message(wheel), **options), json.dumps(services.trusted_root()).encode())
    return wheel


def trust(services: Services, who: str = PERSON, issuer: str = ISSUER, **options: Any) -> Trust:
    text = identity.file_text(who, issuer, json.dumps(services.trusted_root()), **options)
    found = identity.parse(text, "release.sigstore")
    return Trust("require", Keyring({found.id: found}))


def judged(wheel: Path, policy: Trust | None = None) -> Origin:
    with WheelPayload(str(wheel)) as payload:
        return verify(payload, trust=policy).origin


def test_the_whole_way_on_the_command_line(
    wheel: Path, root: Path, services: Services, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def done(*words: object) -> tuple[int, str, str]:
        code = cli.main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    before = wheel.read_bytes()
    code, out, _ = done("sigstore", "message", wheel, "--out", tmp_path / "message")
    assert (code, wheel.read_bytes()) == (0, before)
    (tmp_path / "bundle").write_bytes(services.bundle((tmp_path / "message").read_bytes()))
    attach = ("sigstore", "attach", wheel, "--bundle", tmp_path / "bundle", "--trusted-root", root)
    code, out, _ = done(*attach)
    assert (code, f"by {PERSON} (" in out, f"as {ISSUER} vouches" in out) == (0, True, True)
    code, out, _ = done(*attach, "--json")
    assert json.loads(out)["changed"] is False
    assert json.loads(out)["identity"] == PERSON
    key = json.loads(out)["key"]

    assert "signed by an unknown key" in done("verify", wheel)[1]
    code, out, _ = done("trust", "add-identity", PERSON, "--issuer", ISSUER, "--root", root, "--name", "release")
    assert code == 0
    assert done("verify", wheel)[1].endswith(f"; signed by {key[:16]} (release) (trusted)\n")
    assert f"trusted: {key} release" in done("trust")[1]
    [file] = (tmp_path / "config/model-cache/trusted.d").iterdir()
    assert done("verify", wheel, "--trust", file)[0] == 0
    assert done("trust", "revoke", key[:8])[0] == 0
    assert "a key that is revoked here" in done("verify", wheel)[2]
    assert done("trust", "remove", key[:8])[0] == 0
    assert not load().keys


def test_what_it_covers_is_the_wheel_and_its_small_files(wheel: Path, services: Services, tmp_path: Path) -> None:
    policy = trust(services)
    with pytest.raises(NotTrustedError, match="not signed"):
        judged(wheel, policy)
    origin = judged(signed(wheel, services), policy)
    assert origin.trusted
    with WheelPayload(str(wheel)) as payload:
        signatures = payload.read("manifest.sig", 10**6)

    def tampered(name: str, data: bytes) -> Path:
        def change(files: dict[str, bytes]) -> None:
            files[f"{PACKAGE}/manifest.sig"] = signatures
            files[name] += data

        return make_wheel(tmp_path / name.rpartition("/")[2], PICKLED, edit=change)

    with pytest.raises(NotTrustedError, match="does not cover what is there"):
        judged(tampered(f"{PACKAGE}-1.0.0.dist-info/METADATA", b"\n"), policy)
    with pytest.raises(NotTrustedError, match="is wrong: the manifest is not the one that was signed"):
        judged(tampered(f"{PACKAGE}/manifest.json", b" "), policy)


def test_an_installed_wheel_is_deployed_as_one_signed_by_a_key_is(
    wheel: Path, services: Services, root: Path, tmp_path: Path
) -> None:
    words = ["trust", "add-identity", PERSON, "--issuer", ISSUER, "--root", str(root)]
    assert cli.main(words) == 0
    site = install(wheel, tmp_path / "site")
    with pytest.raises(NotTrustedError):
        run(site, tmp_path / "root")
    assert not (tmp_path / "root").exists()
    install(signed(wheel, services), site)
    run(site, tmp_path / "root", make_host())
    assert files_of(tmp_path / "root") == expected_files(PICKLED)


@pytest.mark.parametrize("other", ["person", "issuer", "services"])
def test_anybody_else_is_nobody(wheel: Path, services: Services, other: str) -> None:
    signed(wheel, services)
    policy = {
        "person": lambda: trust(services, who="somebody@example.test"),
        "issuer": lambda: trust(services, issuer="https://other.example.test"),
        "services": lambda: trust(Services()),
    }[other]()
    with pytest.raises(NotTrustedError, match="is wrong" if other == "services" else "signed by an unknown key"):
        judged(wheel, policy)


def test_an_identity_may_be_a_pipeline(wheel: Path, services: Services) -> None:
    pipeline = "https://forge.example.test/org/recipes/.ci/release.yml@refs/heads/main"
    signed(wheel, services, person=pipeline)
    assert judged(wheel, trust(services, pipeline)).detail.endswith(f"({pipeline})")


def claimed_by(wheel: Path, tmp_path: Path, change: Callable[[bytes], bytes]) -> Path:
    """The signed wheel with another bundle under the same signer's id."""
    with WheelPayload(str(wheel)) as payload:
        [one] = parse(payload.read("manifest.sig", 10**6))
    data = to_bytes([type(one)(**{**vars(one), "value": change(one.value)})])

    def keep(files: dict[str, bytes]) -> None:
        files[f"{PACKAGE}/manifest.sig"] = data

    return make_wheel(tmp_path / "claimed", PICKLED, edit=keep)


LIES: dict[str, Callable[[Services, bytes, bytes], bytes]] = {
    "somebody else's bundle": lambda s, text, bundle: s.bundle(text, person="mallory@example.test"),
    "somebody else vouches": lambda s, text, bundle: s.bundle(text, issuer="https://mallory.example.test"),
    "a bundle over something else": lambda s, text, bundle: s.bundle(b"else"),
    "services of one's own": lambda s, text, bundle: Services().bundle(text),
    "logged after the certificate was over": lambda s, text, bundle: s.bundle(
        text, logged_at=EPOCH + timedelta(days=31)
    ),
    "another signature": lambda s, text, bundle: edited(
        bundle, lambda d: d["messageSignature"].update(signature=b64(b"x" * 70))
    ),
    "no log entry": lambda s, text, bundle: edited(bundle, lambda d: d["verificationMaterial"].pop("tlogEntries")),
    "no promise of the log": lambda s, text, bundle: edited(
        bundle, lambda d: d["verificationMaterial"]["tlogEntries"][0].pop("inclusionPromise")
    ),
    "another time": lambda s, text, bundle: edited(
        bundle, lambda d: d["verificationMaterial"]["tlogEntries"][0].update(integratedTime="1769860000")
    ),
    "another tree": lambda s, text, bundle: edited(
        bundle, lambda d: d["verificationMaterial"]["tlogEntries"][0]["inclusionProof"].update(rootHash=b64(b"x" * 32))
    ),
    "no JSON": lambda s, text, bundle: b"not a bundle",
    "JSON of another kind": lambda s, text, bundle: b"[1, 2, 3]",
    "deep JSON": lambda s, text, bundle: b"[" * 9000 + b"]" * 9000,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_bundle_that_lies_is_a_wrong_signature(wheel: Path, services: Services, tmp_path: Path, lie: str) -> None:
    text = message(wheel)
    signed(wheel, services)
    other = claimed_by(wheel, tmp_path, lambda bundle: LIES[lie](services, text, bundle))
    with pytest.raises(NotTrustedError, match="is wrong"):
        judged(other, trust(services))
    same = claimed_by(wheel, tmp_path, lambda bundle: services.bundle(text))
    assert judged(same, trust(services)).trusted, "the test itself claims in the right way"


@settings(max_examples=150, deadline=None)
@given(position=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.integers(0, 10**6) | st.none())
def test_no_bundle_raises(services: Services, position: int, byte: int, cut: int | None) -> None:
    data = bytearray(_BUNDLES.setdefault("one", services.bundle(b"message")))
    data[position % len(data)] = byte
    [signer] = trust(services).keyring.keys.values()
    assert not signer.is_valid(bytes(data[: cut % len(data) if cut is not None else None]), b"another message")


_BUNDLES: dict[str, bytes] = {}


def test_what_no_host_would_accept_is_not_attached(wheel: Path, services: Services, tmp_path: Path) -> None:
    root, before = json.dumps(services.trusted_root()).encode(), wheel.read_bytes()
    for bundle, error, why in (
        (
            services.bundle(b"another wheel"),
            NotTrustedError,
            "is not a valid one over what `model-cache sigstore message",
        ),
        (Services().bundle(message(wheel)), NotTrustedError, "is not a valid one"),
        (b"{}", UsageError, "this is no Sigstore bundle"),
        (b"\xff", UsageError, "is no JSON document"),
        (b"[" * 100_000, UsageError, "is no JSON document"),
        (edited(services.bundle(message(wheel)), lambda d: d.update(x="x" * 30_000)), UsageError, "more than 24576"),
    ):
        with pytest.raises(error, match=why):
            attach(wheel, bundle, root)
    with pytest.raises(NotTrustedError, match="--trusted-root: its trusted_root cannot be used"):
        attach(wheel, services.bundle(message(wheel)), b"{}")
    assert wheel.read_bytes() == before


def test_a_key_and_an_identity_sign_one_wheel(wheel: Path, services: Services, tmp_path: Path) -> None:
    private, public, key = generate(tmp_path / "ci")
    sign_wheel(signed(wheel, services), load_key(str(private)))
    assert judged(wheel, trust(services)).trusted
    assert judged(wheel, Trust.of_files([str(public)])).trusted
    with WheelPayload(str(wheel)) as payload:
        found = parse(payload.read("manifest.sig", 10**6))
    assert {one.algorithm for one in found} == {"ed25519", SIGSTORE}
    # And neither passes for the other.
    [ours] = [one for one in found if one.key == key]
    swapped = to_bytes([type(ours)(**{**vars(ours), "algorithm": SIGSTORE})])
    with WheelPayload(str(wheel)) as payload, pytest.raises(NotTrustedError, match="is wrong"):
        Trust.of_files([str(public)]).judge(payload, payload.read("manifest.json", 10**6), swapped)


def test_without_the_package_a_known_identity_cannot_be_checked(
    wheel: Path, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed(wheel, services)
    monkeypatch.setattr(identity, "available", lambda: False)
    policy = trust(services)
    with pytest.raises(NotTrustedError, match=r"pip install 'hatch-model-cache\[sigstore\]'"):
        judged(wheel, policy)
    origin = judged(wheel, policy.lenient())
    assert (origin.status, "the Python package sigstore is missing" in origin.text) == ("unchecked", True)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "sigstore.models", None)
    with pytest.raises(NotTrustedError, match=r"pip install 'hatch-model-cache\[sigstore\]'"):
        judged(wheel, policy)


def test_an_expired_trust_counts_no_more(wheel: Path, services: Services) -> None:
    signed(wheel, services)
    with pytest.raises(NotTrustedError, match="a key that expired on 2001-01-31T00:00:00Z"):
        judged(wheel, trust(services, expires="2001-01-31T00:00:00Z"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not"),
        ("[]", "must be an object"),
        ('{"identity": 1}', "identity must be a string"),
        ('{"identity": "a", "issuer": "b", "name": "c", "expires": "soon", "trusted_root": {}}', "is not a time"),
        ('{"identity": "a", "issuer": "b", "name": "c", "expires": null, "trusted_root": []}', "must be an object"),
        ('{"identity": "a\\n", "issuer": "b", "name": "c", "expires": null, "trusted_root": {}}', "has a wrong form"),
        ('{"identity": "a", "issuer": "b", "name": "c", "expires": null, "trusted_root": {}, "x": 1}', "is not known"),
    ],
)
def test_a_file_of_an_identity_that_is_none_is_an_error(tmp_path: Path, text: str, why: str) -> None:
    folder = tmp_path / "config/model-cache/trusted.d"
    folder.mkdir(parents=True)
    (folder / "x.sigstore").write_text(text)
    with pytest.raises(NotTrustedError) as caught:
        load()
    assert "x.sigstore" in str(caught.value)
    assert why in str(caught.value)


def test_a_trusted_root_that_is_none_is_told_when_it_is_needed(wheel: Path, services: Services, tmp_path: Path) -> None:
    signed(wheel, services)
    found = identity.parse(identity.file_text(PERSON, ISSUER, "{}"), "x.sigstore")
    with pytest.raises(NotTrustedError, match=r"x\.sigstore: its trusted_root cannot be used"):
        judged(wheel, Trust("require", Keyring({found.id: found})))


def test_only_a_trusted_root_can_be_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["trust", "add-identity", PERSON, "--issuer", ISSUER, "--root"]
    for text, code, why in (("{", 2, "is not a Sigstore trusted root"), ("{}", 7, "its trusted_root cannot be used")):
        (tmp_path / "no.json").write_text(text)
        assert cli.main([*words, str(tmp_path / "no.json")]) == code
        assert f"{tmp_path}/no.json: {why}" in capsys.readouterr().err
    assert cli.main([*words, str(tmp_path / "nothing")]) == 5
    assert not (tmp_path / "config").exists()
