"""README and the guide to trust: their commands run, and print what they show. Engine and Hub are fakes.

What needs a real engine is in tests/engine; the other guides are in test_hub_guides, test_publish_guide and
test_recipe_guides.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import venv
from pathlib import Path

import pytest

import shown
from factories import CONTENTS, make_engine, make_wheel
from fakes import fake_engine
from fakes.sigstore_services import Services
from fakes.writable_hub import WritableHub

pytestmark = pytest.mark.fleet

HOME = os.environ["HOME"]
"""Where pip may have its configuration; what of this home may change is given by other variables."""

NAME = "model-cache-llama-3.1-8b-instruct-h100-sxm5-80gb"
PICKLED = {entry: dict.fromkeys(files, b"N.") for entry, files in CONTENTS.items()}
"""Where signatures are required, artifacts must be pickles."""

MODEL = shown.ROOT / "examples/llama-3.1-8b/model"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of this project, as far as it is built from."""
    place = tmp_path / "clone"
    for name in ("hatch_plugin", "templates"):
        shutil.copytree(shown.ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(shown.ROOT / name, place / name)
    return place


def test_from_a_clone_to_a_deployed_wheel(clone: Path, tmp_path: Path) -> None:
    """README: install, build, serve."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    install = shown.commands(
        "README.md",
        "python -m pip install build",
        "python -m pip install --no-index",
        "python -m pip install 'dist",
    )
    shown.run(install, clone, PATH=path, HOME=HOME)

    work, links = tmp_path / "work", str(clone / "dist")
    shutil.copytree(MODEL, work / "Llama-3.1-8B-Instruct")
    shown.run(shown.commands("README.md", "model-cache new"), work, PATH=path)
    project = work / NAME
    engine = {"/path/to/the/engines/python": str(fake_engine.interpreter(tmp_path))}
    in_one = shown.commands("README.md", "export MODEL_CACHE_PYTHON", "python -m build --wheel  ")
    shown.run(in_one, project, swap=engine, PATH=path, HOME=HOME, PIP_FIND_LINKS=links)
    [wheel] = (project / "dist").iterdir()
    in_two = shown.commands("README.md", "model-cache compile", "MODEL_CACHE_ARTIFACTS=")
    shown.run(in_two, project, PATH=path, HOME=HOME, PIP_FIND_LINKS=links, MODEL_CACHE_PYTHON=engine.popitem()[1])
    assert wheel.exists()
    assert len(list((project / "dist").iterdir())) == 2, "with its sdist"

    [site] = (tmp_path / "venv/lib").glob("python3*/site-packages")
    make_engine(site, torch=fake_engine.ENGINE["torch"])
    root, overlay = work / ".cache/vllm", tmp_path / "scratch/vllm"
    serve = shown.commands("README.md", "pip install model-cache-", "model-cache deploy", "eval export")
    see = shown.Command("README.md", 'echo "root: $VLLM_CACHE_ROOT"')
    here = {"PATH": path, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"{links} {project / 'dist'}"}
    places = {"/image/vllm": str(root), "/scratch/vllm": str(overlay)}
    overlay.parent.mkdir()
    *_, seen = shown.run([*serve, see], work, swap=places, MODEL_CACHE_ASSUME_TARGET="h100-sxm5-80gb", **here)
    assert seen.output == f"root: {overlay}\n"
    for place in (root, overlay):
        assert list(place.glob("torch_compile_cache/torch_aot_compile/*/rank_0_0/model")), place


def test_publish_and_whom_to_trust(tmp_path: Path) -> None:
    """README: publish, secure."""
    make_wheel(tmp_path / "dist", PICKLED)
    index, push, *keys = shown.commands(
        "README.md",
        "model-cache index build",
        "model-cache push",
        "model-cache keygen",
        "model-cache sign",
        "model-cache verify",
        "model-cache trust add",
        "model-cache trust  ",
    )
    revoke = shown.commands("README.md", "model-cache trust revoke")
    with WritableHub(tmp_path / "hub") as hub:
        settings = hub.settings(tmp_path / "hf")
        first = shown.Command("README.md", f"{push.text.partition('#')[0]} --create")
        swap = {"dist/WHEEL": "dist/*.whl"}
        shown.run([first, push], tmp_path, swap=swap, **settings)
        [wheel] = (tmp_path / "dist").iterdir()
        assert hub.content("my-org/caches", "main", wheel.name) == wheel.read_bytes()
    *_, verified, _, listed = shown.run([index, *keys], tmp_path)
    assert (tmp_path / "site/index.html").exists()
    assert "(trusted)" in verified.output
    key = trusted(listed.output)
    shown.run(revoke, tmp_path, swap={"0123456789abcdef": key[:16]})
    revoked = tmp_path / ".config/model-cache/trusted.d/revoked"
    assert revoked.read_text().split() == [key]


def trusted(listed: str) -> str:
    """The one key that `model-cache trust` lists."""
    [key] = re.findall(r"^trusted: ([0-9a-f]{64})", listed, re.MULTILINE)
    return str(key)


def test_signers_and_identities(tmp_path: Path) -> None:
    """trust-and-faults.md."""
    wheel = make_wheel(tmp_path / "dist", PICKLED)
    keygen = shown.Command("", "model-cache keygen release")
    _, _, listed = shown.run(
        [keygen, *shown.commands("trust-and-faults.md", "model-cache trust add release.pub", "model-cache trust  ")],
        tmp_path,
    )
    assert "policy: require\n" in listed.output
    key = trusted(listed.output)
    [revoked] = shown.run(
        shown.commands("trust-and-faults.md", "model-cache trust revoke"), tmp_path, swap={"459a01849b0fa6ed": key[:16]}
    )
    expected = re.sub("459a01849b0fa6ed[0-9a-f]+", key, revoked.command.output or "")
    assert revoked.output == expected.replace("~/", f"{tmp_path}/")

    services = Services()
    swap = {"dist/WHEEL": "dist/*.whl"}
    (tmp_path / "trusted_root.json").write_text(json.dumps(services.trusted_root()))
    shown.run(shown.commands("trust-and-faults.md", "model-cache sigstore message"), tmp_path, swap=swap)
    signer = {"person": "release@example.com", "issuer": "https://accounts.example.com"}
    (tmp_path / "bundle.json").write_bytes(services.bundle((tmp_path / "message.bin").read_bytes(), **signer))
    verify = shown.Command("", f"model-cache verify {wheel}")
    identity = shown.commands("trust-and-faults.md", "model-cache sigstore attach", "model-cache trust add-identity")
    *_, verified = shown.run([*identity, verify], tmp_path, swap=swap)
    assert verified.output.endswith(" (trusted)\n")


def test_the_caches_of_a_host(tmp_path: Path) -> None:
    """hits-and-misses.md, where the engine need not be asked; the rest is in tests/engine."""
    cache = tmp_path / "cache"
    for place in (cache / "torch_compile_cache/torch_aot_compile/key", tmp_path / "tmp/torchinductor_root"):
        place.mkdir(parents=True)
        (place / "model").write_bytes(b"something")
    where = {"VLLM_CACHE_ROOT": str(cache), "TMPDIR": str(tmp_path / "tmp"), "USER": "root", "LOGNAME": "root"}
    [collected] = shown.run(shown.commands("hits-and-misses.md", "model-cache collect"), tmp_path, **where)
    told = plain_table(collected.output.replace(str(tmp_path), ""))
    assert set(plain_table(collected.command.output or "")) - {"…"} <= set(told)
    assert len(told) > 5


def plain_table(text: str) -> list[str]:
    """Lines without widths, sizes and numbers of files."""
    return [" ".join(re.sub(r" [\d.]+ [kMG]?B +\d+ ", " SIZE ", line).split()) for line in text.splitlines()]
