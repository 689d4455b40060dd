from __future__ import annotations

import os
import stat
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from factories import CONTENTS, NAME, add_member, install, make_document, make_site, make_wheel, members, record, sha
from model_cache.errors import DamagedError, ModelCacheError, NotFoundError
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.discovery import find, scan
from model_cache.wheel.lookup import open_payload
from model_cache.wheel.names import data_package
from model_cache.wheel.payload import InstalledPayload, entry_point
from model_cache.wheel.verify import verify

PACKAGE = data_package(NAME)
INFO = f"{PACKAGE}-1.0.0.dist-info"
BLOB = f"{PACKAGE}/blobs/{sha(b'first model')[:2]}/{sha(b'first model')}"


def problems(path: Path | str) -> str:
    """Why a wheel file is refused, by opening or by verifying it."""
    with pytest.raises(DamagedError) as caught, WheelPayload(str(path)) as payload:
        verify(payload)
    return str(caught.value)


# Discovery


def test_wheels_are_found_by_their_directories_alone(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name in (
        "model_cache_llama_3.1_8b_h100-1.0.dist-info",  # some installers keep dots and case
        "Model_Cache_B-2.0.dist-info",
        "model_cache-1.0.dist-info",
        "model_cachet-1.0.dist-info",
        "model_cache_c.dist-info",
        "model_cache_d-1.0.egg-info",
        "vllm-0.33.0.dist-info",
        "vllm_flash-1.dist-info",
    ):
        (site / name).mkdir(parents=True)
    found = scan([str(site)], also=["vllm"])
    assert [(w.name, w.version) for w in found.wheels] == [
        ("model-cache-b", "2.0"),
        ("model-cache-llama-3-1-8b-h100", "1.0"),
    ]
    assert found.others == (f"{site}/vllm-0.33.0.dist-info",)
    assert found.wheels[1].manifest_path == f"{site}/model_cache_llama_3_1_8b_h100/manifest.json"


def test_the_first_place_on_the_path_wins_and_odd_places_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one/model_cache_a-1.dist-info").mkdir(parents=True)
    (tmp_path / "two/model_cache_a-2.dist-info").mkdir(parents=True)
    (tmp_path / "file.zip").touch()
    paths = ["", str(tmp_path / "none"), str(tmp_path / "file.zip"), str(tmp_path / "one"), str(tmp_path / "two")]
    monkeypatch.chdir(tmp_path / "two")
    assert [w.version for w in find("Model.Cache_A", paths)] == ["1"]


def test_two_versions_in_one_place_are_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site(tmp_path)
    (site / f"{PACKAGE}-0.9.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(site))
    with pytest.raises(DamagedError, match=r"versions 0\.9, 1\.0\.0 are all in .*uninstall"):
        open_payload(NAME)


def test_what_is_not_installed_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError, match="no model cache wheel is installed"):
        open_payload("model-cache-x")
    monkeypatch.syspath_prepend(str(make_site(tmp_path)))
    with pytest.raises(NotFoundError, match=f"installed are: {NAME}"):
        open_payload("model-cache-x")
    with pytest.raises(NotFoundError, match="no such file"):
        open_payload(str(tmp_path / "x.whl"))
    with open_payload(NAME.upper().replace("-", "_")) as payload:
        assert payload.name == NAME


# Installed wheels


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_site(tmp_path)


def opened(site: Path) -> InstalledPayload:
    return InstalledPayload(find(NAME, [str(site)])[0])


def refused(site: Path) -> str:
    with pytest.raises(DamagedError) as caught, opened(site) as payload:
        verify(payload)
    return str(caught.value)


def test_an_installed_wheel_is_read(site: Path) -> None:
    with opened(site) as payload:
        assert payload.files()[f"blobs/{BLOB.partition('/blobs/')[2]}"] == 11
        assert payload.read("manifest.json", 10**6).startswith(b"{")
        assert entry_point(payload) == PACKAGE
        assert payload.digests() is None


@pytest.mark.parametrize("where", ["blob", "folder", "blobs", "manifest.json", "package", "metadata", "dangling"])
def test_links_are_refused_wherever_they_are(site: Path, where: str) -> None:
    places = {
        "blob": site / BLOB,
        "folder": (site / BLOB).parent,
        "blobs": site / PACKAGE / "blobs",
        "manifest.json": site / PACKAGE / "manifest.json",
        "package": site / PACKAGE,
        "metadata": site / INFO / "METADATA",
        "dangling": site / BLOB,
    }
    place, moved = places[where], site / "moved"
    place.rename(moved)
    place.symlink_to("nowhere" if where == "dangling" else moved)
    assert "link" in refused(site)


def test_the_site_directory_itself_may_be_reached_through_a_link(site: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(site)
    with opened(tmp_path / "link") as payload:
        verify(payload)


def test_hard_links_are_no_links(site: Path, tmp_path: Path) -> None:
    os.link(site / BLOB, tmp_path / "cache")  # as uv does
    with opened(site) as payload:
        verify(payload)


@pytest.mark.parametrize(
    "name", ["blobs/extra", "x.py", "blobs/00/a\\b", "blobs/00/a\nb", "__pycache__/x.pyc", "MANIFEST.JSON"]
)
def test_files_that_the_manifest_does_not_list_are_refused(site: Path, name: str) -> None:
    path = site / PACKAGE / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert any(word in refused(site) for word in ("not listed", "backslash", "control character", "letter case"))


@pytest.mark.timeout(10)
def test_special_files_are_refused_without_waiting_for_them(site: Path) -> None:
    os.mkfifo(site / PACKAGE / "pipe")
    assert "pipe is not a regular file" in refused(site)
    (site / PACKAGE / "pipe").unlink()
    (site / PACKAGE / "manifest.json").unlink()
    os.mkfifo(site / PACKAGE / "manifest.json")
    assert "not a regular file" in refused(site)


def test_a_deep_tree_is_refused(site: Path) -> None:
    (site / PACKAGE / "/".join("d" * 20)).mkdir(parents=True)
    assert "nested too deep" in refused(site)


def test_a_missing_package_or_file_is_named(site: Path) -> None:
    (site / INFO / "METADATA").unlink()
    assert "METADATA is missing" in refused(site)
    (site / PACKAGE).rename(site / "gone")
    assert f"{PACKAGE} is missing" in refused(site) or f"{PACKAGE}/manifest.json is missing" in refused(site)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_what_cannot_be_read_is_no_damage(site: Path) -> None:
    (site / BLOB).chmod(0)
    with pytest.raises(ModelCacheError, match="cannot read"), opened(site) as payload:
        verify(payload)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[console_scripts]\nx = y\n",
        f"[model_cache]\nmodel-cache-other = {PACKAGE}\n",
        f"[model_cache]\n{NAME} = {PACKAGE}\nb = c\n",
        f"[model_cache]\n{NAME} = {PACKAGE}\n{NAME} = {PACKAGE}\n",
        f"[model_cache]\n{NAME} = os\n",
        f"[model_cache]\n{NAME} = ../x\n",
        "[model_cache\n",
        "\x00\xff",
    ],
)
def test_wrong_entry_points_are_refused(site: Path, text: str) -> None:
    (site / INFO / "entry_points.txt").write_bytes(text.encode("latin-1"))
    assert "entry point" in refused(site) or "entry_points.txt" in refused(site)


# Archives


def test_a_wheel_file_is_read(tmp_path: Path) -> None:
    with open_payload(str(make_wheel(tmp_path))) as payload:
        assert (payload.name, payload.version) == (NAME, "1.0.0")
        assert verify(payload).manifest.name == NAME
        digests = payload.digests()
        assert digests is not None
        assert digests[BLOB] == sha(b"first model")


def test_zip64_fields_are_read(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "dist")
    path = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            with new.open(zipfile.ZipInfo(info.filename), "w", force_zip64=True) as member:
                member.write(old.read(info))
    with WheelPayload(str(path)) as payload:
        verify(payload)


def rebuilt(tmp_path: Path, edit: Callable[[bytearray], Any]) -> Path:
    """A valid wheel's bytes, changed."""
    wheel = make_wheel(tmp_path)
    data = bytearray(wheel.read_bytes())
    replaced = edit(data)
    wheel.write_bytes(replaced if isinstance(replaced, (bytes, bytearray)) else data)
    return wheel


def local_header(data: bytearray, name: str) -> int:
    at = data.index(name.encode())
    return at - 30


def central_header(data: bytearray, name: str) -> int:
    at = data.rindex(name.encode())
    return at - 46


def poke(data: bytearray, at: int, form: str, value: int) -> None:
    struct.pack_into(form, data, at, value)


def with_gap(data: bytearray) -> bytes:
    """Move everything from the second member on by some bytes, and correct all offsets: a valid zip with a hole."""
    hole = 16
    second = data.index(b"PK\x03\x04", 4)
    out = data[:second] + b"\0" * hole + data[second:]
    at = 0
    while (at := out.find(b"PK\x01\x02", at)) >= 0:
        (offset,) = struct.unpack_from("<L", out, at + 42)
        if offset:
            poke(out, at + 42, "<L", offset + hole)
        at += 4
    end = out.rindex(b"PK\x05\x06")
    (start,) = struct.unpack_from("<L", out, end + 16)
    poke(out, end + 16, "<L", start + hole)
    return bytes(out)


def with_hole_at_the_end(data: bytearray) -> bytes:
    """Bytes between the last member and the central directory, with the end record corrected."""
    end = data.rindex(b"PK\x05\x06")
    (start,) = struct.unpack_from("<L", data, end + 16)
    poke(data, end + 16, "<L", start + 4)
    return bytes(data[:start] + b"hole" + data[start:])


STRUCTURE: dict[str, tuple[Callable[[bytearray], Any], str]] = {
    "trailing data": (lambda d: d + b"x", "trailing data"),
    "trailing archive": (lambda d: d + d, "does not end where|does not start|disagree"),
    "comment": (lambda d: (poke(d, len(d) - 2, "<H", 3), d + b"abc")[1], "trailing data or a comment"),
    "data before": (lambda d: b"#!/bin/sh\n" + d, "does not end where"),
    "cut short": (lambda d: d[:-10], "cut short"),
    "cut in half": (lambda d: d[: len(d) // 2], "cut short"),
    "empty": (lambda d: b"", "cut short"),
    "no zip": (lambda d: b"x" * 1000, "no zip archive"),
    "hole between members": (with_gap, "does not start where the member before it ends"),
    "hole before the directory": (with_hole_at_the_end, "between the last member and the central directory"),
    "other name in the local header": (
        lambda d: d.__setitem__(slice(local_header(d, BLOB) + 30, local_header(d, BLOB) + 31), b"n"),
        "disagrees with the central directory",
    ),
    "other crc in the local header": (lambda d: poke(d, local_header(d, BLOB) + 14, "<L", 1), "disagrees"),
    "other size in the local header": (lambda d: poke(d, local_header(d, BLOB) + 22, "<L", 1), "disagrees"),
    "other packed size in the local header": (lambda d: poke(d, local_header(d, BLOB) + 18, "<L", 1), "disagrees"),
    "other method in the local header": (lambda d: poke(d, local_header(d, BLOB) + 8, "<H", 0), "disagrees"),
    "other flags in the local header": (lambda d: poke(d, local_header(d, BLOB) + 6, "<H", 0x800), "disagrees"),
    "zip64 marker without a field": (lambda d: poke(d, local_header(d, BLOB) + 22, "<L", 0xFFFFFFFF), "disagrees"),
    "no local header": (lambda d: poke(d, local_header(d, BLOB), "<L", 0), "no local header"),
    "encrypted": (lambda d: poke(d, central_header(d, BLOB) + 8, "<H", 1), "is encrypted"),
    "data descriptor": (lambda d: poke(d, central_header(d, BLOB) + 8, "<H", 8), "data descriptor"),
    "bzip2": (lambda d: poke(d, central_header(d, BLOB) + 10, "<H", 12), "method 12"),
    "symbolic link": (
        lambda d: poke(d, central_header(d, BLOB) + 38, "<L", (stat.S_IFLNK | 0o777) << 16),
        "is a link",
    ),
    "device": (lambda d: poke(d, central_header(d, BLOB) + 38, "<L", stat.S_IFCHR << 16), "special file"),
    "split archive": (lambda d: poke(d, len(d) - 18, "<H", 1), "split archive"),
    "wrong count": (lambda d: poke(d, len(d) - 14, "<H", 1), "split archive"),
    "zip64 marker without a record": (lambda d: poke(d, len(d) - 6, "<L", 0xFFFFFFFF), "zip64|cut short"),
    "directory elsewhere": (lambda d: poke(d, len(d) - 6, "<L", 0), "does not end where"),
    "overlapping members": (
        lambda d: poke(d, central_header(d, BLOB) + 42, "<L", 0),
        "does not start|disagrees|Overlapped|not a valid zip",
    ),
    "other content": (
        lambda d: d.__setitem__(local_header(d, BLOB) + 30 + len(BLOB) + 3, 0x55),
        "cannot be read|content",
    ),
}


@pytest.mark.parametrize("name", STRUCTURE)
def test_an_archive_that_two_readers_could_read_differently_is_refused(tmp_path: Path, name: str) -> None:
    import re

    edit, message = STRUCTURE[name]
    found = problems(rebuilt(tmp_path, edit))
    assert re.search(message, found), found


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("../evil", "has a part '..'"),
        (f"{PACKAGE}/../../evil", "has a part '..'"),
        ("/etc/evil", "is absolute"),
        ("C:/evil", "drive letter"),
        (f"{PACKAGE}\\evil", "backslash"),
        (f"{PACKAGE}/a\x01b", "control character"),
        (f"{PACKAGE}//evil", "empty part"),
        (f"{PACKAGE}/", "empty part"),
        (f"{PACKAGE}/./evil", "has a part '.'"),
        (f"{PACKAGE}/.model-cache/x", "reserved"),
        (f"{PACKAGE}/MANIFEST.json", "letter case"),
        (f"{PACKAGE}/blobs/extra", "not listed"),
        ("evil.pth", "lies outside"),
        ("evil/__init__.py", "lies outside"),
        (f"{PACKAGE}-1.0.0.data/scripts/x", "lies outside"),
        ("other-1.0.dist-info/METADATA", "must hold one dist-info directory"),
        (BLOB, "comes twice"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_that_may_not_be_there_are_refused(tmp_path: Path, extra: str, message: str) -> None:
    wheel = make_wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a") as archive:
        add_member(archive, extra, b"x")
    assert message in problems(wheel)
    assert not (tmp_path.parent / "evil").exists()


def test_many_names_that_come_twice_take_no_longer_than_as_many_names() -> None:
    payload = WheelPayload.__new__(WheelPayload)
    payload.name, payload.version = NAME, "1.0.0"
    twice = [zipfile.ZipInfo(f"{PACKAGE}/{number}") for number in range(20_000)] * 2
    begun = time.process_time()
    found = list(payload._member_problems(twice))
    assert sum("comes twice" in problem for problem in found) == 20_000
    assert time.process_time() - begun < 5


def test_a_nul_in_a_name_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a") as archive:
        add_member(archive, f"{PACKAGE}/aXb", b"x")
    wheel.write_bytes(wheel.read_bytes().replace(b"aXb", b"a\0b"))
    assert "control character" in problems(wheel)


@pytest.mark.parametrize(
    "name",
    [
        "x.whl",
        "other-1.0.0-py3-none-any.whl",
        "model_cache-1.0.0-py3-none-any.whl",
        f"{PACKAGE}-2.0.0-cp311-none-any.whl",
        "model_cache_other-1.0.0-cp311-none-any.whl",
        f"{PACKAGE}.whl",
    ],
)
def test_a_file_name_that_does_not_agree_is_refused(tmp_path: Path, name: str) -> None:
    wheel = make_wheel(tmp_path)
    assert problems(wheel.rename(tmp_path / name))


def test_a_build_number_and_kept_dots_are_fine(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, name="model-cache-llama-3.1-h100")
    document = make_document(name="model-cache-llama-3.1-h100")
    files = {
        name.replace("_3_1_h100-1.0.0.dist", "_3.1_h100-1.0.0.dist"): data for name, data in members(document).items()
    }
    info = "model_cache_llama_3.1_h100-1.0.0.dist-info"
    files[f"{info}/RECORD"] = record(files, info)
    path = tmp_path / "model_cache_llama_3.1_h100-1.0.0-1-cp311-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            add_member(archive, name, data)
    with WheelPayload(str(path)) as payload:
        assert verify(payload).manifest.version == "1.0.0"
    assert wheel.exists()


RECORDS: dict[str, tuple[Callable[[dict[str, bytes]], Any], str]] = {
    "changed": (lambda f: f.update({f"{INFO}/WHEEL": b"x"}), "WHEEL is not what RECORD says"),
    "unlisted": (lambda f: f.update({f"{INFO}/licenses/X": b"x"}), "does not list"),
    "missing": (lambda f: f.pop(f"{INFO}/WHEEL"), "which is missing"),
    "twice": (lambda f: f.update({f"{INFO}/RECORD": f[f"{INFO}/RECORD"] * 2}), "lists a file twice"),
    "md5": (lambda f: f.update({f"{INFO}/RECORD": f[f"{INFO}/RECORD"].replace(b"sha256", b"md5")}), "no sha256"),
    "no base64": (
        lambda f: f.update({f"{INFO}/RECORD": f[f"{INFO}/RECORD"].replace(b"sha256=", b"sha256=!")}),
        "sha256",
    ),
    "no csv": (lambda f: f.update({f"{INFO}/RECORD": b'"\xff'}), "RECORD is not valid"),
    "none": (lambda f: f.pop(f"{INFO}/RECORD"), "RECORD is missing"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_does_not_agree_is_refused(tmp_path: Path, name: str) -> None:
    edit, message = RECORDS[name]
    assert message in problems(make_wheel(tmp_path, edit_late=edit))


def test_a_zip_bomb_is_read_no_further_than_the_manifest_says(tmp_path: Path) -> None:
    bomb = b"\0" * 50_000_000

    def swell(files: dict[str, bytes]) -> None:
        files[BLOB] = bomb

    assert "has 50000000 bytes instead of 11" in problems(make_wheel(tmp_path, edit=swell))

    def swell_metadata(files: dict[str, bytes]) -> None:
        files[f"{INFO}/METADATA"] = bomb

    assert "METADATA is larger than" in problems(make_wheel(tmp_path, edit=swell_metadata))

    def swell_manifest(files: dict[str, bytes]) -> None:
        files[f"{PACKAGE}/manifest.json"] += b" " * 20_000_000

    assert "manifest.json is larger than" in problems(make_wheel(tmp_path, edit=swell_manifest))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_change_to_an_archive_raises_anything_else(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "fuzz" / f"{PACKAGE}-1.0.0-cp311-none-any.whl"
    original = make_wheel(tmp_path / "dist").read_bytes()
    path.parent.mkdir(exist_ok=True)
    changed = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        piece = data.draw(st.binary(min_size=1, max_size=8))
        changed[at : at + data.draw(st.integers(0, 8))] = piece
    path.write_bytes(changed)
    try:
        with WheelPayload(str(path)) as payload:
            verified = verify(payload)
            for digest in verified.manifest.blobs():
                assert sha(payload.read(f"blobs/{digest[:2]}/{digest}", 10**6)) == digest
    except DamagedError:
        pass


def test_install_helper_gives_what_a_wheel_holds(tmp_path: Path) -> None:
    site = install(make_wheel(tmp_path / "dist"), tmp_path / "site")
    assert sum(1 for path in (site / PACKAGE / "blobs").rglob("*") if path.is_file()) == len(
        {data for files in CONTENTS.values() for data in files.values()}
    )
