"""`model-cache rehearse`: an unmodified engine starts under a pretended GPU."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from model_cache.console import Parser, print_json
from model_cache.errors import CompileError, ModelCacheError, UsageError
from model_cache.wheel.names import counted

if TYPE_CHECKING:
    from model_cache.engine.lookups import LookUp


def add_parsers(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register ``rehearse``."""
    parser = commands.add_parser(
        "rehearse",
        help="start an unmodified engine under a pretended GPU and say whether it loads its cache",
        description="Start the engine as given, under a pretended GPU, and end it where it would run the model. Shows "
        "whether an installed wheel is found and loaded; not that its kernels are right or fast: nothing runs. "
        "Exit code 0: everything was loaded and nothing compiled; 10: the engine compiled; 11: what was loaded is "
        "unsafe.",
    )
    parser.add_argument("--target", required=True, metavar="NAME", help="the GPU to pretend (model-cache targets)")
    parser.add_argument("--root", type=Path, metavar="DIR", help="use (and change) this cache root, not an empty one")
    parser.add_argument(
        "--timeout", type=_seconds, default=900, metavar="SECONDS", help="end the engine after that long"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.usage = "model-cache rehearse [-h] --target NAME [--timeout SECONDS] [--json] -- vllm serve MODEL …"
    parser.set_defaults(run=_run)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, not {text}")
    return seconds


def _run(arguments: argparse.Namespace) -> int:
    import dataclasses
    import tempfile

    from hatch_model_cache import targets
    from hatch_model_cache.checking import check
    from hatch_model_cache.compile import engines
    from hatch_model_cache.compiling import interpreter, rehearsal

    if not arguments.engine_command:
        raise UsageError("give the engine's command line after --: model-cache rehearse --target NAME -- vllm serve …")
    target = targets.load_gpu(arguments.target)
    begun = time.time()
    with tempfile.TemporaryDirectory(prefix="model-cache-rehearsal-root-") as scratch:
        # a cache root of its own: a rehearsal that misses compiles, and must leave nothing where servers look
        adapter = engines.adapter(check.parse_command(arguments.engine_command).engine)
        root = arguments.root or Path(scratch)
        environment = {**interpreter.elsewhere(), **adapter.environment(root)}
        environment["MODEL_CACHE_ASSUME_TARGET"] = target.name  # the plug-in cannot see a pretended GPU
        report = rehearsal.rehearse(
            arguments.engine_command, target.name, environment=environment, timeout=arguments.timeout
        )
        seen = _seen(root, begun)
    if arguments.json:
        look_ups = [dataclasses.asdict(one) for one in seen]
        answer = {"target": target.name, "pretended": True, "warm": report.warm, **dataclasses.asdict(report)}
        print_json({**answer, "look_ups": look_ups})
    else:
        each = f"by each of {len(report.ranks)} ranks " if len(report.ranks) > 1 else ""
        sys.stdout.write(
            f"{'warm' if report.warm else 'cold'} start under a pretended {target.device_name}: "
            f"{counted(report.loaded, 'artifact')} loaded ({counted(report.parts, 'part')}) "
            f"{each}in {report.load_seconds:.1f} s, "
            f"{counted(report.inductor_compiles, 'Inductor compile')}, {counted(report.ptxas_runs, 'ptxas run')}; "
            f"{report.seconds:.1f} s until the first call of the model\n"
        )
        sys.stdout.writelines(f"  {line}\n" for one in seen for line in _told(one))
    if report.error:
        raise CompileError(f"The engine core ended early: {report.error}")
    if not report.warm:
        return 10
    return 11 if any(one.unsafe for one in seen) else 0


def _seen(root: Path, begun: float) -> list[LookUp]:
    """What the plug-in has recorded of this start; nothing where it is not installed beside the engine."""
    from model_cache.engine import lookups
    from model_cache.store.root import Root

    with contextlib.suppress(ModelCacheError), Root.open(str(root)) as opened:
        return [one for one in lookups.read(opened) if one.time >= begun]
    return []


def _told(one: LookUp) -> Iterator[str]:
    """What a user would otherwise look for in the log that is gone."""
    from model_cache.engine.nearest import Nearest

    what = f"{one.prefix} rank {one.rank}"
    if one.hit and one.adopted:
        yield f"{what}: adopted from {one.wheel}, which was built under another name of the model"
    if one.unsafe:
        yield f"{what}: unsafe: {one.unsafe}"
    if not one.hit and (why := Nearest(one.nearest, one.differences, reason=one.reason).line()):
        yield f"{what}: miss: {why}"
