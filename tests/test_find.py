"""`model-cache find`: directories, static sites, package indexes and the Hub, all on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from factories import A100, H100, MODEL, NAME, make_host, make_wheel
from fakes import fake_look_up
from fakes.web_server import JSON, WebServer
from fakes.writable_hub import WritableHub
from hatch_model_cache.compiling import interpreter
from hatch_model_cache.packing.signing import generate, load_key, sign_wheel
from hatch_model_cache.publish import offers, remote_wheel, simple_index, web
from hatch_model_cache.publish.offers import Wanted
from model_cache import cli
from model_cache.errors import DamagedError, ModelCacheError
from model_cache.origin import keyring
from verdicts import FACTORS, FLAGS, HOST, OPTIONS, OTHER_KEY, UNKEYED, look_up
from verdicts import wheel as manifest_of

A100_NAME = "model-cache-synthetic-1b-a100-sxm4-80gb"
FOR = ("--target", "h100-sxm5-80gb", "--engine", "vllm==0.33.0")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def a_host_that_trusts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODEL_CACHE_TRUST", "MODEL_CACHE_POLICY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr(keyring, "SYSTEM", str(tmp_path / "etc/trusted.d"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`model-cache find`: exit code, stdout, stderr."""

    def find(*words: object, model: str = MODEL, host: tuple[str, ...] = FOR) -> tuple[int, str, str]:
        at = words.index("--") if "--" in words else len(words)
        code = cli.main(["find", model, *host, *map(str, words[:at]), *map(str, words[at:])])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return find


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A directory with a wheel that fits FOR, one for another GPU, and one for a newer engine."""
    make_wheel(tmp_path / "dist")
    make_wheel(tmp_path / "dist", name=A100_NAME, targets=(A100,))
    make_wheel(tmp_path / "dist", version="2.0.0", changes={"engine.version": "0.34.0"})
    return tmp_path / "dist"


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer() as running:
        yield running


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wheels(dist: Path) -> list[Path]:
    return sorted(dist.glob("*.whl"))


def project(path: Path) -> str:
    return path.name.partition("-")[0].replace("_", "-")


def serve_simple(server: WebServer, dist: Path, *, as_json: bool, hashes: bool = True) -> str:
    """An index of `dist` as PEP 691 or PEP 503 has it; its address."""
    projects = sorted({project(path) for path in wheels(dist)} | {"numpy"})
    for path in wheels(dist):
        server.pages[f"/files/{path.name}"] = ("application/octet-stream", path.read_bytes())
    pages: dict[str, Any] = {}
    if as_json:
        pages[""] = {"meta": {"api-version": "1.0"}, "projects": [{"name": name} for name in projects]}
        for name in projects:
            files = [
                {
                    "filename": path.name,
                    "url": f"../../files/{path.name}",
                    "hashes": {"sha256": sha256(path)} if hashes else {},
                }
                for path in wheels(dist)
                if project(path) == name
            ]
            pages[f"{name}/"] = {"meta": {"api-version": "1.0"}, "name": name, "files": files}
    else:
        pages[""] = "".join(f'<a href="{name}/">{name}</a>' for name in projects)
        for name in projects:
            links = [
                f'<a href="../../files/{path.name}{f"#sha256={sha256(path)}" if hashes else ""}">{path.name}</a><br>'
                for path in wheels(dist)
                if project(path) == name
            ]
            pages[f"{name}/"] = "<!DOCTYPE html><html><body>" + "\n".join(links)
    for name, page in pages.items():
        kind, text = (JSON, json.dumps(page)) if as_json else ("text/html; charset=utf-8", page)
        server.pages[f"/simple/{name}"] = (kind, text.encode())
    return f"{server.url}/simple/"


def serve_site(server: WebServer, dist: Path, tmp_path: Path) -> str:
    """A static index as `model-cache index build` makes it; its address."""
    site = tmp_path / "site"
    assert cli.main(["index", "build", str(dist), "--out", str(site)]) == 0
    for path in site.rglob("*"):
        if path.is_file():
            server.pages[f"/{path.relative_to(site).as_posix()}"] = ("application/octet-stream", path.read_bytes())
    return f"{server.url}/"


def expected(path: Path, url: str) -> str:
    return f"pip install --no-deps '{NAME} @ {url}#sha256={sha256(path)}'"


# where it looks


def test_a_directory_of_wheels(run: Run, dist: Path) -> None:
    code, out, err = run("--index", dist)
    assert (code, err) == (0, "")
    best = dist / "model_cache_synthetic_1b_h100_sxm5_80gb-1.0.0-cp311-none-any.whl"
    assert out.splitlines() == [
        f"fits: {NAME} 1.0.0 ({dist})",
        f"miss: {NAME} 2.0.0 ({dist})",
        "  vllm is 0.33.0, the wheel was built for 0.34.0",
        f"miss: {A100_NAME} 1.0.0 ({dist})",
        "  target is h100-sxm5-80gb, the wheel was built for a100-sxm4-80gb",
        "install:",
        f"  {expected(best, best.as_uri())}",
    ]


def test_a_static_site(
    run: Run, server: WebServer, dist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = serve_site(server, dist, tmp_path)
    capsys.readouterr()
    best = wheels(dist)[1]
    server.requests.clear()
    for index in (url, url.removesuffix("/"), f"{url}simple/"):
        code, out, err = run("--index", index, "--json")
        assert (code, err) == (0, "")
        assert json.loads(out)["install"] == expected(best, f"{url}wheels/{best.name}")
    assert not [path for path, _, _ in server.requests if path.endswith(".whl")], "no wheel was asked for"


def test_a_static_site_in_a_directory(run: Run, dist: Path, tmp_path: Path) -> None:
    assert cli.main(["index", "build", str(dist), "--out", str(tmp_path / "site")]) == 0
    best = tmp_path / "site/wheels" / wheels(dist)[1].name
    code, out, _ = run("--index", tmp_path / "site")
    assert code == 0
    assert expected(best, best.as_uri()) in out


@pytest.mark.parametrize("as_json", [True, False])
def test_a_package_index_that_sends_parts(run: Run, server: WebServer, dist: Path, as_json: bool) -> None:
    big = os.urandom(3_000_000)
    directory = f"torch_compile_cache/torch_aot_compile/{'3' * 64}"
    best = make_wheel(dist, {directory: {"rank_0_0/model": big}}, version="1.5.0")
    index = serve_simple(server, dist, as_json=as_json)
    code, out, err = run("--index", index, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["install"] == expected(best, f"{server.url}/files/{best.name}")
    assert [(one["version"], one["standing"]) for one in answer["wheels"]] == [
        ("1.5.0", "fits"),
        ("1.0.0", "fits"),
        ("2.0.0", "miss"),
        ("1.0.0", "miss"),
    ]
    assert answer["wheels"][0]["size"] == best.stat().st_size
    assert server.sent("/simple/numpy/") == 0
    parts = [wanted for path, wanted, _ in server.requests if path.endswith(best.name)]
    assert parts
    assert all(parts)
    assert len(parts) <= 3, "the directory and the manifest, not the blobs"


@pytest.mark.parametrize("plus", ["+", "%2B"])
@pytest.mark.parametrize("as_json", [True, False])
def test_a23_a_local_version_however_the_address_spells_it(
    run: Run, server: WebServer, tmp_path: Path, as_json: bool, plus: str
) -> None:
    dist = tmp_path / "dist"
    wheel = make_wheel(dist, version="1.0.0+cu130")
    index = serve_simple(server, dist, as_json=as_json)
    spelled = wheel.name.replace("+", plus)
    server.pages[f"/files/{spelled}"] = server.pages.pop(f"/files/{wheel.name}")
    page = f"/simple/{NAME}/"
    kind, body = server.pages[page]
    server.pages[page] = (kind, body.replace(f"files/{wheel.name}".encode(), f"files/{spelled}".encode()))
    code, out, err = run("--index", index)
    assert (code, err) == (0, "")
    assert f"fits: {NAME} 1.0.0+cu130 (" in out
    assert expected(wheel, f"{server.url}/files/{spelled}") in out


def test_a_package_index_that_sends_whole_files_only(run: Run, server: WebServer, dist: Path) -> None:
    server.ranges = False
    index = serve_simple(server, dist, as_json=True)
    code, out, _ = run("--index", index, "--json")
    assert code == 0, "small wheels are downloaded"
    assert {one["size"] for one in json.loads(out)["wheels"]} == {path.stat().st_size for path in wheels(dist)}
    code, out, _ = run("--index", index, "--download", "0")
    assert code == 12
    name = wheels(dist)[1].name
    assert f"unknown: {name}: the server sends no parts of files: " in out
    assert re.search(r"4\.\d kB would have to be downloaded \(--download MB\)", out)
    for path in wheels(dist):
        server.pages[f"/files/{path.name}"] = ("x", path.read_bytes()[:-1] + b"x")
    code, out, _ = run("--index", index)
    assert (code, "is not the file that the index lists" in out) == (12, True)


@pytest.mark.parametrize(
    "place", ["http://[::1", "https://[x]/", "http://", "http://a:b/", "ftp://x/y", "file:///etc", ""]
)
def test_what_can_be_no_index(run: Run, place: str) -> None:
    code, _, err = run("--index", place, "--index", "http://a:99999/")
    assert code == 2
    assert err.count("--index: ") == 2


def test_a_package_index_without_hashes(run: Run, server: WebServer, dist: Path) -> None:
    code, out, _ = run("--index", serve_simple(server, dist, as_json=False, hashes=False))
    assert code == 12
    assert "gives no sha256" in out
    assert "pip install" not in out


def test_an_index_without_a_list_is_asked_by_name(run: Run, server: WebServer, dist: Path) -> None:
    index = serve_simple(server, dist, as_json=True)
    del server.pages["/simple/"]
    assert run("--index", index)[0] == 0
    code, out, _ = run("--index", index, host=FOR[2:])
    assert (code, "give --target" in out) == (1, True)


def test_an_index_of_everything_is_asked_by_name(
    run: Run, server: WebServer, dist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = serve_simple(server, dist, as_json=True)
    monkeypatch.setattr(simple_index, "MAX_LIST_BYTES", 100)
    assert run("--index", index)[0] == 0


def test_a_yanked_wheel_is_not_taken(run: Run, server: WebServer, dist: Path) -> None:
    index = serve_simple(server, dist, as_json=True)
    kind, body = server.pages[f"/simple/{NAME.replace('.', '-')}/"]
    document = json.loads(body)
    for file in document["files"]:
        file["yanked"] = "wrong kernels"
    server.pages[f"/simple/{NAME.replace('.', '-')}/"] = (kind, json.dumps(document).encode())
    code, out, _ = run("--index", index)
    assert code == 10
    assert f"fits, but may not be used: {NAME} 1.0.0" in out
    assert "the index has withdrawn it: wrong kernels" in out


def test_the_hub(
    run: Run, dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with WritableHub(tmp_path / "hub") as hub:
        hub.patch(monkeypatch, tmp_path / "home")
        for path, branch in zip(wheels(dist), ("a100", "h100", "next"), strict=True):
            assert cli.main(["push", str(path), f"hf://test-org/caches@{branch}", "--create"]) == 0
        capsys.readouterr()
        head = hub.branches["test-org/caches"].refs["h100"]
        before = len(hub.requests)
        code, out, _ = run("--hub", "hf://test-org/caches", "--json")
        assert code == 0
        answer = json.loads(out)
        best = wheels(dist)[1]
        assert answer["install"] == expected(best, f"{hub.endpoint}/test-org/caches/resolve/{head}/{best.name}")
        assert [one["standing"] for one in answer["wheels"]] == ["fits", "miss", "miss"]
        assert not [one for one in hub.requests[before:] if one.path.endswith(".whl")]
        hub.branches["test-org/caches"].private = True
        code, out, _ = run("--hub", "hf://test-org/caches@h100", "--json")
        assert json.loads(out)["install"] == f"model-cache pull hf://test-org/caches@{head} --install"
        assert run("--hub", "hf://test-org/caches@a100")[0] == 10
        assert run("--hub", "hf://test-org/caches@main")[0] == 5
        assert run("--hub", "hf://test-org/absent")[0] == 5
        assert run("--hub", "test-org/absent")[0] == 2


def test_the_hub_offline(
    run: Run, dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with WritableHub(tmp_path / "hub") as hub:
        hub.patch(monkeypatch, tmp_path / "home")
        assert cli.main(["push", str(wheels(dist)[1]), "hf://test-org/caches", "--create"]) == 0
        assert cli.main(["pull", "hf://test-org/caches", "--out", str(tmp_path / "out")]) == 0
        capsys.readouterr()
        head = hub.branches["test-org/caches"].refs["main"]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    code, out, _ = run("--hub", "hf://test-org/caches", "--json")
    assert (code, json.loads(out)["install"]) == (0, f"model-cache pull hf://test-org/caches@{head} --install")


def test_a_hub_with_a_damaged_manifest(
    run: Run, dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with WritableHub(tmp_path / "hub") as hub:
        hub.patch(monkeypatch, tmp_path / "home")
        assert cli.main(["push", str(wheels(dist)[1]), "hf://test-org/caches", "--create"]) == 0
        commit = hub.commit("test-org/caches", "main", {"manifest.json": b"{}"})
        capsys.readouterr()
        code, out, _ = run("--hub", "hf://test-org/caches")
        assert code == 12
        assert f"unknown: hf://test-org/caches@{commit}: " in out


def test_several_places(run: Run, server: WebServer, dist: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    wheels(dist)[0].rename(other / wheels(dist)[0].name)
    gone = tmp_path / "gone"
    code, out, _ = run("--index", other, "--index", gone, "--index", dist)
    assert code == 0
    assert f"not asked: {gone}: there is no such directory" in out
    code, out, _ = run("--index", other, "--index", gone)
    assert code == 5


# what it says


def test_nothing_for_the_model(run: Run, dist: Path) -> None:
    code, out, _ = run("--index", dist, model="test-org/Synthetic-1C")
    assert (code, out) == (5, f"none: no wheel for test-org/Synthetic-1C; there are wheels for {MODEL}\n")
    code, out, _ = run("--index", dist, "--json", model="test-org/Synthetic-1C")
    assert (code, json.loads(out)["other_models"], json.loads(out)["install"]) == (5, [MODEL], None)


def test_a_name_it_is_served_under(run: Run, dist: Path, server: WebServer) -> None:
    assert run("--index", dist, model="/models/synthetic")[0] == 0
    assert run("--index", serve_simple(server, dist, as_json=True), model="/models/synthetic")[0] == 0
    other = make_wheel(dist.parent / "other", changes={"model.id": "test-org/Renamed"})
    code, out, _ = run("--index", other.parent, model="test-org/Renamed")
    assert code == 10
    assert f"it is served as {MODEL}, /models/synthetic, not as test-org/Renamed" in out


def test_none_would_hit(run: Run, dist: Path) -> None:
    code, out, _ = run("--index", dist, host=("--target", "l4", "--engine", "vllm==0.33.0"))
    assert code == 10
    assert "install" not in out


def test_the_installed_engine(run: Run, dist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "model_cache.machine.host.read_host", lambda engine, target: make_host(engine=engine, python="3.12.1")
    )
    code, out, _ = run("--index", dist, host=())
    assert code == 10
    assert "python is 3.12.1, the wheel was built for 3.11.7" in out
    monkeypatch.setattr("model_cache.machine.host.read_host", lambda engine, target: make_host(engine=engine))
    assert run("--index", dist, host=())[0] == 0


def test_no_engine(run: Run, dist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = make_host(engine_version=None)
    monkeypatch.setattr("model_cache.machine.host.read_host", lambda engine, target: none)
    code, _, err = run("--index", dist, host=("--target", "l4"))
    assert (code, "give --engine" in err) == (2, True)


def test_a_host_that_requires_signatures(run: Run, dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public, _ = generate(tmp_path / "release")
    monkeypatch.setenv("MODEL_CACHE_TRUST", str(public))
    code, out, _ = run("--index", dist)
    assert code == 10
    assert "it is not signed, and this host requires a signature by a trusted key" in out
    sign_wheel(wheels(dist)[1], load_key(str(private)))
    code, out, _ = run("--index", dist, "--json")
    assert code == 0
    assert json.loads(out)["wheels"][0]["usable"]


def test_a_revoked_key(run: Run, dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, _, key = generate(tmp_path / "release")
    sign_wheel(wheels(dist)[1], load_key(str(private)))
    (tmp_path / "trusted").mkdir()
    (tmp_path / "trusted/revoked").write_text(f"{key}\n")
    monkeypatch.setenv("MODEL_CACHE_TRUST", str(tmp_path / "trusted"))
    code, out, _ = run("--index", dist)
    assert code in (10, 12)
    assert "revoked here" in out


# with the engine's command


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what a fake engine looks for."""
    monkeypatch.setenv(interpreter.VARIABLE, str(fake_look_up.interpreter(tmp_path)))
    monkeypatch.setenv("FAKE_RESULT", str(tmp_path / "result.json"))
    monkeypatch.setenv("FAKE_REPORT", str(tmp_path / "report.json"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # for the logs that are kept

    def set_answer(**changes: Any) -> None:
        answer = {
            "engine": vars(manifest_of().engine),
            "host_answers": HOST,
            "look_ups": [look_up()],
            "why_nothing": None,
            "flags": FLAGS,
            "options": OPTIONS,
        }
        (tmp_path / "result.json").write_text(json.dumps(answer | changes))

    set_answer()
    return set_answer


COMMAND = ("--", "vllm", "serve", MODEL, "--max-num-seqs", "1024")


@pytest.fixture
def checked(tmp_path: Path) -> Path:
    """A directory with a wheel that the fake engine looks for."""
    changes = {"factors": {"f": FACTORS}, "host_answers": HOST, "unkeyed": UNKEYED}
    return make_wheel(tmp_path / "checked", changes=changes).parent


def test_a_hit(run: Run, engine: Callable[..., None], checked: Path) -> None:
    code, out, _ = run("--index", checked, *COMMAND, host=FOR[:2])
    assert code == 0
    assert out.startswith(f"hit: {NAME} 1.0.0")


def test_a_miss_with_the_change_that_takes_it_away(run: Run, engine: Callable[..., None], checked: Path) -> None:
    engine(look_ups=[look_up(OTHER_KEY, scheduler__max_num_seqs="256")])
    command = ("--", "vllm", "serve", MODEL, "--max-num-seqs", "256")
    code, out, _ = run("--index", checked, *command, host=FOR[:2])
    assert code == 10
    assert "Give --max-num-seqs 1024." in out
    assert "install" not in out


def test_a_miss_that_the_plug_in_would_adopt(run: Run, engine: Callable[..., None], checked: Path) -> None:
    engine(look_ups=[look_up(OTHER_KEY, model__model="org/finetune")])
    command = ("--", "vllm", "serve", "org/finetune", "--max-num-seqs", "1024")
    code, out, _ = run("--index", checked, *command, host=FOR[:2])
    assert code == 10
    assert "\n  the plug-in would adopt this wheel, if config.json is the wheel's" in out
    [row] = json.loads(run("--index", checked, "--json", *command, host=FOR[:2])[1])["wheels"]
    assert (row["standing"], row["adoptable"]) == ("miss", True)


def test_an_engine_without_an_adapter(run: Run, engine: Callable[..., None], checked: Path) -> None:
    engine(error="vllm 9.9 is not known to this release; known: 0.33.0", unknown=True)
    code, out, _ = run("--index", checked, *COMMAND, host=FOR[:2])
    assert code == 12
    assert "vllm 9.9 is not known" in out


def test_the_engine_is_not_asked_about_nothing(run: Run, engine: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert run("--index", tmp_path / "empty", *COMMAND, host=FOR[:2])[0] == 5
    assert not (tmp_path / "report.json").exists()


# wrong usage


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "say where to look"),
        (("--index", ".", "--engine", "sglang==1"), "--engine must be"),
        (("--index", ".", "--target", "h101"), "h101"),
        (("--index", ".", "--timeout", "0"), "must be more than 0"),
        (("--index", ".", "--timeout", "soon"), "must be more than 0"),
        (("--index", ".", "--download", "-1"), "must be from 0"),
        (("--index", ".", "--engine", "vllm==0.33.0", *COMMAND), "not both"),
        (("--index", ".", "--", "vllm", "bench"), "no engine's command line"),
    ],
)
def test_wrong_usage(run: Run, words: tuple[str, ...], said: str) -> None:
    code, out, err = run(*words, host=())
    assert (code, out) == (2, "")
    assert said in err


def test_no_line_names_a_second_index(run: Run, dist: Path) -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", "model_cache", "find", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert "extra-index-url" not in help_text + run("--index", dist)[1]


# hostile places


def test_a_login_goes_to_its_host_alone_and_is_never_told(run: Run, server: WebServer, dist: Path) -> None:
    index = serve_simple(server, dist, as_json=True)
    server.login = "me:pa%ss"
    with WebServer() as stranger:
        name = wheels(dist)[1].name
        stranger.pages[f"/{name}"] = server.pages[f"/files/{name}"]
        server.redirects[f"/files/{name}"] = f"{stranger.url}/{name}"
        code, out, err = run("--index", index.replace("http://", "http://me:pa%25ss@"))
        assert code == 0, out
        assert "pa%" not in out + err
        assert all(login for _, _, login in server.requests)
        assert stranger.requests
        assert not any(login for _, _, login in stranger.requests)
    code, out, _ = run("--index", index)
    assert (code, "wants a login" in out) == (1, True)


def test_a_login_in_netrc(run: Run, server: WebServer, dist: Path, tmp_path: Path) -> None:
    index = serve_simple(server, dist, as_json=True)
    server.login = "me:secret"
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    assert run("--index", index)[0] == 0


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_a_redirect_leads_to_web_servers_only(run: Run, server: WebServer, target: str) -> None:
    server.redirects["/simple/"] = target
    server.redirects["/simple/catalogue.json"] = target
    code, out, _ = run("--index", f"{server.url}/simple/")
    assert code == 1
    assert "leads" in out


def test_a_redirect_in_a_circle(run: Run, server: WebServer) -> None:
    server.redirects["/x/catalogue.json"] = f"{server.url}/x/catalogue.json"
    assert run("--index", f"{server.url}/x/")[0] == 1


def test_a_server_that_drips(run: Run, server: WebServer) -> None:
    server.pages["/catalogue.json"] = ("application/json", b"{" + b" " * 1000)
    server.drip.add("/catalogue.json")
    code, out, _ = run("--index", server.url, "--timeout", "0.5")
    assert code == 1
    assert "no whole answer within 0.5 s" in out


def test_a_page_without_an_end(server: WebServer) -> None:
    server.pages["/x"] = ("text/html", b"x" * 1000)
    assert web.Web().page(f"{server.url}/x", 1000).body == b"x" * 1000
    with pytest.raises(DamagedError, match="larger than 999 bytes"):
        web.Web().page(f"{server.url}/x", 999)


HOSTILE_PROJECT_PAGES = {
    "no list": {"files": 1},
    "no URL": {"files": [{"filename": f"{NAME.replace('-', '_')}-1-py3-none-any.whl", "url": "http://["}]},
    "another scheme": {
        "files": [
            {
                "filename": f"{NAME.replace('-', '_')}-1-py3-none-any.whl",
                "url": "file:///etc/passwd",
                "hashes": {"sha256": "0" * 64},
            }
        ]
    },
    "a control character": {
        "files": [
            {
                "filename": f"{NAME.replace('-', '_')}-1-py3-none-any.whl",
                "url": "http://127.0.0.1/\x1b[2J",
                "hashes": {"sha256": "0" * 64},
            }
        ]
    },
    "things that are no files": {"files": [1, {}, {"filename": 1, "url": []}, {"filename": "../x.whl", "url": "x"}]},
}


@pytest.mark.parametrize("page", HOSTILE_PROJECT_PAGES.values(), ids=HOSTILE_PROJECT_PAGES.keys())
def test_a_hostile_project_page(run: Run, server: WebServer, dist: Path, page: dict[str, Any]) -> None:
    index = serve_simple(server, dist, as_json=True)
    name = f"/simple/{NAME.replace('.', '-')}/"
    server.pages[name] = (JSON, json.dumps({"meta": {"api-version": "1.0"}, **page}).encode())
    code, out, _ = run("--index", index)
    assert code in (3, 10, 12)
    assert "\x1b" not in out
    assert "pip install" not in out


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"meta": {"api-version": "2.0"}, "projects": []}', b"[" * 9999])
def test_a_list_that_is_none(run: Run, server: WebServer, body: bytes) -> None:
    server.pages["/simple/"] = (JSON, body)
    code, out, _ = run("--index", f"{server.url}/simple/")
    assert code == 3
    assert "not asked" in out


def test_html_that_keeps_a_parser_busy(run: Run, server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simple_index, "PARSE_SECONDS", 0.0001)
    server.pages["/simple/"] = ("text/html", b"<a>x</a>" * 100_000)
    code, out, _ = run("--index", f"{server.url}/simple/")
    assert (code, "cannot be read within" in out) == (3, True)


def test_a_catalogue_that_is_none(run: Run, server: WebServer) -> None:
    server.pages["/catalogue.json"] = ("application/json", b'{"schema_version": 1}')
    code, out, _ = run("--index", server.url)
    assert (code, "is not a valid catalogue" in out) == (3, True)


def test_a_manifest_that_the_catalogue_does_not_mean(run: Run, server: WebServer, dist: Path, tmp_path: Path) -> None:
    url = serve_site(server, dist, tmp_path)
    for path in [path for path in server.pages if path.endswith(".manifest.json")]:
        kind, body = server.pages[path]
        server.pages[path] = (kind, body + b" ")
    code, out, _ = run("--index", url)
    assert code == 12
    assert "is not the one that the catalogue lists" in out


def test_a_catalogue_with_another_wheel_s_manifest(run: Run, server: WebServer, dist: Path, tmp_path: Path) -> None:
    url = serve_site(server, dist, tmp_path)
    kind, body = server.pages["/catalogue.json"]
    document = json.loads(body)
    one, other, _ = document["wheels"]
    one["manifest"], other["manifest"] = other["manifest"], one["manifest"]
    server.pages["/catalogue.json"] = (kind, json.dumps(document).encode())
    code, out, _ = run("--index", url)
    assert code == 12
    assert out.count("is that of model-cache-synthetic-1b-") == 2


def broken(server: WebServer, dist: Path, change: Callable[[bytes], bytes]) -> ModelCacheError:
    """What is said of a remote wheel whose bytes were changed."""
    path = wheels(dist)[1]
    server.pages[f"/{path.name}"] = ("x", change(path.read_bytes()))
    with pytest.raises(ModelCacheError) as caught:
        remote_wheel.RemoteWheel(path.name, f"{server.url}/{path.name}", web.Web())
    return caught.value


def test_remote_bytes_that_are_no_wheel(server: WebServer, dist: Path) -> None:
    assert isinstance(broken(server, dist, lambda data: data[:-1]), DamagedError)
    assert isinstance(broken(server, dist, lambda data: data + b"x"), DamagedError)
    assert isinstance(broken(server, dist, lambda data: b"x" * 200_000), DamagedError)


@pytest.mark.parametrize(
    "said", ["bytes 0-9/10", "bytes 5-1/99999", "bytes 0-3974/9999999999999", "bytes */5", "x", "bytes 0-3974/3"]
)
def test_a_server_that_lies_about_parts(server: WebServer, dist: Path, said: str) -> None:
    server.content_range = said
    assert isinstance(broken(server, dist, lambda data: data), DamagedError)


def test_a_remote_wheel_is_read_as_a_local_one(server: WebServer, tmp_path: Path) -> None:
    big = os.urandom(700_000)
    path = make_wheel(tmp_path, {f"torch_compile_cache/torch_aot_compile/{'3' * 64}": {"rank_0_0/model": big}})
    server.pages["/w"] = ("x", path.read_bytes())
    with remote_wheel.RemoteWheel(path.name, f"{server.url}/w", web.Web()) as payload:
        digest = hashlib.sha256(big).hexdigest()
        assert payload.read(f"blobs/{digest[:2]}/{digest}", len(big)) == big
        assert payload.size == path.stat().st_size
        asked = len(server.requests)
        assert payload.read("manifest.json", 1 << 20)
        assert len(server.requests) == asked, "what was read is kept"


def test_a_remote_wheel_that_wants_too_much(server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = os.urandom(700_000)
    path = make_wheel(tmp_path, {f"torch_compile_cache/torch_aot_compile/{'3' * 64}": {"rank_0_0/model": big}})
    server.pages["/w"] = ("x", path.read_bytes())
    monkeypatch.setattr(remote_wheel, "MAX_BYTES", 300_000)
    with remote_wheel.RemoteWheel(path.name, f"{server.url}/w", web.Web()) as payload:
        digest = hashlib.sha256(big).hexdigest()
        with pytest.raises(DamagedError, match="bytes are needed"):
            payload.read(f"blobs/{digest[:2]}/{digest}", len(big))


def test_a_remote_wheel_that_is_replaced_meanwhile(server: WebServer, tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {f"torch_compile_cache/torch_aot_compile/{'3' * 64}": {"m": os.urandom(700_000)}})
    server.pages["/w"] = ("x", path.read_bytes())
    with remote_wheel.RemoteWheel(path.name, f"{server.url}/w", web.Web()) as payload:
        server.pages["/w"] = ("x", b"y" * 500_000)
        [(name, size)] = [(name, size) for name, size in payload.files().items() if "blobs" in name]
        with pytest.raises(DamagedError, match="was replaced"):
            payload.read(name, size)


# names


def test_names_of_projects_that_may_be_meant() -> None:
    names = ["numpy", "Model_Cache_Llama.3-h100", "model-cache-llama-3-8b-a100", "model-cache-org-llama-3-l4"]
    assert offers.may_be_for(names, Wanted("org/Llama-3")) == [
        "model-cache-llama-3-8b-a100",
        "model-cache-llama-3-h100",
        "model-cache-org-llama-3-l4",
    ]
    assert offers.may_be_for(names, Wanted("/models/x")) == sorted(
        ["model-cache-llama-3-8b-a100", "model-cache-llama-3-h100", "model-cache-org-llama-3-l4"]
    )
    assert H100["name"] == FOR[1]
