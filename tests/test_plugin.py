from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

import fake_driver
from factories import (
    A100,
    BIG,
    ENTRY_ONE,
    H100,
    NAME,
    expected_files,
    files_of,
    install,
    make_engine,
    make_host,
    make_site,
    make_wheel,
    run,
    sha,
)
from model_cache import plugin
from model_cache.engine import stamp, startup
from model_cache.store import state
from model_cache.store.removal import remove
from model_cache.store.root import Root
from model_cache.wheel import discovery, verify
from model_cache.wheel.names import data_package
from model_cache.wheel.verify import blob_path

REPOSITORY = Path(__file__).parents[1]
PACKAGE = data_package(NAME)
PYTHON = ".".join(map(str, sys.version_info[:3]))
HERE = {"engine.python": PYTHON, "engine.platform": f"linux_{os.uname().machine}"}


@pytest.fixture(scope="session")
def driver_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_driver.build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def site(tmp_path: Path, root: Path, driver_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with an engine, an H100, and one installed wheel that fits."""
    site = make_site(tmp_path, changes=HERE)
    monkeypatch.setattr(sys, "path", [str(site), str(make_engine(tmp_path / "engine")), *sys.path])
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver_folder))
    monkeypatch.setenv("FAKE_GPUS", fake_driver.spec(H100))
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(root))
    for name in ("MODEL_CACHE_ASSUME_TARGET", "MODEL_CACHE_DISABLE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return site


@pytest.fixture
def closer(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows each time the plug-in had to look closer."""
    calls: list[str] = []
    real = startup.deploy_installed

    def counted(*arguments: object) -> None:
        calls.append("looked")
        real(*arguments)

    monkeypatch.setattr(startup, "deploy_installed", counted)
    return calls


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What the plug-in has logged since the last call: (level, text)."""
    found = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert {record.name for record in caplog.records} <= {"vllm.model_cache"}
    caplog.clear()
    return found


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "vllm.model_cache")


def test_what_fits_is_deployed_with_one_line(site: Path, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    plugin.register()
    assert files_of(root) == expected_files()
    text = f"model-cache: deployed {NAME} 1.0.0 (2 entries, 8.2 kB) for h100-sxm5-80gb"
    assert lines(caplog) == [("INFO", f"{text}; not signed: intact, origin unknown")]


def test_a_site_whose_path_is_no_text_is_deployed_once(
    site: Path, root: Path, caplog: pytest.LogCaptureFixture, closer: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = os.fsdecode(os.fsencode(site) + b"\xff")
    site.rename(raw)
    monkeypatch.setattr(sys, "path", [raw, *sys.path[1:]])
    assert len(discovery.scan([raw, "/no\0path", "/no\ud800path"]).wheels) == 1
    plugin.register()
    assert [level for level, _ in lines(caplog)] == ["INFO"]
    plugin.register()
    assert (lines(caplog), closer) == ([], ["looked"])
    with Root.open(str(root)) as opened:
        assert state.require(opened, NAME).site == raw
    assert remove(NAME, str(root)).left == ()
    assert not files_of(root)


def test_files_of_others_where_a_wheel_belongs_are_an_alarm_at_every_start(
    site: Path, root: Path, caplog: pytest.LogCaptureFixture, closer: list[str]
) -> None:
    file = root / ENTRY_ONE / "rank_0_0/model"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"compiled here")
    plugin.register()
    deployed, other = lines(caplog)
    assert deployed[0] == "INFO"
    assert other[0] == "WARNING"
    assert f"not deployed: another wheel's or the engine's files are in {ENTRY_ONE}" in other[1]
    # Every pod's log says it, not only that of the first on a shared root; and nothing is read again for it.
    plugin.register()
    assert (lines(caplog), closer) == ([other], ["looked"])
    shutil.rmtree(root / ENTRY_ONE)
    plugin.register()
    assert files_of(root) == expected_files()
    plugin.register()
    assert [level for level, _ in lines(caplog)] == ["INFO"]


def test_the_next_start_says_and_does_nothing(
    site: Path, root: Path, caplog: pytest.LogCaptureFixture, closer: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.register()
    lines(caplog)
    monkeypatch.setattr(verify, "hash_file", None)
    monkeypatch.setattr(subprocess, "run", None)
    plugin.register()
    assert lines(caplog) == []
    assert closer == ["looked"]


def test_without_a_wheel_nothing_is_written(
    site: Path, root: Path, monkeypatch: pytest.MonkeyPatch, closer: list[str]
) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(site)])
    plugin.register()
    assert not root.exists()
    assert closer == []


@pytest.mark.parametrize("value", ["1", "yes"])
def test_it_can_be_turned_off(site: Path, root: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("MODEL_CACHE_DISABLE", value)
    plugin.register()
    assert not root.exists()
    monkeypatch.setenv("MODEL_CACHE_DISABLE", "0")
    plugin.register()
    assert root.exists()


def test_a_wheel_for_another_gpu_is_refused_with_both_names(
    site: Path, root: Path, caplog: pytest.LogCaptureFixture, closer: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GPUS", fake_driver.spec(A100))
    root.mkdir()
    plugin.register()
    ((level, text),) = lines(caplog)
    assert level == "WARNING"
    assert text.startswith(
        f"model-cache: {NAME} 1.0.0 does not fit this host: device_name is 'NVIDIA A100-SXM4-80GB', "
    )
    assert "the wheel was built for 'NVIDIA H100 80GB HBM3'" in text
    assert files_of(root) == {}
    # The next start knows that, says it again, and asks no GPU.
    monkeypatch.setattr(subprocess, "run", None)
    plugin.register()
    assert lines(caplog) == [(level, text)]
    assert closer == ["looked"]
    # A process that the server has started keeps quiet.
    monkeypatch.setattr(plugin, "_is_main_process", lambda: False)
    plugin.register()
    assert lines(caplog) == []


def test_only_the_process_that_the_user_started_is_the_main_one() -> None:
    import multiprocessing

    assert plugin._is_main_process()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(plugin._is_main_process) is False


def test_an_assumed_target_is_taken_from_the_environment(
    site: Path, root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GPUS", "")
    plugin.register()
    assert "GPU is not visible (the CUDA driver sees no GPU), the wheel was built for h100" in lines(caplog)[0][1]
    monkeypatch.setenv("MODEL_CACHE_ASSUME_TARGET", "h100-sxm5-80gb")
    plugin.register()
    assert files_of(root) == expected_files()


CHANGES = {
    "another GPU mask": lambda site, root, patch: patch.setenv("CUDA_VISIBLE_DEVICES", "0"),
    "another driver": lambda site, root, patch: patch.setenv("LD_LIBRARY_PATH", os.environ["LD_LIBRARY_PATH"] + ":/x"),
    "another torch": lambda site, root, patch: make_engine(site.parent / "engine", torch="2.14.1+cu130"),
    "a new wheel": lambda site, root, patch: (
        make_site(
            site.parent / "b", contents={"c/d": {"e": b"f"}}, name="model-cache-b-h100-sxm5-80gb", changes=HERE
        ).rename(site.parent / "b-site")
        and sys.path.insert(0, str(site.parent / "b-site"))
    ),
    "the wheel installed again": lambda site, root, patch: os.utime(site / PACKAGE / "manifest.json", (1, 1)),
    "a deployed file changed": lambda site, root, patch: (root / ENTRY_ONE / "rank_0_0/model").write_bytes(b"x"),
    "a deployed file gone": lambda site, root, patch: (root / ENTRY_ONE / "rank_0_0/model").unlink(),
    "another root": lambda site, root, patch: patch.setenv("VLLM_CACHE_ROOT", str(root) + "2"),
    "a damaged stamp": lambda site, root, patch: [
        path.write_bytes(b"\xff") for path in (root / ".model-cache/stamps").iterdir()
    ],
}


@pytest.mark.parametrize("change", CHANGES)
def test_after_any_change_it_looks_closer_once(
    site: Path, root: Path, closer: list[str], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    plugin.register()
    plugin.register()
    assert closer == ["looked"]
    CHANGES[change](site, root, monkeypatch)
    plugin.register()
    plugin.register()
    assert closer == ["looked", "looked"]
    if change != "another torch":
        assert expected_files().items() <= files_of(Path(os.environ["VLLM_CACHE_ROOT"])).items()


def test_a_stamp_is_for_one_kind_of_host_also_when_two_share_a_file_name(root: Path) -> None:
    path = root / ".model-cache/stamps" / stamp.file_name("one")
    path.parent.mkdir(parents=True)
    path.write_text(stamp.text("one", [], ["said"]) or "")
    assert stamp.read(str(root), "one", []) == ("said",)
    path.write_text(stamp.text("two", [], []) or "")
    assert stamp.read(str(root), "one", []) is None
    assert stamp.text("one", ["a\nb"], []) is None


def test_damage_in_the_cache_is_mended_with_a_warning(site: Path, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    plugin.register()
    lines(caplog)
    (root / ENTRY_ONE / "rank_0_0/model").write_bytes(b"x")
    plugin.register()
    assert lines(caplog) == [("WARNING", f"model-cache: {NAME} 1.0.0: restored {ENTRY_ONE}, which had been changed")]


def test_a_damaged_wheel_is_told_at_every_start_until_it_is_mended(
    site: Path, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root.mkdir()
    blob = site / PACKAGE / blob_path(sha(BIG))
    blob.write_bytes(bytes(len(BIG)))
    for _ in range(2):
        plugin.register()
        ((level, text),) = lines(caplog)
        assert level == "WARNING"
        assert "does not agree with its manifest" in text
        assert files_of(root) == {}
    blob.write_bytes(BIG)
    plugin.register()
    assert files_of(root) == expected_files()


def test_one_bad_wheel_does_not_keep_the_others_away(
    site: Path, root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install(make_wheel(tmp_path / "dist", name="model-cache-a", changes=HERE), site)
    (site / "model_cache_a/manifest.json").write_text("{")
    install(make_wheel(tmp_path / "dist", name="model-cache-z", changes={**HERE, "engine.name": "sglang"}), site)
    plugin.register()
    assert files_of(root) == expected_files()
    assert [level for level, _ in lines(caplog)] == ["WARNING", "INFO"]  # nothing about another engine's wheel


@pytest.mark.parametrize("where", ["root is a file", "root is read-only", "no home", "state is damaged"])
def test_a_bad_place_is_one_line_and_no_error(
    site: Path, root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "root is a file":
        root.touch()
    if where == "root is read-only":
        monkeypatch.setenv("VLLM_CACHE_ROOT", "/proc/vllm")
    if where == "no home":
        monkeypatch.delenv("VLLM_CACHE_ROOT")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setenv("HOME", "/")
    if where == "state is damaged":
        plugin.register()
        lines(caplog)
        (root / ".model-cache" / f"{NAME}.json").write_text("{")
        (root / ENTRY_ONE / "rank_0_0/model").unlink()
    plugin.register()
    ((level, text),) = lines(caplog)
    assert level == "WARNING"
    assert "\n" not in text


@pytest.mark.parametrize(
    "error", [RuntimeError("two\nlines"), MemoryError(), AssertionError(), GeneratorExit(), OSError(5, "x")]
)
def test_whatever_happens_the_engine_goes_on(
    site: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr(startup, "deploy_installed", failing)
    plugin.register()
    ((level, text),) = lines(caplog)
    assert level == "WARNING"
    assert text.startswith(f"model-cache: nothing deployed: {type(error).__name__}")
    assert "\n" not in text


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_end_that_was_asked_for_is_not_held_up(
    site: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr(startup, "deploy_installed", failing)
    with pytest.raises(error):
        plugin.register()


def test_it_gives_up_when_it_takes_too_long(
    site: Path, root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = verify.copy_hash

    def slow(*arguments: object) -> object:
        time.sleep(0.2)
        return real(*arguments)

    monkeypatch.setattr(verify, "copy_hash", slow)
    monkeypatch.setattr(startup.deploy_installed, "__defaults__", (0.3,))
    start = time.perf_counter()
    plugin.register()
    assert time.perf_counter() - start < 2
    assert lines(caplog)[0][1] == f"model-cache: {NAME}: gave up after 0.3 s, the engine starts with what is there"
    assert files_of(root) == {}


def test_a_hanging_driver_does_not_hang_the_engine(
    site: Path, root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir()
    monkeypatch.setenv("FAKE_SLEEP", "60")
    monkeypatch.setattr(startup.deploy_installed, "__defaults__", (0.5,))
    start = time.perf_counter()
    plugin.register()
    assert time.perf_counter() - start < 3
    assert "did not answer within" in lines(caplog)[0][1]
    # It may answer the next time.
    monkeypatch.delenv("FAKE_SLEEP")
    plugin.register()
    assert "deployed" in lines(caplog)[0][1]


def test_stamps_of_hosts_that_are_gone_do_not_pile_up(site: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(25):
        monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", str(number))
        plugin.register()
    assert len(list((root / ".model-cache/stamps").iterdir())) == 16
    remove(NAME, str(root))
    assert list(root.iterdir()) == []


def test_vllms_logger_shows_the_lines() -> None:
    """vllm 0.33.0 configures "vllm" with a handler and without propagation; ours must be below it."""
    parent = logging.getLogger("vllm")
    assert logging.getLogger(plugin.LOGGER).parent is parent
    assert plugin.LOGGER.startswith("vllm.")


def test_the_entry_point_names_the_function() -> None:
    from importlib.metadata import entry_points

    (found,) = (point for point in entry_points(group="vllm.general_plugins") if point.name == "model_cache")
    assert found.load() is plugin.register


SOMEBODY: dict[str, Any] = {
    "user": 12345,
    "group": 0,
    "extra_groups": [],
    "cwd": "/",
    "capture_output": True,
    "text": True,
}


def interpreter_for_somebody() -> tuple[str, str]:
    """An interpreter that another user may run, and its version."""
    for path in (sys.executable, sys._base_executable, "/usr/bin/python3"):
        try:
            code = "import platform; print(platform.python_version())"
            done = subprocess.run([path, "-I", "-c", code], env={}, check=True, **SOMEBODY)
        except (OSError, subprocess.CalledProcessError):
            continue
        if tuple(map(int, done.stdout.split(".")[:2])) >= (3, 11):
            return path, done.stdout.strip()
    pytest.skip("no interpreter that another user may run")


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")
def test_a_service_user_reads_what_root_has_deployed(driver_folder: Path) -> None:
    """Deployed by root in an image under umask 077, started by a random user id with HOME=/ and no right to write."""
    python, version = interpreter_for_somebody()
    with tempfile.TemporaryDirectory() as folder:
        public = Path(folder)
        site = make_site(public, changes={**HERE, "engine.python": version})
        make_engine(public / "engine")
        shutil.copytree(driver_folder, public / "driver")
        shutil.copytree(REPOSITORY / "hatch_plugin", public / "source")
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        old = os.umask(0o077)
        try:
            run(site, public / "root", make_host(python=version, platform=HERE["engine.platform"]))
        finally:
            os.umask(old)
        code = (
            "import logging; logging.basicConfig(level=20); from model_cache.plugin import register; register();"
            f"print(len(open('{public}/root/{ENTRY_ONE}/rank_0_0/model', 'rb').read()))"
        )
        environment = {
            "PYTHONPATH": os.pathsep.join(str(public / name) for name in ("source", "site", "engine")),
            "LD_LIBRARY_PATH": str(public / "driver"),
            "FAKE_GPUS": fake_driver.spec(H100),
            "VLLM_CACHE_ROOT": str(public / "root"),
            "HOME": "/",
        }
        done = subprocess.run([python, "-c", code], env=environment, check=False, **SOMEBODY)
        assert done.stdout == "11\n"
        (line,) = done.stderr.splitlines()
        assert "cannot be written to, and vLLM writes beside what it loads; `model-cache deploy --overlay DIR`" in line
        (public / "root" / ENTRY_ONE / "rank_0_0/model").unlink()
        done = subprocess.run([python, "-c", code.partition("print")[0]], env=environment, check=False, **SOMEBODY)
        assert done.returncode == 0
        (line,) = done.stderr.splitlines()
        assert "permission denied; run as the user that owns it" in line


def test_all_processes_of_a_server_at_once(site: Path, root: Path) -> None:
    code = "import logging; logging.basicConfig(level=20); from model_cache.plugin import register; register()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    children = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    output = [child.communicate(timeout=60)[1] for child in children]
    assert [child.returncode for child in children] == [0] * 6
    assert sum("deployed" in text for text in output) == 1, output
    assert not any("WARNING" in text for text in output)
    assert files_of(root) == expected_files()


def test_nothing_to_do_costs_under_20_ms() -> None:
    command = [sys.executable, str(REPOSITORY / "benchmarks/plugin_noop.py"), "--runs", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    # the median of the processor's time: this machine may be busy with other tests
    assert result["nothing_to_do_processor_ms"] < 20, result


def test_the_fast_path_imports_nothing_heavy(site: Path, root: Path) -> None:
    code = (
        "import importlib.metadata, sys; before = set(sys.modules);"
        "from model_cache.plugin import register; register();"
        "print(*sorted(set(sys.modules) - before))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert imported - {"__future__"} == {
        "model_cache",
        "model_cache.engine",
        "model_cache.store",
        "model_cache.wheel",
        "model_cache.wheel.discovery",
        "model_cache.errors",
        "model_cache.store.location",
        "model_cache.wheel.names",
        "model_cache.engine.on_import",
        "model_cache.plugin",
        "model_cache.engine.stamp",
    }


@pytest.mark.parametrize("stderr", ["closed", "/dev/full"])
def test_a_stderr_that_cannot_be_written_ends_no_server(site: Path, tmp_path: Path, stderr: str) -> None:
    """Breaker's finding: the line about a failure raised out of register()."""
    redirect = "2>&-" if stderr == "closed" else f"2>{stderr}"
    code = "from model_cache.plugin import register; register(); print('served')"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path]), "VLLM_CACHE_ROOT": ""}
    command = ["sh", "-c", f'exec "$0" -c "{code}" {redirect}', sys.executable]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "served")


def test_a_stamp_that_is_no_file_holds_nothing_up(site: Path, root: Path) -> None:
    """Breaker's finding: a FIFO in its place hung every start."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", "from model_cache.plugin import register; register()"]
    subprocess.run(command, env=environment, check=True, timeout=60)
    [stamp] = (root / ".model-cache" / "stamps").iterdir()
    for damage in ("fifo", "line"):
        text = stamp.read_text() if stamp.is_file() else ""
        stamp.unlink()
        if damage == "fifo":
            os.mkfifo(stamp)
        else:
            stamp.write_text(f"{text}f \n")
        subprocess.run(command, env=environment, check=True, timeout=20)
        if stamp.is_fifo():
            stamp.unlink()
            subprocess.run(command, env=environment, check=True, timeout=20)
