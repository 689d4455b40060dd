"""Provenance: the commit in the manifest, and the bill of materials beside the metadata."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
import zipfile
from pathlib import Path
from typing import Any

import pytest

from build_factories import TABLE, make_artifacts, make_project
from factories import DELETE, H100, make_document
from hatch_model_cache.packing import sbom
from hatch_model_cache.recipe.file import load_recipe
from hatch_model_cache.recipe.source import source_of
from model_cache import cli
from model_cache.errors import DamagedError
from model_cache.wheel.manifest import Source, from_dict


def bom(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(sbom.to_bytes(from_dict(make_document(changes=changes))))
    return document


# The bill of materials


def test_it_names_what_the_artifacts_were_made_with() -> None:
    found = bom()
    assert (found["bomFormat"], found["specVersion"], found["version"]) == ("CycloneDX", "1.5", 1)
    assert found["metadata"]["component"]["purl"] == "pkg:pypi/model-cache-synthetic-1b-h100-sxm5-80gb@1.0.0"
    assert found["metadata"]["tools"]["components"] == [
        {"type": "application", "name": "hatch-model-cache", "version": "0.1.0"}
    ]
    purls = {component["purl"] for component in found["components"] if "purl" in component}
    assert purls == {
        "pkg:pypi/vllm@0.33.0",
        "pkg:pypi/torch@2.14.0%2Bcu130",
        "pkg:pypi/triton@3.8.0",
        "pkg:pypi/flashinfer-python@0.7.2",
        "pkg:generic/cuda@13.0",
        "pkg:generic/python@3.11.7",
    }
    [model] = [component for component in found["components"] if component["type"] == "machine-learning-model"]
    assert model["name"] == "test-org/Synthetic-1B"
    assert "version" not in model
    properties = {item["name"]: item["value"] for item in found["metadata"]["properties"]}
    assert properties["model-cache:source_commit"] == "c" * 40
    assert properties["model-cache:source_dirty"] == "false"
    assert properties["model-cache:targets"] == H100["name"]


def test_every_blob_is_in_it_with_its_hash() -> None:
    manifest = from_dict(make_document())
    files = [c for c in json.loads(sbom.to_bytes(manifest))["components"] if c["type"] == "file"]
    assert {file["hashes"][0]["content"] for file in files} == set(manifest.blobs())
    assert all(file["hashes"][0]["alg"] == "SHA-256" and file["name"].startswith("blobs/") for file in files)


def test_references_are_unique_and_lead_somewhere() -> None:
    found = bom()
    references = [component["bom-ref"] for component in found["components"]]
    root = found["metadata"]["component"]["bom-ref"]
    assert len({root, *references}) == len(references) + 1
    assert {item["ref"] for item in found["dependencies"]} == {root, *references}
    assert all(set(item["dependsOn"]) <= set(references) for item in found["dependencies"])


def test_the_bytes_depend_on_the_manifest_alone() -> None:
    one = sbom.to_bytes(from_dict(make_document()))
    assert sbom.to_bytes(from_dict(dict(reversed(make_document().items())))) == one
    other = bom(version="1.0.1")
    assert other["serialNumber"] != json.loads(one)["serialNumber"]
    assert uuid.UUID(other["serialNumber"].removeprefix("urn:uuid:")).version == 5
    assert b"timestamp" not in one


@pytest.mark.parametrize(("revision", "commit"), [("abc", None), (None, None)])
def test_what_is_not_known_is_left_out(revision: str | None, commit: str | None) -> None:
    changes = {"model.revision": revision, "build.source.commit": commit, "host_answers": {"flashinfer-python": None}}
    found = bom(**changes)
    [model] = [component for component in found["components"] if component["type"] == "machine-learning-model"]
    assert model.get("version") == revision
    assert "source" not in json.dumps(found["metadata"]["properties"])
    assert "flashinfer" not in json.dumps(found)


# In a wheel


def test_the_hook_puts_it_where_installers_keep_it(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    make_artifacts(project / "artifacts", project)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MODEL_CACHE", "SOURCE_DATE"))}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    done = subprocess.run(command, cwd=project, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = (project / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".cdx.json")]
        assert name.partition(".dist-info/")[2] == f"sboms/{sbom.FILE_NAME}"
        data = archive.read(name)
        [text] = [archive.read(n) for n in archive.namelist() if n.endswith("/manifest.json")]
    assert data == sbom.to_bytes(from_dict(json.loads(text)))
    assert os.fsencode(tmp_path) not in data
    assert cli.main(["verify", str(wheel)]) == 0


# The source


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A recipe in a subdirectory of a repository, committed."""
    project = make_project(tmp_path / "repository" / "recipes" / "one", TABLE)
    git(tmp_path / "repository", "init", "-q")
    git(tmp_path / "repository", "add", "-A")
    git(tmp_path / "repository", "commit", "-q", "-m", "recipe")
    return project


def git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.invalid", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", directory, *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def source(project: Path) -> Source:
    return source_of(load_recipe(project))


def test_a_clean_checkout_has_its_commit(project: Path) -> None:
    assert source(project) == Source(git(project, "rev-parse", "HEAD"), dirty=False)


@pytest.mark.parametrize(
    ("path", "dirty"),
    [
        ("pyproject.toml", True),
        ("model/config.json", True),
        ("model/new.json", True),
        ("artifacts/artifacts.json", False),  # what a compile leaves
        ("../other.txt", False),
    ],
)
def test_what_makes_it_dirty(project: Path, path: str, dirty: bool) -> None:
    file = project / path
    file.parent.mkdir(exist_ok=True)
    file.write_text((file.read_text() if file.exists() else "{}") + "\n")
    assert source(project).dirty is dirty


def test_an_ignored_file_of_the_recipe_makes_it_dirty(project: Path) -> None:
    (project / ".gitignore").write_text("*.json\n")
    git(project, "add", ".gitignore")
    git(project, "commit", "-q", "-m", "ignore")
    assert not source(project).dirty
    (project / "model/ignored.json").write_text("{}")
    assert source(project).dirty


def test_without_a_repository_of_its_own_there_is_no_commit(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Source(None, dirty=False)
    assert source(make_project(tmp_path / "alone")) == nothing
    # An unpacked sdist inside another repository is not that repository's.
    assert source(make_project(tmp_path / "repository" / "build" / "sdist")) == nothing
    monkeypatch.setenv("PATH", str(tmp_path))
    assert source(project) == nothing


def test_a_repository_cannot_have_its_own_program_run(project: Path, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    git(project, "config", "core.fsmonitor", str(program))
    assert source(project).commit
    assert not (tmp_path / "ran").exists()


def test_the_environment_cannot_name_another_repository(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = source(project)
    monkeypatch.setenv("GIT_DIR", str(Path(__file__).parents[1] / ".git"))
    assert source(project) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("build.source", DELETE),
        ("build.source.commit", DELETE),
        ("build.source.commit", "HEAD"),
        ("build.source.commit", "C" * 40),
        ("build.source.dirty", None),
        ("build.source.path", "/home/x"),
    ],
)
def test_a_manifest_with_another_source_is_refused(field: str, value: Any) -> None:
    with pytest.raises(DamagedError, match=r"build\.source"):
        from_dict(make_document(changes={field: value}))


def test_inspect_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from factories import make_wheel

    for dirty, expected in ((False, f"source     commit {'c' * 40}\n"), (True, "with uncommitted changes\n")):
        wheel = make_wheel(tmp_path / str(dirty), changes={"build.source.dirty": dirty})
        assert cli.main(["inspect", str(wheel)]) == 0
        assert expected in capsys.readouterr().out
