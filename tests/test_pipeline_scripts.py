"""The scripts of the GitHub and GitLab pipelines, run as they are: build, sign, verify, upload to a real index.

What a runner does is done here by hand: one job after the other, variables, files that go from job to job. Only the
engine is a fake (fakes/fake_engine.py), and lines that install are left out, since all of it is installed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_factories import CONFIG
from fakes import fake_engine
from model_cache import cli
from package_indexes import PASSWORD, USER, pypiserver

pytestmark = pytest.mark.fleet

COMMON = ("--engine", "vllm==0.33.0", "--config", "model", "--target", "h100-sxm5-80gb", "--with", "github,gitlab")
LINE = ("--", "vllm", "serve", "org/M", "--max-model-len", "512")
ONE = ["model_cache_m_h100_sxm5_80gb-1.0.0-cp311-none-any.whl"]
TWO = ["model_cache_m_a100_sxm4_80gb-1.0.0-cp311-none-any.whl", *ONE]


@pytest.fixture(params=[False, True], ids=["one recipe", "a matrix"])
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new project with its pipelines, and a key pair to release with."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
    fake_engine.interpreter(tmp_path)
    monkeypatch.chdir(tmp_path)
    arguments = ["matrix", "new", "project", "--target", "a100-sxm4-80gb"] if request.param else ["new", "project"]
    assert cli.main([*arguments, *COMMON, *LINE]) == 0
    assert cli.main(["keygen", "release"]) == 0
    shutil.move("release.pub", "project/release.pub")
    return tmp_path / "project"


def wheels_of(project: Path) -> list[str]:
    """The names that are to come out."""
    return TWO if (project / "matrix.toml").exists() else ONE


def run(lines: Sequence[str], project: Path, variables: Mapping[str, str]) -> None:
    """A job's script, without the lines that install."""
    script = "\n".join(line for text in lines for line in text.splitlines() if " pip install " not in line)
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(project.parent),
        "MODEL_CACHE_PYTHON": str(project.parent / "fake-python"),
        **variables,
    }
    subprocess.run(["/bin/bash", "-eo", "pipefail", "-c", script], cwd=project, env=environment, check=True)


def built(project: Path) -> list[str]:
    return sorted(path.name for path in (project / "dist").iterdir())


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Upload address and folder of an index."""
    with pypiserver(tmp_path / "index") as running:
        yield running.upload, tmp_path / "index"


def test_github(project: Path, index: tuple[str, Path]) -> None:
    workflow = yaml.safe_load((project / ".github/workflows/wheels.yml").read_text())
    jobs = workflow["jobs"]
    with pytest.raises(subprocess.CalledProcessError):
        run(scripts(jobs["image"]), project, {"ENGINE_IMAGE": "vllm/vllm-openai:latest"})
    run(scripts(jobs["image"]), project, {"ENGINE_IMAGE": "vllm/vllm-openai@sha256:" + "0" * 64})
    cells: list[dict[str, Any]] = [{}]
    if "plan" in jobs:
        output = project.parent / "output"
        run(scripts(jobs["plan"]), project, {"GITHUB_OUTPUT": str(output)})
        name, _, value = output.read_text().partition("=")
        assert name == "matrix"
        cells = json.loads(value)["include"]
    for cell in cells:
        run(scripts(jobs["build"]), project, {"WHEEL": cell.get("wheel", "")})
    assert built(project) == wheels_of(project)
    secret = (project.parent / "release.pem").read_text()
    run(scripts(jobs["sign"]), project, {"SIGNING_KEY": secret, "RUNNER_TEMP": str(project.parent)})
    assert not (project.parent / "release.pem").exists(), "the copy of the key is gone"
    upload, folder = index
    run(
        scripts(jobs["publish"]),
        project,
        {"TWINE_REPOSITORY_URL": upload, "TWINE_USERNAME": USER, "TWINE_PASSWORD": PASSWORD},
    )
    assert sorted(path.name for path in folder.rglob("*.whl")) == wheels_of(project)


def scripts(job: Mapping[str, Any]) -> list[str]:
    """What the job's steps run; a value of GitHub's in there would be code."""
    found = [step["run"] for step in job["steps"] if "run" in step]
    assert found
    assert not re.search(r"\$\{\{", "".join(found))
    return found


def test_gitlab(project: Path, index: tuple[str, Path]) -> None:
    pipeline = yaml.safe_load((project / ".gitlab-ci.yml").read_text())
    if "plan" in pipeline:
        run(pipeline["plan"]["script"], project, {})
        assert pipeline["wheels"]["trigger"]["include"][0]["artifact"] == "child-pipeline.yml"
        pipeline = yaml.safe_load((project / "child-pipeline.yml").read_text())
    assert pipeline.pop("stages") == ["build", "sign", "publish"]
    sign, publish = pipeline.pop("sign"), pipeline.pop("publish")
    for name, job in pipeline.items():
        if not name.startswith("."):
            run(job["script"], project, {})
    assert built(project) == wheels_of(project)
    run(sign["script"], project, {"RELEASE_KEY": str(project.parent / "release.pem")})
    assert not (project / "release.pem").exists(), "the copy of the key is gone"
    upload, folder = index
    run(
        publish["script"],
        project,
        {"TWINE_REPOSITORY_URL": upload, "TWINE_USERNAME": USER, "TWINE_PASSWORD": PASSWORD},
    )
    assert sorted(path.name for path in folder.rglob("*.whl")) == wheels_of(project)
