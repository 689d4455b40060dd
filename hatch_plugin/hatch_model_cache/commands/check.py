"""`model-cache check`: what would the engine do with the installed wheels, and why."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hatch_model_cache import probe, targets
from hatch_model_cache.checking import check
from hatch_model_cache.checking.verdict import ADOPTABLE, Answer, Verdict, judge
from hatch_model_cache.compile import engines
from hatch_model_cache.compiling import engine_process, interpreter, progress
from model_cache.console import Parser, print_json
from model_cache.errors import NotFoundError, UsageError
from model_cache.machine import cpu
from model_cache.machine.host import probe_gpus
from model_cache.wheel import small_file
from model_cache.wheel.discovery import scan
from model_cache.wheel.lookup import open_payload
from model_cache.wheel.manifest import Manifest
from model_cache.wheel.names import printable
from model_cache.wheel.verify import read_manifest

_DESCRIPTION = """\
Let the installed engine compute what it would look for if it were started with
exactly this command and environment, and compare that with the manifests, value
by value. Nothing is compiled, and no GPU memory is used. With a recipe's directory
instead of a command: what it leaves to defaults that depend on the GPU."""

_EPILOG = """\
exit codes:
  0  hit: the engine would load the wheel
 10  miss: it would compile
 11  unsafe: it would load something that does not belong
 12  unknown: nothing can be said (an engine version without adapter)
  2  wrong usage or input
  6  the engine could not be asked
"""


def add_parsers(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register ``check``; its ``run`` takes the Namespace and returns the exit code."""
    parser = commands.add_parser(
        "check",
        help="say before the start whether the engine would load a wheel, and why not",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.usage = (
        "model-cache check [options] [NAME|WHEEL …] -- vllm serve MODEL …\n       model-cache check RECIPE_DIR"
    )
    parser.add_argument("what", nargs="*", metavar="NAME|WHEEL|RECIPE_DIR", help="wheels (default: all installed)")
    parser.add_argument("--target", metavar="NAME", help="check for a host with this GPU, not the one here")
    parser.add_argument("--env", type=Path, metavar="FILE", help="NAME=value lines to add to the environment")
    parser.add_argument("--from-pid", type=int, metavar="PID", help="take command and environment of this process")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="show no progress, also on a terminal")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    words: list[str] = arguments.engine_command
    if not words and arguments.from_pid is None:
        return _check_recipe(arguments)
    environment, directory = dict(os.environ) if arguments.target is None else interpreter.elsewhere(), None
    if arguments.from_pid is not None:
        if words:
            raise UsageError("give --from-pid or a command after --, not both")
        words, environment, directory = check.read_process(arguments.from_pid)
    if arguments.env is not None:
        environment.update(check.read_environment_file(arguments.env))
    command = check.parse_command(words)
    environment.update(command.environment)
    manifests = _manifests(arguments.what)
    command, python = installed(command)
    target = target_record(arguments.target, engines.adapter(command.engine).KIND, environment)
    try:
        with progress.shown(quiet=arguments.quiet) as shown:
            seen = check.observe(command, target, python, environment=environment, directory=directory, progress=shown)
    except engine_process.UnknownEngineError as error:
        return _tell(arguments, [Verdict(m.name, m.version, Answer.UNKNOWN, (), {}) for m in manifests], str(error))
    known = engines.adapter(command.engine).rules(seen.engine["version"])
    return _tell(arguments, [judge(manifest, seen, known) for manifest in manifests])


def _manifests(names: Sequence[str]) -> list[Manifest]:
    """Manifests of the given wheels, or of all installed ones."""
    wanted = list(names) or [wheel.name for wheel in scan().wheels]
    if not wanted:
        raise NotFoundError("no model cache wheel is installed in this Python environment, and none was given")
    found = []
    for name in wanted:
        with open_payload(name) as payload:
            found.append(read_manifest(payload).manifest)
    return found


def installed(command: check.Command) -> tuple[check.Command, str]:
    """The command with the distribution that it is of, since several have one called `vllm`; its interpreter."""
    names = [name for name in engines.SERVERS if name.startswith(command.engine)]
    python = interpreter.of_host(next(filter(interpreter.is_here, names), command.engine))
    return replace(command, engine=interpreter.has(python, names) or command.engine), python


def target_record(
    name: str | None, kind: str = "gpu", environment: Mapping[str, str] = os.environ
) -> Mapping[str, Any]:
    """The record of the named target, or of what is here: the first GPU, or the CPU.

    Args:
        name: of a target.
        kind: that the engine runs on.
        environment: the engine's; some of it decides what a CPU is to torch.
    """
    if name is not None:
        record = targets.load(name).as_dict()
        if record["kind"] != kind:
            raise UsageError(f"{name} is a {record['kind']}, and the engine here runs on a {kind}")
    if kind == "cpu":
        return _this_cpu(name, environment)
    if name is not None:
        return record
    gpus = probe_gpus()
    if not gpus.gpus:
        raise NotFoundError(f"no GPU to check for ({gpus.reason}): give --target NAME")
    return {"name": "this-host", "unverified": [], **vars(gpus.gpus[0])}


def _this_cpu(name: str | None, environment: Mapping[str, str]) -> Mapping[str, Any]:
    """A CPU is not pretended: whatever target is named, the engine is asked on the CPU that is here."""
    here = probe.cpu_target(environment)
    if name is not None and (here is None or here.name != name):
        raise UsageError(f"a CPU cannot be pretended: this one is {here.name if here else 'of no shipped target'}")
    found = cpu.read(environment)
    return {
        "name": here.name if here else "this-host",
        "kind": "cpu",
        "machine": found.machine,
        "vec_isa": found.vec_isa,
        "cpu_capability": found.capability,
        "flags": sorted(found.flags),
    }


def _check_recipe(arguments: argparse.Namespace) -> int:
    """What a recipe leaves to the GPU or to the entry point."""
    from hatch_model_cache.recipe.file import load_recipe, project_version, version_warnings

    directories = [Path(what) for what in arguments.what]
    modes = [small_file.mode(directory) for directory in directories]
    if modes == [0]:
        raise UsageError(
            f"{printable(str(directories[0])):.300} does not exist: give the directory of a recipe, "
            "or for a wheel the engine's command line after --"
        )
    if len(modes) != 1 or not stat.S_ISDIR(modes[0]):
        raise UsageError("give the engine's command line after --, or the directory of one recipe")
    recipe = load_recipe(directories[0])
    warnings = [*recipe.warnings(), *version_warnings(project_version(directories[0]) or "")]
    if arguments.json:
        print_json({"recipe": str(directories[0]), "warnings": warnings})
    else:
        sys.stdout.write("".join(f"{warning}\n" for warning in warnings or ["everything is pinned"]))
    return 0


def _tell(arguments: argparse.Namespace, verdicts: Sequence[Verdict], problem: str = "") -> int:
    """Print the verdicts, the one that decides first; its exit code."""
    # Of two wheels with one key the engine loads whichever lies there, so one that is unsafe speaks for all.
    ranks = [Answer.UNSAFE, Answer.HIT, Answer.MISS, Answer.UNKNOWN]
    ordered = sorted(verdicts, key=lambda v: (ranks.index(v.answer), len(v.reasons)))
    answer = ordered[0].answer
    if arguments.json:
        document = {"verdict": str(answer), "problem": problem or None, "wheels": [_plain(v) for v in ordered]}
        print_json(document)
        return answer.value
    if problem:
        sys.stdout.write(f"{problem}\n")
    for verdict in ordered:
        sys.stdout.write(f"{verdict.answer}: {verdict.name} {verdict.version}\n")
        for reason in verdict.reasons:
            sys.stdout.write(f"  {reason}\n")
        if verdict.adoptable:
            sys.stdout.write(f"  {ADOPTABLE}\n")
    return answer.value


def _plain(verdict: Verdict) -> dict[str, object]:
    reasons = [{**vars(reason), "answer": str(reason.answer)} for reason in verdict.reasons]
    return {**vars(verdict), "answer": str(verdict.answer), "reasons": reasons, "keys": dict(verdict.keys)}
