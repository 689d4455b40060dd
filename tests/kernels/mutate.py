"""In the engine's interpreter: change one thing of a kernel at a time, and see whether its gate says so.

    TRITON_INTERPRET=1 python tests/kernels/mutate.py ARTIFACTS ANSWER [NUMBER]

A changed source goes through the gate `source-checked`, a changed PTX through `ptx-checked`, NUMBER of each, drawn
at random. Of a change that passes, the results are compared bit by bit with those of the unchanged kernel, on the same
launches; where no bit differs, `reasons` says why.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "hatch_plugin")]

from hatch_model_cache.compile.pretend.patches import Patches  # noqa: E402
from hatch_model_cache.compile.selfcheck import gates, graph, inputs, job  # noqa: E402
from hatch_model_cache.compile.selfcheck.ptx import FaultError, UnsupportedError  # noqa: E402
from hatch_model_cache.compile.selfcheck.ptx.program import Program, parse  # noqa: E402
from hatch_model_cache.compile.selfcheck.triton_interpreter import Bounds, mend  # noqa: E402
from hatch_model_cache.compile.selfcheck.wrapper import Config, Launch, Wrappers  # noqa: E402
from kernels import mutants, reasons  # noqa: E402

Answer = dict[str, Any]


def drawn(found: Sequence[Any], number: int) -> list[Any]:
    """`number` of them, or all; the same ones every time."""
    return random.Random(0).sample(list(found), min(number, len(found)))


class Bench:
    """The regions and kernels of an artifact directory."""

    def __init__(self, directory: Path) -> None:
        document = json.loads((directory / "artifacts.json").read_text("utf-8"))
        self.texts = {path.name: path.read_text("utf-8") for path in (directory / "evidence").iterdir()}
        self.regions = document["regions"]
        self.kernels = [kernel for kernel in document["kernels"] if kernel["lineage"]["source"]]
        self.configs: dict[str, list[Config]] = {}
        for kernel in self.kernels:
            self.configs.setdefault(kernel["lineage"]["source"], []).append(config_of(kernel))
        patches, bounds = Patches(), Bounds()
        mend(patches, bounds)
        self.gate = gates.Regions(Wrappers(patches, bounds, self.configs), graph.Libraries(patches))

    def run(self, region: Mapping[str, Any], wrapper: str) -> tuple[gates.RegionResult, list[Launch]]:
        """A region through its gate with this wrapper; its launches."""
        launches: list[Launch] = []
        texts = self.texts[region["graph"]], wrapper
        result = self.gate.check(region, texts, lambda launch, _: launches.append(launch))
        return result, launches


def config_of(kernel: Mapping[str, Any]) -> Config:
    lineage = kernel["lineage"]
    return Config(tuple(lineage["config"].items()), lineage["warps"], lineage["stages"])


def results(launches: Sequence[Launch]) -> str:
    """A digest of everything that launches left."""
    digest = hashlib.sha256()
    for launch in launches:
        for data in launch.after.values():
            digest.update(data.numpy().tobytes())
    return digest.hexdigest()


def sources(bench: Bench, number: int) -> Iterator[Answer]:
    """Changed sources; each wrapper holds the sources of its kernels. In one configuration, as a changed source has."""
    for configs in bench.configs.values():
        del configs[1:]
    every = []
    seen = set()
    for region in bench.regions:
        wrapper = bench.texts[region["wrapper"]]
        for kernel in bench.kernels:
            digest = kernel["lineage"]["source"]
            source = bench.texts[digest].strip("\n")
            if digest not in seen and source in wrapper:
                seen.add(digest)
                every += [(region, kernel, source, mutant) for mutant in mutants.of_source(source)]
    plain: dict[str, str] = {}
    for region, kernel, source, mutant in drawn(every, number):
        wrapper = bench.texts[region["wrapper"]]
        if region["wrapper"] not in plain:
            plain[region["wrapper"]] = results(bench.run(region, wrapper)[1])

        def tried(text: str, region: Any = region, source: str = source) -> tuple[str | None, bool]:
            """What the gate says of a text in place of the source, and whether it leaves the same bits."""
            before = bench.texts[region["wrapper"]]
            result, launches = bench.run(region, before.replace(source, text))
            told = result.failure or result.refused
            return told, told is None and results(launches) == plain[region["wrapper"]]

        told, same = tried(mutant.text)
        why = reasons.of_source(source, mutant, lambda text, tried=tried: tried(text)[1]) if same else None
        yield answer(kernel, mutant, told, same=same, why=why)


def ptx(bench: Bench, number: int) -> Iterator[Answer]:
    """Changed PTX, on launches of the unchanged sources."""
    launches: dict[tuple[str, Config], dict[inputs.Case, list[Launch]]] = {}
    for region in bench.regions:
        wrapper = bench.texts[region["wrapper"]]

        def noted(launch: Launch, case: inputs.Case) -> None:
            found = launches.setdefault((launch.source, launch.config), {}).setdefault(case, [])
            if len(found) < job.LAUNCHES:
                found.append(launch)

        bench.gate.check(region, (bench.texts[region["graph"]], wrapper), noted)
    every = [
        (kernel, mutant) for kernel in bench.kernels for mutant in mutants.of_ptx(bench.texts[kernel["lineage"]["ptx"]])
    ]
    for kernel, mutant in drawn(every, number):
        cases = launches[kernel["lineage"]["source"], config_of(kernel)]
        mine = list(itertools.chain(*cases.values()))
        plain, shared = parse(bench.texts[kernel["lineage"]["ptx"]]), kernel["shared"]
        try:
            changed = parse(mutant.text)
            told = next(filter(None, (gates.check_launch(changed, launch, shared) for launch in mine)), None)
            told = told or gates.check_indices(changed, cases[job.INDICES][0], shared)
        except UnsupportedError as error:
            told = f"refused: {error}"
        same = told is None and same_bits(changed, plain, mine, shared)
        why = reasons.of_ptx(changed, plain, mine, cases[job.INDICES][0], shared) if same else None
        yield answer(kernel, mutant, told, same=same, why=why)


def same_bits(changed: Program, plain: Program, launches: Sequence[Launch], shared: int) -> bool:
    """Whether both leave the same bits everywhere."""
    for launch in launches:
        try:
            one, other = (gates.run_ptx(program, launch, launch.before, shared) for program in (changed, plain))
        except FaultError:
            return False
        if any(not one[place].equal(other[place]) for place in one):
            return False
    return True


def answer(
    kernel: Mapping[str, Any], mutant: mutants.Mutant, told: str | None, *, same: bool, why: str | None
) -> Answer:
    return {
        "kernel": kernel["name"],
        "what": mutant.what,
        "line": mutant.line,
        "told": told,
        "same": same,
        "why": why,
    }


def main() -> int:
    directory, out = Path(sys.argv[1]), Path(sys.argv[2])
    number = int(sys.argv[3]) if len(sys.argv) > 3 else 200
    bench = Bench(directory)
    found: dict[str, list[Answer]] = {"source": [], "ptx": []}
    for kind, answers in (("ptx", ptx(bench, number)), ("source", sources(bench, number))):
        for one in answers:
            found[kind].append(one)
            partial = out.with_suffix(".partial")
            partial.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
            partial.replace(out)
        caught = sum(1 for one in found[kind] if one["told"])
        same = sum(1 for one in found[kind] if one["same"])
        print(f"{kind}: {len(found[kind])} changes, {caught} caught, {same} change no bit", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
