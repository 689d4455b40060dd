"""The whole story, played once: from a serve line to a fleet that starts warm, is upgraded, and goes back.

Everything is on this machine and real: vLLM, pip, uv, twine, pypiserver, devpi, huggingface_hub and the command line.
Only the GPU is pretended, and the server of the Hub is a fake. Engine processes: five compiles (two at a time where
there is room), two questions, three starts.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.conftest import MODELS
from engine.hosts import Host
from fakes.writable_hub import WritableHub
from package_indexes import PASSWORD, USER, FileServer, devpi, environment, pypiserver, run

pytestmark = pytest.mark.engine

H100, A100 = "h100-sxm5-80gb", "a100-sxm4-80gb"
NAME = f"model-cache-llama-tiny-{H100}"
NAMES = {f"model-cache-{model}-{target}" for model in ("llama-tiny", "qwen3-tiny") for target in (H100, A100)}
ARGUMENTS = ("--max-model-len", "512")
SERVE = ("vllm", "serve", "./llama-tiny", *ARGUMENTS)
HUB = "hf://example/caches"
SECOND_MODEL = """
[models."example/qwen3-tiny"]
config = "models/qwen3-tiny"
served-as = ["example/qwen3-tiny", "./qwen3-tiny"]
serve-args = ["--max-model-len", "512"]
"""


def answer_of(command: list[str], variables: dict[str, str], directory: Path) -> dict[str, Any]:
    """What a command with --json says; it succeeds, and says nothing else."""
    done = subprocess.run(
        command, cwd=directory, env=variables, capture_output=True, text=True, timeout=900, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@dataclass(frozen=True)
class Release:
    """Where wheels are made, signed and published: a machine with the engine and all tools."""

    home: Path
    own_wheel: Path

    @property
    def project(self) -> Path:
        """The matrix."""
        return self.home / "caches"

    @property
    def site(self) -> Path:
        """The static index."""
        return self.home / "site"

    def told(self, *words: str | Path, **variables: str) -> dict[str, Any]:
        """The answer of a `model-cache` command in this home."""
        command = [sys.executable, "-m", "model_cache", *map(str, words)]
        return answer_of(command, environment(self.home, **variables), self.home)

    def new(self) -> None:
        """A matrix from the command that serves the first model."""
        self.home.mkdir()
        config, served = ("--config", MODELS / "llama-tiny"), ("--served-as", "./llama-tiny")
        line = ("vllm", "serve", "example/llama-tiny", *ARGUMENTS)
        asked = ("--target", H100, "--engine", "vllm==0.33.0", *config, *served, "--json", "--", *line)
        assert self.told("matrix", "new", "caches", *asked)["written"]

    def edit(self, old: str, new: str) -> None:
        """As by hand."""
        matrix = self.project / "matrix.toml"
        assert matrix.read_text().count(old) == 1
        matrix.write_text(matrix.read_text().replace(old, new))

    def add_the_second_model(self) -> None:
        """For both targets."""
        shutil.copytree(MODELS / "qwen3-tiny", self.project / "models" / "qwen3-tiny")
        self.edit(f'targets = ["{H100}"]', f'targets = ["{H100}", "{A100}"]')
        matrix = self.project / "matrix.toml"
        matrix.write_text(matrix.read_text() + SECOND_MODEL)

    def build(self, *words: str, **variables: str) -> dict[str, str]:
        """`matrix build`: what became of each wheel."""
        answer = self.told("matrix", "build", self.project, "--json", *words, **variables)
        return {wheel["name"]: wheel["state"] for wheel in answer["wheels"]}

    def wheels(self) -> dict[str, Path]:
        """name==version → file, for every wheel that was built."""
        found = {}
        for path in sorted((self.project / "dist").glob("*.whl")):
            name, version = path.name.split("-")[:2]
            found[f"{name.replace('_', '-')}=={version}"] = path
        return found

    def sign(self) -> None:
        """Every wheel; those that are signed stay as they are."""
        self.told("sign", self.project / "dist", "--key", "release.pem", "--json")

    def build_site(self, url: str) -> None:
        """The static index of every wheel and of this project's own, none without our signature."""
        own = self.own_wheel.parent
        words = ("--out", self.site, "--url", url, "--trust", "release.pub", "--json")
        self.told("index", "build", self.project / "dist", own, *words)

    def twine(self, url: str, *files: Path) -> None:
        """Upload with twine."""
        login = ("--non-interactive", "-u", USER, "-p", PASSWORD, "--repository-url", url)
        done = run(sys.executable, "-m", "twine", "upload", *login, *files, home=self.home)
        assert done.returncode == 0, done.stdout

    def uv_publish(self, url: str, *files: Path) -> None:
        """Upload with uv."""
        login = ("--username", USER, "--password", PASSWORD, "--keyring-provider", "disabled")
        command = (sys.executable, "-m", "uv", "publish", "--publish-url", url, "--trusted-publishing", "never")
        done = run(*command, *login, *files, home=self.home)
        assert done.returncode == 0, done.stdout

    def push(self, hub: WritableHub, wheel: Path) -> str:
        """To the branch of its own that each wheel has; returns the commit."""
        settings = hub.settings(self.home / "hf")
        commit: str = self.told("push", wheel, f"{HUB}@{branch_of(wheel)}", "--create", "--json", **settings)["commit"]
        return commit

    def find(self, model: str, target: str, *place: str, **variables: str) -> tuple[str, str]:
        """What `find` proposes in a place: name==version, and sha256, to which its install line is pinned."""
        words = ("find", model, "--target", target, "--engine", "vllm==0.33.0", "--json", *place)
        answer = self.told(*words, **variables)
        best = answer["wheels"][0]
        assert best["standing"] == "fits"
        assert f"#sha256={best['sha256']}" in answer["install"]
        return f"{best['name']}=={best['version']}", best["sha256"]


def branch_of(wheel: Path) -> str:
    """As the guide advises."""
    return wheel.name.split("-")[0].removeprefix("model_cache_").replace("_", "-")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Serving(Host):
    """A serving host: an environment of its own that sees the engine and nothing of this project."""

    @classmethod
    def at(cls, place: Path, engine: str) -> Serving:
        """Make it. The engine is seen through a .pth file, with the .pth files that it has itself: installing it once
        more would take minutes."""
        venv.create(place / "venv", with_pip=False)
        python = place / "venv" / "bin" / "python"
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        done = subprocess.run([engine, "-I", "-c", ask], stdout=subprocess.PIPE, text=True, check=True)
        [own] = (place / "venv" / "lib").glob("python*/site-packages")
        (own / "engine.pth").write_text(f"import site; site.addsitedir({done.stdout.strip()!r})\n")
        command = python.with_name("vllm")
        start = "from vllm.entrypoints.cli.main import main"
        command.write_text(f"#!{python}\nimport sys\n{start}\nif __name__ == '__main__':\n    sys.exit(main())\n")
        command.chmod(0o755)
        host = cls(python, place)
        for directory in (place / "home", host.work):
            directory.mkdir()
        shutil.copytree(MODELS / "llama-tiny", host.work / "llama-tiny")
        return host

    def told(self, *words: str) -> dict[str, Any]:
        """The answer of a `model-cache` command, where the engine is started."""
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        variables = {"PATH": path, "HOME": str(self.place / "home"), "VLLM_CACHE_ROOT": str(self.cache_root)}
        command = [str(self.python.with_name("model-cache")), *words]
        return answer_of(command, variables, self.work)

    def pip(self, requirements: str) -> None:
        """`pip install --require-hashes` of these lines."""
        file = self.place / "requirements.txt"
        file.write_text(requirements)
        command = (sys.executable, "-m", "pip", "--python", self.python, "install", "--no-input", "--require-hashes")
        done = run(*command, "-r", file, home=self.place / "home")
        assert done.returncode == 0, done.stdout

    def start(self) -> None:
        """`vllm serve` as always: it loads what is deployed, and compiles nothing."""
        on = {"MODEL_CACHE_DISABLE": "0", "MODEL_CACHE_ASSUME_TARGET": H100, "VLLM_FORCE_AOT_LOAD": "1"}
        report = self.serve("./llama-tiny", H100, arguments=ARGUMENTS, environment=on)
        assert report.warm, f"{report}\n{(self.place / 'engine.log').read_text()[-4000:]}"
        assert (report.loaded, report.inductor_compiles, report.ptxas_runs) == (1, 0, 0)

    def status(self) -> tuple[str, bool, bool]:
        """Version, used and intact, of the one wheel that is deployed."""
        [wheel] = self.told("status", "--json")["wheels"]
        assert wheel["name"] == NAME
        return wheel["version"], wheel["used"], wheel["intact"]


def requirements(site: Path, wanted: str) -> str:
    """The lines of the catalogue's page to install a wheel with hashes, as a person copies them."""
    texts = map(html.unescape, re.findall(r"<pre[^>]*>([^<]*)</pre>", (site / "index.html").read_text()))
    [found] = [text for text in texts if wanted in text and "--hash=sha256:" in text]
    return found


def test_from_a_serve_line_to_a_fleet_that_starts_warm_and_back(
    engine_python: str, own_wheel: Path, tmp_path: Path
) -> None:
    release = Release(tmp_path / "release", own_wheel)
    release.new()
    release.add_the_second_model()
    assert release.build(MODEL_CACHE_PYTHON=engine_python) == dict.fromkeys(NAMES, "built")
    # without an engine: whatever were to be compiled would fail
    assert release.build() == dict.fromkeys(NAMES, "up to date")

    key = release.told("keygen", "release", "--json")["key"]
    release.sign()
    assert release.build() == dict.fromkeys(NAMES, "up to date"), "signed, not changed"
    assert set(release.wheels()) == {f"{name}==1.0.0" for name in NAMES}

    with (
        pypiserver(tmp_path / "pypiserver") as pypi,
        devpi(tmp_path / "devpi") as stage,
        WritableHub(tmp_path / "hub") as hub,
        FileServer(release.site) as files,
    ):
        site = files.url
        publish_all(release, hub, site, pypi.upload, stage.upload)
        settings = hub.settings(release.home / "hf")
        places = [("--index", pypi.simple), ("--index", stage.simple), ("--index", site), ("--hub", HUB)]
        for model in ("llama-tiny", "qwen3-tiny"):
            for target in (H100, A100):
                wanted = f"model-cache-{model}-{target}==1.0.0"
                for place in places:
                    found = release.find(f"example/{model}", target, *place, **settings)
                    assert found == (wanted, digest(release.wheels()[wanted])), place

        host = Serving.at(tmp_path / "host", engine_python)
        become_a_host(host, release, key, site)
        host.told("deploy", NAME, "--assume-target", H100, "--json")
        assert host.status() == ("1.0.0", False, True)
        host.start()
        assert host.status() == ("1.0.0", True, True)

        release.edit('[models."example/llama-tiny"]\n', '[models."example/llama-tiny"]\nversion = "1.1.0"\n')
        assert release.build("--only", NAME, MODEL_CACHE_PYTHON=engine_python) == {NAME: "built"}
        release.sign()
        newer = release.wheels()[f"{NAME}==1.1.0"]
        release.twine(pypi.upload, newer)
        release.uv_publish(stage.upload, newer)
        release.build_site(site)
        release.push(hub, newer)
        for place in places:
            assert release.find("example/llama-tiny", H100, *place, **settings) == (f"{NAME}==1.1.0", digest(newer))

        host.pip(requirements(release.site, f"{NAME}==1.1.0"))
        host.start()
        assert host.status() == ("1.1.0", True, True)

        host.told("rollback", NAME, "--assume-target", H100, "--json")
        assert host.status()[0] == "1.0.0"
        host.start()
        assert host.status() == ("1.0.0", True, True), "a start leaves the newer version alone after a rollback"


def publish_all(release: Release, hub: WritableHub, site: str, pypi: str, stage: str) -> None:
    """Every wheel to every place."""
    wheels = release.wheels().values()
    release.twine(pypi, release.own_wheel, *wheels)
    release.uv_publish(stage, release.own_wheel, *wheels)
    release.build_site(site)
    for wheel in wheels:
        commit = release.push(hub, wheel)
        assert hub.content("example/caches", commit, wheel.name) == wheel.read_bytes()


def become_a_host(host: Serving, release: Release, key: str, site: str) -> None:
    """The serving side first; then whom to trust, what there is, the wheel, and whether the engine would load it."""
    lines = requirements(release.site, f"{NAME}==1.0.0")
    host.pip("".join(line for line in lines.splitlines(keepends=True) if not line.startswith(NAME)))
    added = host.told("trust", "add", str(release.home / "release.pub"), "--json")
    assert key in json.dumps(added)
    words = ("--index", site, "--target", H100, "--json", "--", *SERVE)
    found = host.told("find", "example/llama-tiny", *words)
    best = found["wheels"][0]
    assert (best["name"], best["standing"], best["keys"]) == (NAME, "hit", [key])
    host.pip(lines)
    checked = host.told("check", "--target", H100, "--json", "--", *SERVE)
    assert (checked["verdict"], [wheel["name"] for wheel in checked["wheels"]]) == ("hit", [NAME])
