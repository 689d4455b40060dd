"""Wheel variants: a finished wheel's payload under the model's name and a label. uv's side is in test_publishing."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from build_factories import make_artifacts, make_project
from factories import A100, ENTRY_TWO, H100, NAME, install, make_host, make_wheel, run, sha
from hatch_model_cache.packing.signing import generate, load_key, sign_wheel
from hatch_model_cache.publish import shelf, site, variants
from model_cache.cli import main
from model_cache.errors import DamagedError, MismatchError
from model_cache.origin.keyring import Keyring
from model_cache.origin.trust import Trust
from model_cache.wheel import catalogue
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.verify import Verified, verify
from test_hook import built

SHORT = "model-cache-synthetic-1b"
FILE = "model_cache_synthetic_1b-1.0.0-cp311-none-any-sm90.whl"
H200 = H100 | {"name": "h200", "device_name": "NVIDIA H200"}
TWO: dict[str, Any] = {"targets": (H100, H200), "target_of": lambda d: "h200" if d == ENTRY_TWO else "h100-sxm5-80gb"}
NOBODY = Trust("off", Keyring())


def made(wheel: Path, out: Path) -> Path:
    [one] = variants.plan([wheel])
    return variants.make(one, out)


def verified(wheel: Path) -> Verified:
    with WheelPayload(str(wheel)) as payload:
        return verify(payload, trust=NOBODY)


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_variant_is_the_wheel_under_another_name(tmp_path: Path) -> None:
    """With every file that a real build leaves."""
    project = make_project(tmp_path / "project")
    wheel, _ = built(project, MODEL_CACHE_ARTIFACTS=make_artifacts(tmp_path / "compiled", project))
    variant = made(wheel, tmp_path / "out")
    assert variant.name == FILE
    before, after = verified(wheel).manifest, verified(variant).manifest
    assert (after.name, before.name) == (SHORT, NAME)
    assert {**after.as_dict(), "name": NAME} == before.as_dict()
    old, new = members(wheel), members(variant)
    assert len(new) == len(old) + 1
    info = f"{SHORT.replace('-', '_')}-1.0.0.dist-info"
    assert new[f"{info}/METADATA"] == old["model_cache_synthetic_1b_h100_sxm5_80gb-1.0.0.dist-info/METADATA"].replace(
        NAME.encode(), SHORT.encode()
    )
    assert new[f"{info}/entry_points.txt"].decode() == f"[model_cache]\n{SHORT} = {SHORT.replace('-', '_')}\n"
    bill = json.loads(new[f"{info}/sboms/model-cache.cdx.json"])
    assert bill["metadata"]["component"]["name"] == SHORT
    assert NAME.encode() not in b"".join(new.values())
    assert json.loads(new[f"{info}/variant.json"]) == {
        "$schema": "https://variants-schema.wheelnext.dev/peps/850/v0.2.0.json",
        "default-priorities": {"namespace": ["nvidia"]},
        "providers": {
            "nvidia": {
                "plugin-api": "nvidia_variant_provider.plugin:NvidiaVariantPlugin",
                "requires": ["nvidia-variant-provider>=0.0.1"],
            }
        },
        "variants": {"sm90": {"nvidia": {"sm_arch": ["90_real"]}}},
    }


def test_the_same_wheel_gives_the_same_bytes(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    first = made(wheel, tmp_path / "one").read_bytes()
    os.utime(wheel, (1, 1))
    before = os.umask(0o077)
    try:
        second = made(wheel, tmp_path / "two")
    finally:
        os.umask(before)
    assert second.read_bytes() == first
    assert second.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in (tmp_path / "two").iterdir()] == [FILE]


@pytest.mark.parametrize(
    ("name", "options", "short", "label"),
    [
        ("model-cache-m-sm90", TWO, "model-cache-m", "sm90"),
        ("model-cache-org-m-v1.5-a100-sxm4-80gb", {"targets": (A100,)}, "model-cache-org-m-v1-5", "sm80"),
        (
            "model-cache-m-b200",
            {"targets": (H100 | {"name": "b200", "compute_capability": "10.0"},)},
            "model-cache-m",
            "sm100",
        ),
    ],
)
def test_names_and_labels(tmp_path: Path, name: str, options: dict[str, Any], short: str, label: str) -> None:
    wheel = make_wheel(tmp_path, name=name, **options, changes={"kernels.0.arch": f"sm_{label[2:]}"})
    [one] = variants.plan([wheel])
    assert (one.manifest.name, one.label) == (short, label)
    variant = variants.make(one, tmp_path / "out")
    assert variants.split_label(variant.name) == (variant.name.replace(f"-{label}.whl", ".whl"), label)
    assert variants.split_label(wheel.name) == (wheel.name, None)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("model-cache-m-hopper-ampere", {**TWO, "targets": (H100, A100 | {"name": "h200"})}, "of one architecture"),
        ("model-cache-m-hopper", TWO, "its name does not end in its target or sm90"),
        ("model-cache-sm90", TWO, "its name does not end in"),
    ],
)
def test_wheels_that_can_have_none(
    tmp_path: Path, name: str, options: dict[str, Any], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = make_wheel(tmp_path / "dist", name=name, **options)
    assert main(["variant", str(wheel), "--out", str(tmp_path / "out")]) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_two_gpus_of_one_architecture_are_one_wheel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An installer would take either for either: it does not see the GPU's name."""
    wheels = [make_wheel(tmp_path / "dist", name=f"model-cache-m-{t['name']}", targets=(t,)) for t in (H100, H200)]
    assert main(["variant", *map(str, wheels), "--out", str(tmp_path / "out")]) == 2
    assert "build one wheel for both targets" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel, out = make_wheel(tmp_path / "dist"), tmp_path / "out"
    assert main(["variant", str(wheel), "--out", str(out), "--dry-run"]) == 0
    assert capsys.readouterr().out == f"would be made: {out / FILE}, of {wheel}\n"
    assert not out.exists()
    assert main(["variant", str(wheel), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "variants": [{"wheel": str(wheel), "variant": str(out / FILE), "name": SHORT}],
        "dry_run": False,
    }
    data = bytearray(wheel.read_bytes())
    data[len(data) // 3] ^= 255
    wheel.write_bytes(data)
    assert main(["variant", str(wheel), "--out", str(out)]) == 3
    assert wheel.name in capsys.readouterr().err


def test_it_is_signed_installed_and_deployed_as_any_wheel(tmp_path: Path) -> None:
    private, public, key = generate(tmp_path / "key")
    wheel = make_wheel(tmp_path / "dist")
    sign_wheel(wheel, load_key(str(private)))
    variant = made(wheel, tmp_path / "out")
    assert verified(variant).signatures_sha256 is None, "the signature was for the other name"
    sign_wheel(variant, load_key(str(private)))
    with WheelPayload(str(variant)) as payload:
        origin = verify(payload, trust=Trust("prefer", Trust.of_files([str(public)]).keyring)).origin
    assert (origin.trusted, origin.key) == (True, key)
    site_packages = install(variant, tmp_path / "site")
    assert run(site_packages, tmp_path / "root", name=SHORT).changed
    with pytest.raises(MismatchError):
        run(site_packages, tmp_path / "other", make_host(assumed="h200"), name=SHORT)


def test_an_index_of_variants(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    for target in (H100, A100):
        changes = {"kernels.0.arch": "sm_" + target["compute_capability"].replace(".", "")}
        made(make_wheel(dist, name=f"model-cache-m-{target['name']}", targets=(target,), changes=changes), dist)
    out = tmp_path / "site"
    assert main(["index", "build", str(dist), "--out", str(out)]) == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    found = catalogue.parse((out / "catalogue.json").read_bytes())
    assert [offer.name for offer in found.wheels] == ["model-cache-m-a100-sxm4-80gb", "model-cache-m-h100-sxm5-80gb"]
    assert [package.name for package in found.others] == ["model-cache-m"] * 2
    [labels] = found.labels
    data = (out / labels.url).read_bytes()
    assert (labels.file, labels.sha256) == ("model_cache_m-1.0.0-variants.json", sha(data))
    assert data == variants.document(["sm80", "sm90"])
    page = (out / "simple/model-cache-m/index.html").read_text()
    assert page.count("<a ") == 3
    assert f"../../{labels.url}#sha256={labels.sha256}" in page
    [*_, last] = json.loads((out / "simple/model-cache-m/index.json").read_text())["files"]
    assert last == {
        "filename": labels.file,
        "url": f"../../{labels.url}",
        "hashes": {"sha256": labels.sha256},
        "size": labels.size,
    }
    assert main(["index", "build", str(dist), "--out", str(out)]) == 0
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert site.Site.at(out).known().keys() == {path.name for path in dist.iterdir()}


def test_a_label_that_lies(tmp_path: Path) -> None:
    """The bytes are intact; what an installer would choose by is not of this manifest."""
    variant = made(make_wheel(tmp_path / "dist"), tmp_path / "out")
    variant.rename(variant.with_name(FILE.replace("sm90", "sm80")))
    with pytest.raises(DamagedError, match=r"its label or variant\.json does not agree"):
        shelf.read([tmp_path / "out"], NOBODY, {})
