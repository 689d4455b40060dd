"""Signing wheels: the file, the keys, the commands and the build hook."""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from build_factories import make_artifacts, make_project
from factories import ENTRY_ONE, ENTRY_TWO, NAME, install, make_wheel
from fuzz_signature import KEY, PUBLIC, fuzz_signature
from hatch_model_cache.packing import signing
from hatch_model_cache.packing.signing import generate, load_key, sign_wheel
from model_cache import cli
from model_cache.errors import DamagedError, ModelCacheError, NotTrustedError, UsageError
from model_cache.origin import ed25519, signature
from model_cache.origin.ed25519 import PrivateKey, key_id
from model_cache.origin.signature import Signature, parse, to_bytes
from model_cache.origin.trust import Trust
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.names import data_package
from model_cache.wheel.verify import verify

CONTENTS = {
    ENTRY_ONE: {"rank_0_0/model": pickle.dumps([b"first"])},
    ENTRY_TWO: {"rank_0_0/model": pickle.dumps([b"second"])},
}
SIG = f"{data_package(NAME)}/{signature.FILE_NAME}"
LATER = "2999-01-31T00:00:00Z"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return make_wheel(tmp_path / "dist", CONTENTS)


@pytest.fixture
def key(tmp_path: Path) -> PrivateKey:
    return load_key(str(generate(tmp_path / "ci")[0]))


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def trusted(wheel: Path, public: Path) -> str:
    with WheelPayload(str(wheel)) as payload:
        return verify(payload, trust=Trust.of_files([str(public)])).origin.text


# The wheel


def test_a_signed_wheel_is_the_old_one_and_one_file(wheel: Path, key: PrivateKey, tmp_path: Path) -> None:
    before = members(wheel)
    wheel.chmod(0o640)
    assert sign_wheel(wheel, key).changed
    after = members(wheel)
    record = next(name for name in before if name.endswith("/RECORD"))
    assert {name: after[name] for name in before if name != record} == {n: d for n, d in before.items() if n != record}
    assert set(after) - set(before) == {SIG}
    assert list(after)[-1] == record
    old, new = before[record].splitlines(), after[record].splitlines()
    assert [line for line in new if not line.startswith(SIG.encode())] == old
    assert wheel.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in wheel.parent.iterdir()) == [wheel.name]
    assert trusted(wheel, tmp_path / "ci.pub") == f"signed by {key.id[:16]} (ci) (trusted)"


def test_packed_bytes_are_copied_as_they_are(wheel: Path, key: PrivateKey) -> None:
    def raw(path: Path) -> dict[str, tuple[int, int]]:
        with zipfile.ZipFile(path) as archive:
            return {i.filename: (i.CRC, i.compress_size) for i in archive.infolist() if "RECORD" not in i.filename}

    before = raw(wheel)
    sign_wheel(wheel, key)
    after = raw(wheel)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("path", [".", "/", "", "..", "a/.."])
def test_a_key_without_a_name(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="names no key"):
        generate(Path(path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a\nb", "a\u2028b", "a\x85b", "a\rb", "a\x00b", "\udcff", " "])
@pytest.mark.parametrize("as_path", [False, True])
def test_a_key_name_that_is_no_line_of_text(name: str, as_path: bool, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="one line of text"):
        generate(tmp_path / (name if as_path else "k"), name="" if as_path else name)
    assert list(tmp_path.iterdir()) == []


def test_no_private_key_stays_without_its_public_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = signing._write_new

    def fail(path: Path, data: bytes, mode: int) -> None:
        if path.suffix == ".pub":
            raise ModelCacheError("no space")
        write(path, data, mode)

    monkeypatch.setattr(signing, "_write_new", fail)
    with pytest.raises(ModelCacheError, match="no space"):
        generate(tmp_path / "k")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ModelCacheError, match="cannot be read"):
        generate(tmp_path / ("k" * 300))


def test_a_wheel_in_a_place_that_cannot_be_written_to(
    wheel: Path, key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> str:
        raise PermissionError(13, "Permission denied", str(wheel.parent / "x"))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(ModelCacheError, match="cannot be signed in place: Permission denied"):
        sign_wheel(wheel, key)


def test_the_same_wheel_and_key_give_the_same_bytes(tmp_path: Path, key: PrivateKey) -> None:
    made = []
    for folder in ("one", "two"):
        wheel = make_wheel(tmp_path / folder, CONTENTS)
        sign_wheel(wheel, key, expires=LATER)
        made.append(wheel.read_bytes())
    assert made[0] == made[1]
    again = sign_wheel(tmp_path / "one" / wheel.name, key, expires=LATER)
    assert not again.changed
    assert (tmp_path / "one" / wheel.name).read_bytes() == made[0]


def test_two_keys_sign_one_wheel_in_any_order(tmp_path: Path) -> None:
    keys = {name: load_key(str(generate(tmp_path / name)[0])) for name in ("old", "new")}
    made = []
    for order in (("old", "new"), ("new", "old")):
        wheel = make_wheel(tmp_path / order[0] / "dist", CONTENTS)
        for name in order:
            sign_wheel(wheel, keys[name])
        made.append(wheel.read_bytes())
        for name in order:
            assert "(trusted)" in trusted(wheel, tmp_path / f"{name}.pub")
    assert made[0] == made[1]


def test_a_second_signature_by_one_key_replaces_the_first(wheel: Path, key: PrivateKey) -> None:
    sign_wheel(wheel, key)
    assert sign_wheel(wheel, key, expires=LATER).changed
    [only] = parse(members(wheel)[SIG])
    assert only.expires == LATER


def test_a_damaged_wheel_is_not_signed(tmp_path: Path, key: PrivateKey) -> None:
    def damage(files: dict[str, bytes]) -> None:
        files[next(name for name in files if "/blobs/" in name)] = b"other"

    wheel = make_wheel(tmp_path / "dist", CONTENTS, edit=damage)
    before = wheel.read_bytes()
    with pytest.raises(DamagedError):
        sign_wheel(wheel, key)
    assert wheel.read_bytes() == before


def test_a_kill_leaves_the_old_wheel(wheel: Path, key: PrivateKey, monkeypatch: pytest.MonkeyPatch) -> None:
    before = wheel.read_bytes()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        sign_wheel(wheel, key)
    assert wheel.read_bytes() == before
    assert [path.name for path in wheel.parent.iterdir()] == [wheel.name]


def test_installers_take_a_signed_wheel(wheel: Path, key: PrivateKey, tmp_path: Path) -> None:
    sign_wheel(wheel, key)
    site = install(wheel, tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-m", "model_cache", "verify", NAME, "--trust", str(tmp_path / "ci.pub")],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "(trusted)" in done.stdout


# Keys


def test_keygen_writes_two_files_and_replaces_none(tmp_path: Path) -> None:
    before_umask = os.umask(0o077)
    try:
        private, public, key = generate(tmp_path / "ci", name="release team", expires=LATER)
    finally:
        os.umask(before_umask)
    assert private.stat().st_mode & 0o777 == 0o600
    assert public.stat().st_mode & 0o777 == 0o644
    assert load_key(str(private)).id == key
    assert public.read_text().startswith(f"# name: release team\n# expires: {LATER}\n-----BEGIN PUBLIC KEY-----\n")
    before = private.read_bytes()
    with pytest.raises(UsageError, match="never replaced"):
        generate(tmp_path / "ci")
    private.unlink()
    with pytest.raises(UsageError, match="never replaced"):
        generate(tmp_path / "ci")
    assert not private.exists()
    assert before.startswith(b"-----BEGIN PRIVATE KEY-----")


def test_openssl_reads_and_makes_the_same_keys(tmp_path: Path) -> None:
    try:
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", tmp_path / "k.pem"], check=True)
        made = subprocess.run(
            ["openssl", "pkey", "-in", tmp_path / "k.pem", "-pubout"], capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no openssl with Ed25519 here")
    (tmp_path / "k.pem").chmod(0o600)
    assert key_id(ed25519.public_key(made.stdout.decode())) == load_key(str(tmp_path / "k.pem")).id


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda p: p.chmod(0o640), "mode 0640, so others can use it"),
        (lambda p: p.chmod(0o604), "mode 0604"),
        (lambda p: os.chown(p, 12345, -1), "belongs to uid 12345"),
        (lambda p: p.unlink(), "cannot be read"),
        (lambda p: p.write_bytes(b"no key"), "not a private key"),
        (lambda p: (p.unlink(), p.mkdir()), "not a regular file"),
        (
            lambda p: p.write_bytes(
                generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            ),
            "not an Ed25519 key",
        ),
        (
            lambda p: p.write_bytes(
                PrivateKey.generate()._private.private_bytes(
                    Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")
                )
            ),
            "is encrypted",
        ),
    ],
)
def test_a_key_that_is_not_for_us_alone_is_refused(tmp_path: Path, make: Any, why: str) -> None:
    private, _, _ = generate(tmp_path / "ci")
    if "uid" in why and os.geteuid():
        pytest.skip("only root can give a file away")
    make(private)
    with pytest.raises(UsageError, match=why) as caught:
        load_key(str(private))
    assert "BEGIN" not in str(caught.value)


def test_a_public_key_is_no_matter_of_its_mode(tmp_path: Path) -> None:
    _, public, _ = generate(tmp_path / "ci")
    with pytest.raises(UsageError, match="is a public key, which signs nothing"):
        load_key(str(public))


# The file


def test_the_message_is_the_statement_and_the_exact_manifest(key: PrivateKey) -> None:
    one = Signature(key=key.id, dist_info={"METADATA": "0" * 64}, created=None, expires=LATER)
    message = one.message(b"{}\n")
    head, statement, manifest = message.split(b"\n", 2)
    assert head == b"model-cache signature 1"
    assert manifest == b"{}\n"
    assert json.loads(statement) == {
        "algorithm": "ed25519",
        "created": None,
        "dist_info": {"METADATA": "0" * 64},
        "expires": LATER,
        "key": key.id,
    }


GOOD = to_bytes([Signature(key="a" * 64, dist_info={"METADATA": "0" * 64}, value=b"s" * 64, expires=LATER)])


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"schema_version": 1', '"schema_version": 2', "schema_version"),
        ("ed25519", "none", "algorithm"),
        ("a" * 64, "A" * 64, "key"),
        ("a" * 64, "a" * 63, "key"),
        (LATER, "2999-02-31T00:00:00Z", "no time that exists"),
        (LATER, "2999-01-31", "expires"),
        ("METADATA", "../METADATA", "cannot be there"),
        ("METADATA", "RECORD", "cannot be there"),
        ("0" * 64, "0" * 63, "no sha256"),
        (base64.b64encode(b"s" * 64).decode(), base64.b64encode(b"s" * 63).decode(), "signature"),
        ('"created": null', '"created":  null', "one form"),
        ('"created": null', '"note": 1, "created": null', "is not known"),
        ('"created": null,', "", "is missing"),
        (GOOD.decode(), "[]", "object"),
        (GOOD.decode(), '{"schema_version": 1, "signatures": []}', "at least 1"),
        ("}\n ]", "},{}\n ]", "missing"),
    ],
)
def test_a_malformed_file_is_refused(old: str, new: str, why: str) -> None:
    assert parse(GOOD)
    text = GOOD.decode()
    assert old in text
    with pytest.raises(DamagedError, match=why):
        parse(text.replace(old, new, 1).encode())


def test_the_file_is_bounded() -> None:
    with pytest.raises(DamagedError, match="larger"):
        parse(b" " * (signature.MAX_BYTES + 1))
    many = [Signature(key=f"{i:064x}", dist_info={}, value=bytes(64)) for i in range(9)]
    assert parse(to_bytes(many[:8]))
    with pytest.raises(DamagedError, match="more than 8"):
        parse(to_bytes(many))
    with pytest.raises(DamagedError, match="two of one key"):
        parse(to_bytes([many[0], many[0]]))
    files = {f"licenses/{i}": "0" * 64 for i in range(65)}
    with pytest.raises(DamagedError, match="more than 64"):
        parse(to_bytes([Signature(key="a" * 64, dist_info=files, value=bytes(64))]))


def near(data: bytes) -> st.SearchStrategy[bytes]:
    """`data` with a few bytes changed."""
    edits = st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=4)

    def apply(changes: list[tuple[int, int]]) -> bytes:
        out = bytearray(data)
        for place, value in changes:
            out[place] = value
        return bytes(out)

    return edits.map(apply)


OURS = to_bytes([Signature(key=KEY, dist_info={"METADATA": "0" * 64}, value=b"s" * 64)])


@given(st.binary(max_size=300) | near(GOOD) | near(OURS))
@settings(max_examples=500, deadline=None)
def test_no_bytes_are_trusted_and_none_crash(data: bytes) -> None:
    fuzz_signature(data)


def test_the_fuzzer_reaches_the_check_of_the_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    assert key_id(PUBLIC) == KEY
    fuzz_signature(OURS)
    monkeypatch.setattr(ed25519, "is_valid", lambda *_: True)
    monkeypatch.setattr("model_cache.origin.trust._check_dist_info", lambda *_: None)
    with pytest.raises(AssertionError):
        fuzz_signature(OURS)


# The commands


def test_the_whole_way_on_the_command_line(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODEL_CACHE_SIGNING_KEY", raising=False)
    ci = tmp_path / "ci"
    assert cli.main(["keygen", str(ci), "--json"]) == 0
    key = json.loads(capsys.readouterr().out)["key"]
    assert cli.main(["sign", str(wheel.parent)]) == 2
    assert "MODEL_CACHE_SIGNING_KEY" in capsys.readouterr().err
    monkeypatch.setenv("MODEL_CACHE_SIGNING_KEY", f"{ci}.pem")
    assert cli.main(["sign", str(wheel.parent), str(wheel)]) == 0
    assert capsys.readouterr().out == f"signed: {wheel} by {key[:16]}\n"
    assert cli.main(["sign", str(wheel)]) == 0
    assert capsys.readouterr().out.startswith("was signed already: ")
    assert cli.main(["verify", str(wheel), "--trust", f"{ci}.pub", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["wheels"]
    assert row["origin"] == {"status": "trusted", "key": key, "text": f"signed by {key[:16]} (ci) (trusted)"}
    assert cli.main(["keygen", str(ci)]) == 2
    assert cli.main(["sign", str(tmp_path / "none.whl")]) == 5
    (tmp_path / "empty").mkdir()
    assert cli.main(["sign", str(tmp_path / "empty")]) == 5
    assert cli.main(["sign", str(wheel), "--expires", "tomorrow"]) == 2
    assert cli.main(["sign", str(wheel), "--created", LATER, "--expires", "2027-01-31T00:00:00Z"]) == 2


def test_the_time_of_signing_is_given_and_never_the_clocks(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, _, _ = generate(tmp_path / "ci")
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert cli.main(["sign", str(wheel), "--key", str(private)]) == 0
    assert parse(members(wheel)[SIG])[0].created is None
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1800000000")
    assert cli.main(["sign", str(wheel), "--key", str(private)]) == 0
    assert parse(members(wheel)[SIG])[0].created == "2027-01-15T08:00:00Z"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    assert cli.main(["sign", str(wheel), "--key", str(private)]) == 2


def test_without_cryptography_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    assert cli.main(["keygen", str(tmp_path / "ci")]) == 7
    assert "pip install 'hatch-model-cache[sign]'" in capsys.readouterr().err
    with pytest.raises(NotTrustedError, match="cryptography"):
        ed25519.is_valid(PUBLIC, bytes(64), b"")


# The build hook


def hatchling(project: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MODEL_CACHE", "SOURCE_DATE"))}
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=project,
        env={**kept, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_the_hook_signs_and_the_wheel_stays_reproducible(tmp_path: Path) -> None:
    private, public, _ = generate(tmp_path / "ci")
    wheels = []
    for name in ("one", "two"):
        project = make_project(tmp_path / name)
        make_artifacts(project / "artifacts", project)
        done = hatchling(project, MODEL_CACHE_SIGNING_KEY=str(private))
        assert done.returncode == 0, done.stdout
        [wheel] = (project / "dist").glob("*.whl")
        wheels.append(wheel)
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    assert "(trusted)" in trusted(wheels[0], public)
    assert os.fsencode(tmp_path) not in b"".join(members(wheels[0]).values())


@pytest.mark.parametrize(
    ("variable", "why"),
    [("ci.pem", "must be an absolute path"), ("{}/none.pem", "cannot be read")],
)
def test_a_build_with_a_wrong_key_stops_and_leaves_nothing(tmp_path: Path, variable: str, why: str) -> None:
    project = make_project(tmp_path / "project")
    make_artifacts(project / "artifacts", project)
    done = hatchling(project, MODEL_CACHE_SIGNING_KEY=variable.format(tmp_path))
    assert done.returncode == 2, done.stdout
    assert why in done.stdout
    assert not list((project / "dist").glob("*"))


def test_the_variable_is_the_one_that_is_documented() -> None:
    assert signing.KEY_VARIABLE == "MODEL_CACHE_SIGNING_KEY"
