"""`model-cache index build`: verified wheels in, a static site out, or nothing at all. The payload is synthetic."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from factories import A100, CONTENTS, H100, MODEL, NAME, make_wheel, record, sha, write_zip
from hatch_model_cache import publish
from hatch_model_cache.packing.signing import generate, load_key, sign_wheel
from hatch_model_cache.publish import shelf, site
from model_cache.cli import main
from model_cache.store import files
from model_cache.wheel import catalogue as catalogues
from model_cache.wheel.names import data_package

WHEEL = f"{data_package(NAME)}-1.0.0-cp311-none-any.whl"
OTHER = "model-cache-other-a100-sxm4-80gb"


class Ran:
    """One run of the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], arguments: tuple[str | Path, ...]) -> None:
        self.code = main([str(argument) for argument in arguments])
        self.out, self.err = capsys.readouterr()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Build = Callable[..., Ran]


@pytest.fixture(autouse=True)
def no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that trusts nobody in particular."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("MODEL_CACHE_TRUST", "MODEL_CACHE_POLICY", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    make_wheel(tmp_path / "dist")
    return tmp_path / "dist"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "site"


@pytest.fixture
def build(dist: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> Build:
    return lambda *arguments: Ran(capsys, ("index", "build", dist, "--out", out, *arguments))


def dependency(folder: Path, name: str = "hatch_model_cache", version: str = "0.1.0", metadata: str = "") -> Path:
    """A small wheel that is no model cache."""
    info = f"{name}-{version}.dist-info"
    head = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{metadata}\n"
    members = {f"{name}/__init__.py": b"", f"{info}/METADATA": head.encode(), f"{info}/WHEEL": b"Wheel-Version: 1.0\n"}
    folder.mkdir(exist_ok=True)
    members[f"{info}/RECORD"] = record(members, info)
    return write_zip(folder / f"{name}-{version}-py3-none-any.whl", members)


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def beside(folder: Path) -> set[str]:
    return {path.name for path in folder.parent.iterdir()}


class Links(HTMLParser):
    """The links of a page: attributes of each <a>."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.append(dict(attrs))


# What is there


def test_a_site_is_all_that_an_installer_a_program_and_a_person_need(build: Build, dist: Path, out: Path) -> None:
    dependency(dist)
    done = build()
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"built: {out} (1 model cache, 1 other wheel, {files.human(sum(p.stat().st_size for p in dist.iterdir()))})",
        "  added: hatch_model_cache-0.1.0-py3-none-any.whl",
        f"  added: {WHEEL}",
    ]
    project = f"simple/{NAME}"
    assert set(tree(out)) == {
        "index.html",
        "catalogue.json",
        "simple/index.html",
        "simple/index.json",
        "simple/hatch-model-cache/index.html",
        "simple/hatch-model-cache/index.json",
        f"{project}/index.html",
        f"{project}/index.json",
        "wheels/hatch_model_cache-0.1.0-py3-none-any.whl",
        "wheels/hatch_model_cache-0.1.0-py3-none-any.whl.metadata",
        f"wheels/{WHEEL}",
        f"wheels/{WHEEL}.metadata",
        f"wheels/{WHEEL}.manifest.json",
    }
    assert (out / "wheels" / WHEEL).read_bytes() == (dist / WHEEL).read_bytes()


def test_the_pages_for_installers(build: Build, dist: Path, out: Path) -> None:
    (dist / "index.toml").write_text(
        f'[wheels."{WHEEL}"]\nyanked = "a <b>"\nuploaded = 2026-11-30T13:00:00+01:00\ncompile-seconds = 83\n'
    )
    dependency(dist, metadata="Requires-Python: >=3.11\n")
    assert build().code == 0
    digest, metadata = sha((dist / WHEEL).read_bytes()), sha((out / f"wheels/{WHEEL}.metadata").read_bytes())
    [link] = Links(out / f"simple/{NAME}/index.html").found
    assert link == {
        "href": f"../../wheels/{WHEEL}#sha256={digest}",
        "data-yanked": "a <b>",
        "data-core-metadata": f"sha256={metadata}",
        "data-dist-info-metadata": f"sha256={metadata}",
    }
    [link] = Links(out / "simple/hatch-model-cache/index.html").found
    assert link["data-requires-python"] == ">=3.11"
    assert [link["href"] for link in Links(out / "simple/index.html").found] == ["hatch-model-cache/", f"{NAME}/"]
    page = json.loads((out / f"simple/{NAME}/index.json").read_text())
    assert page == {
        "meta": {"api-version": "1.1"},
        "name": NAME,
        "versions": ["1.0.0"],
        "files": [
            {
                "filename": WHEEL,
                "url": f"../../wheels/{WHEEL}",
                "hashes": {"sha256": digest},
                "size": (dist / WHEEL).stat().st_size,
                "core-metadata": {"sha256": metadata},
                "dist-info-metadata": {"sha256": metadata},
                "upload-time": "2026-11-30T12:00:00Z",
                "yanked": "a <b>",
            }
        ],
    }
    projects = json.loads((out / "simple/index.json").read_text())
    assert projects["projects"] == [{"name": "hatch-model-cache"}, {"name": NAME}]


def test_the_catalogue_says_what_the_manifest_says(build: Build, dist: Path, out: Path) -> None:
    (dist / "index.toml").write_text(f'[wheels."{WHEEL}"]\ncompile-seconds = 83\n')
    assert build().code == 0
    catalogue = catalogues.parse((out / "catalogue.json").read_bytes())
    [offer] = catalogue.wheels
    assert (offer.name, offer.version, offer.file) == (NAME, "1.0.0", WHEEL)
    assert offer.model.id == MODEL
    assert offer.model.served_as == (MODEL, "/models/synthetic")
    assert (offer.engine.version, offer.engine.torch, offer.engine.python) == ("0.33.0", "2.14.0+cu130", "3.11.7")
    assert [(target.name, target.hardware) for target in offer.targets] == [("h100-sxm5-80gb", H100["device_name"])]
    assert offer.compile_seconds == 83
    assert offer.payload_size == sum(len(data) for entry in CONTENTS.values() for data in entry.values())
    assert (offer.signature, offer.keys) == (None, ())
    for part in catalogue.parts():
        data = (out / part.url).read_bytes()
        assert (part.sha256, part.size) == (sha(data), len(data)), part.url


def test_signatures(build: Build, dist: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for name in ("one", "two"):
        private, public, key = generate(tmp_path / name)
        sign_wheel(dist / WHEEL, load_key(str(private)))
        keys.append((public, key))
    (public, key), (_, other) = keys
    assert build().code == 0
    [offer] = catalogues.parse((out / "catalogue.json").read_bytes()).wheels
    assert {(one.id, one.checked) for one in offer.keys} == {(key, False), (other, False)}
    assert "Signature not checked" in (out / "index.html").read_text()
    monkeypatch.setenv("MODEL_CACHE_TRUST", str(public))
    monkeypatch.setenv("MODEL_CACHE_POLICY", "prefer")  # the synthetic payload holds no pickles that an engine makes
    done = build()
    assert (done.code, "added" in done.out) == (0, False), "what was found out has changed, the wheel has not"
    [offer] = catalogues.parse((out / "catalogue.json").read_bytes()).wheels
    assert {(one.id, one.checked) for one in offer.keys} == {(key, True), (other, False)}
    assert offer.signature is not None
    assert (out / offer.signature.url).read_bytes().startswith(b"{")
    page = (out / "index.html").read_text()
    assert "Signature not checked" not in page
    assert key[:16] in page


def test_versions_are_in_their_order_and_a_local_part_is_encoded(build: Build, dist: Path, out: Path) -> None:
    """A23: `+` and `%2B` are the same file; a server or proxy that unquotes `+` must find nothing to unquote."""
    for version in ("1.10.0", "1.9.0", "2.0.0rc1", "1.0.0+cu130"):
        make_wheel(dist, version=version)
    assert build().code == 0
    page = json.loads((out / f"simple/{NAME}/index.json").read_text())
    assert page["versions"] == ["1.0.0", "1.0.0+cu130", "1.9.0", "1.10.0", "2.0.0rc1"]
    hrefs = [link["href"] or "" for link in Links(out / f"simple/{NAME}/index.html").found]
    local = f"{data_package(NAME)}-1.0.0+cu130-cp311-none-any.whl"
    assert hrefs[1].startswith(f"../../wheels/{local.replace('+', '%2B')}#sha256=")
    assert (out / "wheels" / local).is_file()
    assert site.Site.at(out).known().keys() == {path.name for path in dist.iterdir()}


def test_several_directories_and_what_is_no_wheel(
    dist: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An sdist in an index is what pip takes when no wheel fits: it would compile on a serving host."""
    make_wheel(tmp_path / "more", name=OTHER, targets=(A100,))
    (tmp_path / "more" / f"{data_package(OTHER)}-1.0.0.tar.gz").write_bytes(b"")
    done = Ran(capsys, ("index", "build", dist, tmp_path / "more", "--out", out, "--json"))
    assert [wheel["name"] for wheel in done.json["wheels"]] == [OTHER, NAME]
    assert done.json["left_out"] == [f"{data_package(OTHER)}-1.0.0.tar.gz"]
    assert not [name for name in tree(out) if name.endswith(".tar.gz")]


def test_without_the_serving_side_it_warns(build: Build, dist: Path) -> None:
    done = build()
    assert "warning: hatch-model-cache is not among the wheels" in done.err
    dependency(dist)
    assert build().err == ""


# The same, again


def test_the_same_wheels_give_the_same_bytes(build: Build, dist: Path, out: Path, tmp_path: Path) -> None:
    for version in ("1.1.0", "2.0.0"):
        make_wheel(dist, version=version)
    dependency(dist)
    assert build().code == 0
    for path in dist.iterdir():
        os.utime(path, (1, 1))
    before = os.umask(0o077)
    try:
        assert main(["index", "build", str(dist), "--out", str(tmp_path / "again")]) == 0
    finally:
        os.umask(before)
    assert tree(out) == tree(tmp_path / "again")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "again").rglob("*") if path.is_file()}
    folders = [tmp_path / "again", *(path for path in (tmp_path / "again").rglob("*") if path.is_dir())]
    assert (modes, {stat.S_IMODE(path.stat().st_mode) for path in folders}) == ({0o644}, {0o755}), "served by others"


def test_what_has_not_changed_is_not_touched(build: Build, dist: Path, out: Path, tmp_path: Path) -> None:
    build()
    inodes = {path: path.stat().st_ino for path in out.rglob("*")} | {out: out.stat().st_ino}
    assert build().out.startswith("unchanged: ")
    assert inodes == {path: path.stat().st_ino for path in out.rglob("*")} | {out: out.stat().st_ino}
    make_wheel(dist, name=OTHER, targets=(A100,))
    assert "added: model_cache_other" in build().out
    kept = {
        path for path in inodes if path.is_file() and path.name not in ("index.html", "index.json", "catalogue.json")
    }
    assert WHEEL in {path.name for path in kept}
    assert all(path.stat().st_ino == inodes[path] for path in kept)
    assert main(["index", "build", str(dist), "--out", str(tmp_path / "anew")]) == 0
    assert tree(out) == tree(tmp_path / "anew"), "step by step or at once, it is the same site"


def test_what_is_gone_is_taken_away_and_said(build: Build, dist: Path, out: Path) -> None:
    other = make_wheel(dist, name=OTHER, targets=(A100,))
    build()
    other.unlink()
    done = build()
    assert f"removed: {other.name}" in done.out
    assert not (out / f"simple/{OTHER}").exists()
    assert OTHER not in (out / "index.html").read_text()


def test_a_wheel_of_the_site_that_was_harmed_is_replaced(build: Build, dist: Path, out: Path) -> None:
    build()
    (out / "wheels" / WHEEL).write_bytes(b"other")
    assert build().out.startswith("built: ")
    assert (out / "wheels" / WHEEL).read_bytes() == (dist / WHEEL).read_bytes()


def test_a_site_is_no_link_to_the_publishers_files(build: Build, dist: Path, out: Path) -> None:
    build()
    (dist / WHEEL).write_bytes(b"written over in place")
    assert (out / "wheels" / WHEEL).stat().st_size > 1000


def test_a_dry_run_writes_nothing(build: Build, out: Path) -> None:
    before = beside(out)
    done = build("--dry-run")
    assert (done.code, done.out.splitlines()[1]) == (0, f"  would be added: {WHEEL}")
    assert build("--dry-run", "--json").json["changed"] is True
    assert beside(out) == before
    build()
    assert build("--dry-run", "--json").json["changed"] is False


# Nothing that is not right


def damaged_blob(members: dict[str, bytes]) -> None:
    name = next(name for name in members if "/blobs/" in name)
    members[name] = b"X" + members[name][1:]


def swap_metadata(members: dict[str, bytes]) -> None:
    name = next(name for name in members if name.endswith("METADATA"))
    members[name] = members[name].replace(b"2.4", b"9.9")


def test_a_damaged_wheel_stops_it_with_its_name_and_the_old_site_stays(build: Build, dist: Path, out: Path) -> None:
    build()
    before, around = tree(out), beside(out)
    bad = make_wheel(dist, name=OTHER, targets=(A100,), edit_late=damaged_blob)
    done = build()
    assert done.code == 3
    assert re.search(rf"{re.escape(bad.name)}: does not agree with its manifest\n  - blobs/", done.err)
    worse = dependency(dist)
    data = bytearray(worse.read_bytes())
    data[60] ^= 255
    worse.write_bytes(data)
    done = build("--json")
    assert (done.code, done.json["error"]["kind"], done.json["error"]["message"]) == (3, "damaged", "2 wheels failed")
    assert any(worse.name in problem for problem in done.json["error"]["problems"])
    assert (tree(out), beside(out)) == (before, around)


def test_a_wheel_that_entered_before_and_changed_since_is_looked_at_again(build: Build, dist: Path, out: Path) -> None:
    build()
    before = tree(out)
    make_wheel(dist, edit_late=damaged_blob)
    assert build().code == 3
    assert tree(out) == before


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ("Requires-Python: >=nothing\n", "'>=nothing' is invalid for 'requires-python'"),
        ("Requires-Dist: x @@ y\n", "is invalid for 'requires-dist'"),
    ],
)
def test_metadata_that_no_installer_could_read(build: Build, dist: Path, metadata: str, problem: str) -> None:
    dependency(dist, metadata=metadata)
    done = build()
    assert done.code == 3
    assert problem in done.err


def test_a_dependency_that_is_a_bomb(build: Build, dist: Path, out: Path) -> None:
    dependency(dist, metadata=f"Description: {'x' * (17 << 20)}\n")
    done = build()
    assert (done.code, "METADATA is larger than" in done.err, out.exists()) == (3, True, False)


def test_without_the_libraries_one_line_names_the_extra(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("hatch_model_cache.publish.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("shelf", "site", "page", "variants"):
        monkeypatch.delattr(publish, name, raising=False)
    monkeypatch.setitem(sys.modules, "installer.sources", None)
    done = build()
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(r"model-cache: `model-cache index` needs .*hatch-model-cache\[index\]'\n", done.err)


def test_names_that_are_one_to_an_index(build: Build, dist: Path) -> None:
    """Two names' normalisation: a dot, a dash and an underscore are the same."""
    (dist / WHEEL.replace("_h100_", ".H100.")).write_bytes((dist / WHEEL).read_bytes())
    done = build()
    assert done.code == 3
    assert "is the same wheel to an index as" in done.err


@pytest.mark.parametrize(
    "name", ["model_cache_x.whl", "model_cache_x-1.0.0-.whl", "no wheel.whl", "x-1-py3-none-any.whl"]
)
def test_files_that_are_no_wheels(build: Build, dist: Path, out: Path, name: str) -> None:
    (dist / name).write_bytes(b"no zip")
    done = build()
    assert done.code == 3
    assert name in done.err
    assert not out.exists()


def test_no_wheel_and_no_directory(tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for place, code, text in (("empty", 5, "no wheel"), ("absent", 5, "no such"), ("file", 2, "is no directory")):
        done = Ran(capsys, ("index", "build", tmp_path / place, "--out", out))
        assert (done.code, text in done.err) == (code, True), done.err
    assert not out.exists()


def test_a_host_that_requires_signatures_takes_no_other(build: Build, out: Path, tmp_path: Path) -> None:
    _, public, _ = generate(tmp_path / "key")
    done = build("--trust", public)
    assert (done.code, "not signed" in done.err, out.exists()) == (7, True, False)


def test_notes_that_are_wrong_are_all_told(build: Build, dist: Path, out: Path) -> None:
    (dist / "index.toml").write_text(
        f'[wheels."{WHEEL}"]\nyanked = 3\nuploaded = 2026-11-30T12:00:00\ncompile-seconds = 0\nother = 1\n'
        '[wheels."absent.whl"]\n[more]\n'
    )
    done = build()
    assert done.code == 2
    for problem in (
        f'wheels."{WHEEL}".yanked: must be',
        f'wheels."{WHEEL}".uploaded: must be a time with its offset',
        f'wheels."{WHEEL}".compile-seconds: must be a positive number',
        f'wheels."{WHEEL}".other: is not known',
        'wheels."absent.whl": there is no such wheel',
        "more: is not known",
    ):
        assert problem in done.err
    assert not out.exists()
    for text in ("[", "wheels = 1", "\x00"):
        (dist / "index.toml").write_text(text)
        assert build().code == 2


# Where it is put


def test_files_of_others_are_not_deleted(build: Build, out: Path) -> None:
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    done = build()
    assert (done.code, "holds files and is no index" in done.err) == (2, True)
    (out / "thesis.txt").unlink()
    assert build().code == 0
    (out / "wheels/mine.whl").write_text("mine")
    done = build()
    assert done.code == 2
    assert "holds files of others" in done.err
    assert "wheels/mine.whl" in done.err
    assert (out / "wheels/mine.whl").exists()


def test_places_that_cannot_be(build: Build, out: Path, capsys: pytest.CaptureFixture[str], dist: Path) -> None:
    out.write_text("a file")
    assert "is no directory" in build().err
    out.unlink()
    out.mkdir()
    (out / "catalogue.json").write_text("{}")
    done = build()
    assert (done.code, "is no index that can be replaced" in done.err) == (2, True)
    done = Ran(capsys, ("index", "build", dist, "--out", dist / WHEEL / "inside"))
    assert (done.code, "Traceback" in done.err) == (1, False)


def test_a_link_to_a_site_stays_a_link(build: Build, out: Path) -> None:
    real = out.parent / "releases/now"
    real.mkdir(parents=True)
    out.symlink_to(real)
    assert build().code == 0
    assert out.is_symlink()
    assert (real / "catalogue.json").exists()


@pytest.fixture(params=["exchange", "renames"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How a site is switched: file systems without the exchange of two names are served too."""
    if request.param == "renames":
        monkeypatch.setattr(files, "exchange", lambda *_: False)
    return request.param


def test_the_switch(build: Build, dist: Path, out: Path, way: str) -> None:
    build()
    around = beside(out)
    make_wheel(dist, name=OTHER, targets=(A100,))
    assert build().code == 0
    assert (out / f"simple/{OTHER}").is_dir()
    assert beside(out) == around


def test_a_failure_while_writing_leaves_the_old_site(
    build: Build, dist: Path, out: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build()
    make_wheel(dist, name=OTHER, targets=(A100,))
    before, around = tree(out), beside(out)
    real = Path.rename

    def full(path: Path, target: Path) -> Path:
        if target == out:
            raise OSError(28, "No space left on device", str(target))
        return real(path, target)

    for name, value in (
        ("_readable_for_all", lambda _: full(out, out)),
        ("shutil.copyfile", lambda *_: full(out, out)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"hatch_model_cache.publish.site.{name}", value)
            done = build()
        assert (done.code, "No space left on device" in done.err) == (1, True)
        assert (tree(out), beside(out)) == (before, around)


def test_a_second_rename_that_fails_brings_the_old_site_back(
    build: Build, dist: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build()
    make_wheel(dist, name=OTHER, targets=(A100,))
    before, around = tree(out), beside(out)
    monkeypatch.setattr(files, "exchange", lambda *_: False)
    real = Path.rename

    def once(path: Path, target: Path) -> Path:
        if target == out and not path.name.endswith(".old"):
            raise OSError(5, "Input/output error", str(target))
        return real(path, target)

    monkeypatch.setattr(Path, "rename", once)
    assert build().code == 1
    assert (tree(out), beside(out)) == (before, around)


def test_a_wheel_that_changes_while_it_is_copied(build: Build, dist: Path, out: Path) -> None:
    found = shelf.read([dist], shelf.Trust.of_this_host(), {})
    make_wheel(dist, changes={"model.revision": "b" * 40})
    with pytest.raises(site.DamagedError, match="changed while the index was built"):
        site.build(found, site.Site.at(out))
    assert not out.exists()
    assert beside(out) == {"dist"}


# The page for people


EVIL = "<img src=x onerror=\"document.title='owned'\"></script><script>owned()</script>\u202e{{ 7 * 7 }}&amp;"


def test_a_hostile_wheel_stays_text(build: Build, dist: Path, out: Path) -> None:
    make_wheel(
        dist,
        name=OTHER,
        targets=(A100 | {"device_name": "<b>GPU"},),
        changes={
            "model.id": EVIL,
            "model.served_as": [EVIL, "\"'><i>"],
            "entries.0.served_as": EVIL,
            "entries.1.served_as": "\"'><i>",
        },
    )
    (dist / "index.toml").write_text(f'[wheels."{WHEEL}"]\nyanked = "<script>owned()</script>"\n')
    assert build().code == 0
    page = (out / "index.html").read_text("utf-8")
    assert "<img" not in page
    assert "<b>GPU" not in page
    assert '<i>"' not in page
    assert page.count("<script") == 1
    assert "owned()" in page
    assert "\u202e" not in page
    assert "{{ 7 * 7 }}&amp;amp;" in page
    assert not re.search(r"<[^>]*\son\w+=", re.sub(r"\"[^\"]*\"", '""', page)), "no handler in any tag"


def test_the_page_asks_for_nothing(build: Build, out: Path) -> None:
    """It works from a file, offline: no address but those of the site's own files."""
    assert build().code == 0
    page = (out / "index.html").read_text("utf-8")
    assert not re.findall(r'(?:src|href)=(?!"(?:wheels/|catalogue\.json"|simple/|#|data:,"))[^ >]*', page)
    assert not re.search(r"https?://|@import|url\(", page)
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src &#39;none&#39;; style-src &#39;sha256-")
    for link in Links(out / "index.html").found:
        place = (link["href"] or "").partition("#")[0]
        assert not place or (out / place).is_file(), link


def test_install_lines_take_one_index(build: Build, dist: Path, out: Path) -> None:
    """A20: a second index may complete a private name; no line that we show names one."""
    serving = dependency(dist)
    assert build("--url", "https://wheels.example/caches").code == 0
    page = (out / "index.html").read_text("utf-8")
    index = "https://wheels.example/caches/simple/"
    assert f"pip install --index-url {index} {NAME}==1.0.0<" in page
    assert f"uv pip install --index-url {index} {NAME}==1.0.0<" in page
    assert (
        f"--index-url {index}\n{NAME}==1.0.0 --hash=sha256:{sha((dist / WHEEL).read_bytes())}\n"
        f"hatch-model-cache==0.1.0 --hash=sha256:{sha(serving.read_bytes())}<"
    ) in page
    assert "extra-index" not in page
    assert "data-index" not in page


@pytest.mark.parametrize(
    "url", ["wheels.example", "https://user:secret@wheels.example/", "https://x/'; rm -rf", "https://x?y"]
)
def test_an_address_that_no_install_line_may_hold(build: Build, out: Path, url: str) -> None:
    done = build("--url", url)
    assert (done.code, "--url must be the site's address" in done.err, out.exists()) == (2, True, False)


def test_yanked_and_older_versions(build: Build, dist: Path, out: Path) -> None:
    newest = make_wheel(dist, version="2.0.0")
    make_wheel(dist, version="3.0.0", changes={"engine.version": "0.34.0"})
    (dist / "index.toml").write_text(f'[wheels."{newest.name}"]\nyanked = true\n')
    assert build().code == 0
    page = (out / "index.html").read_text("utf-8")
    rows = re.findall(r"<li data-search=.*?</li>", page, re.DOTALL)
    shown = [(re.findall(r"<small>([\d.]+)", row)[0], "data-older" in row, "pip install" in row) for row in rows]
    # of one engine the newest that may be installed comes first; of another engine nothing is older
    assert shown == [("3.0.0", False, True), ("1.0.0", False, True), ("2.0.0", True, False)]
