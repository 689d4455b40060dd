"""From the results of the compile processes to an artifact directory: what is refused, what is kept."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import model_cache
from hatch_model_cache import cubin
from hatch_model_cache.compile import engines
from hatch_model_cache.compile.engines import vllm_rank, vllm_warmup
from hatch_model_cache.packing import artifacts
from hatch_model_cache.recipe.checkpoint import Headers
from hatch_model_cache.recipe.recipe import Recipe, config_sha256
from hatch_model_cache.recipe.source import source_of
from hatch_model_cache.targets import AnyTarget, CpuTarget, Target
from model_cache.errors import CompileError

RESULT_KEYS = (
    *("architectures", "artifacts", "engine", "factors", "host_answers", "kernels", "measured"),
    *("hints", "models", "parts", "ranks", "regions", "saved", "stand_ins", "unkeyed"),
)
"""What the result of a compile process must hold."""


@dataclass(frozen=True)
class RankResult:
    """What one compile process reported, and its directory (which holds ``cache`` and ``engine.log``)."""

    target: str
    rank: int
    directory: Path
    result: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.target} rank {self.rank}"

    @property
    def artifacts(self) -> Sequence[Mapping[str, Any]]:
        """The saved models, as the engine's adapter describes them (`compile.engines.vllm.Artifact`)."""
        found: Sequence[Mapping[str, Any]] = self.result["artifacts"]
        return found


def collect(
    recipe: Recipe,
    model: Path,
    results: Sequence[RankResult],
    out: Path,
    mode: str = "cross",
    headers: Headers | None = None,
) -> None:
    """Check what the processes left and write it as an artifact directory.

    Args:
        recipe: what was to be compiled.
        model: the directory with the config files that were compiled.
        results: one per target and rank.
        out: an empty directory.
        mode: how it was built, as the manifest says it, for GPUs.
        headers: of the checkpoint that was loaded, if there was one.

    Raises:
        CompileError: naming everything that is missing or wrong.
    """
    targets = {target.name: target for target in recipe.load_targets()}
    problems = [p for r in results for p in _problems(recipe, r, targets[r.target])]
    problems += [p for r in results for p in _another_machine(r, targets[r.target])]
    problems += _missing_ranks(recipe, results)
    problems += _disagreements(results)
    if problems:
        raise CompileError("What the engine left cannot be shipped:", problems)
    factors: dict[str, Mapping[str, str]] = {}
    entries: dict[tuple[str, str, str], dict[str, Any]] = {}
    for result in results:
        identifier = _factor_set(factors, result.result["factors"])
        for artifact in result.artifacts:
            own = [_keep_model(result, artifact, out)] if Path(artifact["path"]).is_file() else []  # or all is beside
            files = [*own, *(_keep_beside(result, artifact["prefix"], f, out) for f in artifact["beside"])]
            for key in artifact["keys"]:
                named = (result.target, artifact["prefix"], key["key"])
                entry = entries.setdefault(named, _entry(result, artifact, key, identifier))
                entry["ranks"].append(Path(artifact["path"]).parent.name.removeprefix("rank_"))
                entry["files"] += [file for file in files if file not in entry["files"]]  # ranks share kernels
    _keep_evidence(results, out)
    _keep_logs(results, out)
    first = results[0].result
    document = {
        "schema_version": 1,
        "recipe_digest": recipe.digest(),
        "engine": first["engine"],
        "model": {
            "id": recipe.model,
            "revision": recipe.revision,
            "config_sha256": config_sha256(model),
            "architectures": first["architectures"],
            "served_as": list(recipe.served_as),
        },
        "targets": [target.as_dict() for target in targets.values()],
        "serve": {"arguments": list(recipe.serve_args), "environment": dict(recipe.environment)},
        "build": {
            "mode": "native" if any(target.kind == "cpu" for target in targets.values()) else mode,
            "tool": f"hatch-model-cache {model_cache.__version__}",
            "recipe_digest": recipe.digest(),
            "source": dataclasses.asdict(source_of(recipe)),
            "checkpoint": headers and headers.record(),
            "warnings": [*recipe.warnings(), *recipe.doubts()],
            "stand_ins": _stand_ins(results),
        },
        "host_answers": first["host_answers"],
        "unkeyed": first["unkeyed"],
        "factors": factors,
        "entries": list(entries.values()),
        "kernels": _kernels(results),
        "regions": _regions(results),
        "hints": {path: text for result in results for path, text in result.result["hints"].items()},
    }
    artifacts.write(out, document)


def _problems(recipe: Recipe, rank: RankResult, target: AnyTarget) -> Iterator[str]:
    models, saved = rank.result["models"], rank.result["saved"]
    if not saved or saved < models:
        yield f"{rank}: the engine saved {saved} of the {models} models it compiles"
    if not rank.result["parts"]:
        yield f"{rank}: the artifact holds no compiled part (num_artifacts = 0): it would load and run uncompiled"
    if not rank.result["artifacts"]:
        yield f"{rank}: no artifact"
    scratch = str(rank.directory.parent)
    ranks = engines.adapter(recipe.engine_name).expected_ranks(recipe.serve_args)
    place = f"rank_{ranks[rank.rank]}" if rank.rank < len(ranks) else "no directory"
    for name, value in rank.result["factors"].items():
        if scratch in value:
            yield f"{rank}: the key depends on a path of the building machine: factor {name}"
    known = {kernel["sha256"] for kernel in rank.result["kernels"]}
    for artifact in rank.artifacts:
        prefix, path = artifact["prefix"], Path(artifact["path"])
        for name in recipe.served_as:
            if not any(key["served_as"] == name for key in artifact["keys"]):
                yield f"{rank}: no key of {prefix} for the served name {name!r}"
        if path.parent.name != place:
            yield f"{rank}: the artifact of {prefix} is in {path.parent.name}, this rank looks in {place}"
        held = kernel_files(artifact)
        if not held:
            yield f"{rank}: the artifact of {prefix} is missing (the engine's log says why it could not be saved)"
            continue
        if path.is_file():
            yield from (f"{rank}: leftover file {p.name} beside {prefix}" for p in path.parent.iterdir() if p != path)
        code = _no_native_code(artifact) if isinstance(target, CpuTarget) else _kernel_problems(held, target, known)
        yield from (f"{rank}: {prefix}: {problem}" for problem in code)
        if isinstance(target, Target):
            yield from (f"{rank}: {prefix}: beside it, {problem}" for problem in _beside_problems(artifact, target))


def _another_machine(rank: RankResult, target: AnyTarget) -> Iterator[str]:
    """Native code is for the machine that compiled it, so that must have been the target, to torch too."""
    if isinstance(target, CpuTarget):
        pairs = (("cpu.vec_isa", target.vec_isa), ("cpu.capability", target.cpu_capability))
        for fact, expected in pairs:
            if rank.result["unkeyed"].get(fact) != expected:
                yield f"{rank}: {fact} was {rank.result['unkeyed'].get(fact)!r}, the target is {expected!r}"


def _no_native_code(artifact: Mapping[str, Any]) -> Iterator[str]:
    if not any("shared-object" in file["contains"] for file in artifact["beside"]):
        yield "no shared object beside the artifact: an engine would load it and compile all kernels"


def kernel_files(artifact: Mapping[str, Any]) -> list[Path]:
    """The files of an artifact that hold its GPU kernels: its own, or where it has none, such as lie beside."""
    path = Path(artifact["path"])
    return [path] if path.is_file() else [Path(f["source"]) for f in artifact["beside"] if "cubin" in f["contains"]]


def _kernel_problems(held: Sequence[Path], target: Target, known: set[str]) -> Iterator[str]:
    """What is wrong with the kernels inside an artifact's files; they are found by their ELF headers, nothing is
    unpickled."""
    shipped = [kernel for path in held for kernel in cubin.embedded(path.read_bytes())]
    if not shipped:
        yield "no GPU kernel in the artifact"
    yield from _for_another_gpu(shipped, target)
    strangers = {hashlib.sha256(c).hexdigest() for c in shipped} - known
    if strangers:
        yield f"{len(strangers)} kernels in the artifact were not compiled by this process"


def _beside_problems(artifact: Mapping[str, Any], target: Target) -> Iterator[str]:
    """What is wrong with the engine's own kernels, each a file of its own beside the artifact."""
    own = [file for file in artifact["beside"] if file["kind"] == vllm_warmup.KIND and "cubin" in file["contains"]]
    yield from _for_another_gpu([Path(file["source"]).read_bytes() for file in own], target)


def _for_another_gpu(cubins: Sequence[bytes], target: Target) -> Iterator[str]:
    wrong = Counter(cubin.architecture(c) for c in cubins)
    wrong.pop(target.ptx_arch, None)
    for arch, count in sorted(wrong.items()):
        yield f"{count} kernels are for {arch}, the target is {target.ptx_arch}"


def _missing_ranks(recipe: Recipe, results: Sequence[RankResult]) -> Iterator[str]:
    for target in recipe.targets:
        ours = [rank for rank in results if rank.target == target]
        expected = max((rank.result["ranks"] for rank in ours), default=1)
        yield from (f"{target} rank {n}: not compiled" for n in range(expected) if n not in {r.rank for r in ours})


def _disagreements(results: Sequence[RankResult]) -> Iterator[str]:
    """Processes of one build must agree on the engine, the host, and (for one target) on every key.

    The ranks may have keys of their own where the engine's own names of layers tell them apart (`vllm_rank.FACTORS`).
    """
    first = results[0]
    for other in results[1:]:
        for what in ("engine", "host_answers", "unkeyed", "architectures", "hints"):
            if other.result[what] != first.result[what]:
                yield f"{other} and {first} disagree on {what}"
    keys: dict[tuple[str, str], tuple[RankResult, list[dict[str, Any]]]] = {}
    for rank in results:
        for artifact in rank.artifacts:
            found = artifact["keys"]
            before, expected = keys.setdefault((rank.target, artifact["prefix"]), (rank, found))
            apart = _factors_apart(rank, before)
            if found != expected and not (apart and apart <= vllm_rank.FACTORS):
                yield f"{rank} and {before} have different keys for {artifact['prefix']}"


def _factors_apart(one: RankResult, other: RankResult) -> set[str]:
    """The names of the factors that two ranks differ in."""
    return {name for name, _ in one.result["factors"].items() ^ other.result["factors"].items()}


def _entry(rank: RankResult, artifact: Mapping[str, Any], key: Mapping[str, Any], factors: str) -> dict[str, Any]:
    return {
        "directory": key["directory"],
        "component": artifact["component"],
        "key": key["key"],
        "prefix": artifact["prefix"],
        "target": rank.target,
        "served_as": key["served_as"],
        "ranks": [],
        "factors": factors,
        "factor_overrides": dict(key["overrides"]),
        "files": [],
    }


def _keep_model(rank: RankResult, artifact: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Copy the file of an artifact into the artifact directory and describe it."""
    path = Path(artifact["path"])
    source = f"files/{rank.target}/{path.parent.name}/{artifact['prefix']}/{path.name}"
    return _keep(path, out, source, f"{path.parent.name}/{path.name}", artifact)


def _keep_beside(rank: RankResult, prefix: str, file: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Copy a file that goes along with an artifact, and describe it.

    The name of a kernel says from which source it is, so of the same one of several ranks the first is kept (its data
    may name the directory that it was compiled in).
    """
    return _keep(Path(file["source"]), out, f"files/{rank.target}/{prefix}/{file['path']}", file["path"], file)


def _keep(path: Path, out: Path, source: str, name: str, described: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a file to `source` in the artifact directory; describe it as `name` of its entry."""
    destination = out / source
    destination.parent.mkdir(parents=True, exist_ok=True)
    if not destination.exists():
        shutil.copyfile(path, destination)
    with destination.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "path": name,
        "source": source,
        "sha256": digest,
        "size": destination.stat().st_size,
        "mode": "0755" if "shared-object" in described["contains"] else "0644",
        "kind": described["kind"],
        "contains": list(described["contains"]),
    }


def _keep_evidence(results: Sequence[RankResult], out: Path) -> None:
    """What kernels were made from, if the processes were to keep it; ranks share most of it.

    Not of the engine's own kernels, which are not in the manifest's list.
    """
    for rank in results:
        listed = _texts(rank.result)
        for path in (rank.directory / artifacts.EVIDENCE).glob("*"):
            if path.name in listed:
                (out / artifacts.EVIDENCE).mkdir(exist_ok=True)
                shutil.copyfile(path, out / artifacts.EVIDENCE / path.name)


def _texts(result: Mapping[str, Any]) -> set[str]:
    """Names of the texts that the kernels and regions of a result were made from."""
    lineages = [kernel["lineage"] for kernel in result["kernels"] if kernel["lineage"]]
    made_from = [lineage[name] for lineage in lineages for name in ("source", "ptx")]
    return {digest for digest in made_from if digest} | {
        g[name] for g in result["regions"] for name in ("graph", "wrapper")
    }


def _keep_logs(results: Sequence[RankResult], out: Path) -> None:
    logs = out / "logs"
    logs.mkdir()
    for rank in results:
        shutil.copyfile(rank.directory / "engine.log", logs / f"{rank.directory.name}.log")
    measured = {rank.directory.name: rank.result["measured"] for rank in results}
    (logs / "measured.json").write_text(json.dumps(measured, indent=1) + "\n", "utf-8")


def _factor_set(known: dict[str, Mapping[str, str]], factors: Mapping[str, str]) -> str:
    """The identifier of a set of factors; equal sets (the ranks of one target) share one."""
    for identifier, other in known.items():
        if other == factors:
            return identifier
    identifier = f"f{len(known) + 1}"
    known[identifier] = factors
    return identifier


def _stand_ins(results: Sequence[RankResult]) -> list[dict[str, Any]]:
    total: Counter[tuple[str, str]] = Counter()
    for rank in results:
        for item in rank.result["stand_ins"]:
            total[item["site"], item["answer"]] += item["count"]
    return [{"site": s, "answer": a, "count": n} for (s, a), n in sorted(total.items())]


def _kernels(results: Sequence[RankResult]) -> list[dict[str, Any]]:
    found = {(r.target, k["sha256"]): {**k, "target": r.target} for r in results for k in r.result["kernels"]}
    configs = Counter((kernel["target"], kernel["name"]) for kernel in found.values())
    return [{**kernel, "configs": configs[kernel["target"], kernel["name"]]} for _, kernel in sorted(found.items())]


def _regions(results: Sequence[RankResult]) -> list[dict[str, Any]]:
    found = {(g["target"], g["graph"], g["wrapper"]): g for r in results for g in r.result["regions"]}
    return [region for _, region in sorted(found.items())]
