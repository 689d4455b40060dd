"""The `model-cache` command: parse arguments, run one command, print its result or its error.

Only what a command needs is imported: `model-cache list` must answer at once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from model_cache import __version__, console
from model_cache.console import Parser
from model_cache.errors import ModelCacheError, UsageError

EXIT_CODES = """exit codes:
  0  ok
  1  another failure
  2  wrong usage or input
  3  damaged: verification failed
  4  does not fit this host: refused
  5  not found
  6  compile failed
  7  not trusted: the signature is wrong, or this host requires one that it knows
 10  miss: the engine would compile, or did (check, rehearse); different (diff)
 11  unsafe: the engine would load what does not belong (check)
 12  unknown: nothing can be said (check)"""

BUILD_COMMANDS = {
    "check": "say before the start whether the engine would load a wheel, and why not",
    "compile": "compile a recipe for its targets, without a GPU and without weights",
    "diff": "say what differs between two wheels, down to the kernel",
    "find": "say which wheel for a model fits this host, before anything is downloaded",
    "index": "make a static package index of wheels, with a catalogue page",
    "keygen": "make a key pair to sign wheels with",
    "matrix": "plan and build many wheels from one file",
    "new": "make a recipe project from the command that serves the model",
    "pull": "download or install a wheel from the Hub",
    "push": "publish a wheel on the Hub",
    "rehearse": "start an unmodified engine under a pretended GPU and say whether it loads its cache",
    "selfcheck": "check a wheel's GPU kernels without a GPU",
    "sign": "sign finished wheels",
    "sigstore": "sign a finished wheel with an identity instead of a key",
    "targets": "list, show and probe the GPUs that a recipe can name",
    "variant": "make wheel variants of finished wheels (experimental)",
}
"""Commands of the build side, which is imported only when one of them is called."""

_MODULES = {
    "collect": "collect",
    "deploy": "deploy",
    "gc": "upkeep",
    "rollback": "deploy",
    "status": "status",
}
"""Where a command's function is, when it is not in `wheels`."""

_NAMES = "names of installed wheels, in any spelling that pip accepts"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return console.run(lambda: _command(arguments), as_json="--json" in own)


def _command(arguments: list[str]) -> int:
    if arguments and arguments[0] in BUILD_COMMANDS:
        return _build_command(arguments)
    return _run(make_parser().parse_args(arguments))


def _run(options: argparse.Namespace) -> int:
    import importlib

    module = _MODULES.get(options.command, "wheels")
    result = getattr(importlib.import_module(f"model_cache.commands.{module}"), f"run_{options.command}")(options)
    error: ModelCacheError | None = result.error
    if options.json:
        data = {**result.data, "error": error.as_dict()} if error else result.data
        sys.stdout.write(json.dumps(data, indent=1) + "\n")
    else:
        from model_cache.wheel.names import printable

        # Whatever a wheel, a state or a directory says may be in there.
        sys.stdout.writelines(f"{printable(line)}\n" for line in result.lines)
        if error:
            sys.stdout.flush()
            console.print_error(error, as_json=False)
    return error.exit_code if error else 0


def _build_command(arguments: list[str]) -> int:
    import importlib

    try:
        # By name: the serving side never depends on the build side.
        build = importlib.import_module("hatch_model_cache.cli")
        return int(build.main(arguments))
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("model_cache", ""):
            raise
        raise UsageError(
            f"`model-cache {arguments[0]}` needs the Python package {missing!r}: pip install 'hatch-model-cache[build]'"
        ) from error


def make_parser() -> argparse.ArgumentParser:
    """The whole command line of the serving side; build commands are names in it."""
    parser = Parser(
        prog="model-cache",
        description="Find, verify and deploy installed model caches; compile and inspect new ones.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"model-cache {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_list(commands)
    _add_inspect(commands)
    _add_verify(commands)
    _add_deploy(commands)
    _add_rollback(commands)
    _add_remove(commands)
    _add_gc(commands)
    _add_status(commands)
    _add_collect(commands)
    _add_trust(commands)
    for name, text in BUILD_COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction[Parser]


def _add(commands: _Commands, name: str, text: str, more: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}. {more}",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, also for errors")
    return parser


def _add_list(commands: _Commands) -> None:
    _add(commands, "list", "list the installed model cache wheels", "Nothing is verified.")


def _add_inspect(commands: _Commands) -> None:
    more = "Its manifest and its list\nof files are checked, their contents are not (that is `verify`)."
    parser = _add(commands, "inspect", "show what a wheel holds and how it was built", more)
    parser.add_argument("wheel", metavar="NAME|WHEEL", help="an installed wheel's name, or the path of a .whl file")
    parser.add_argument(
        "--pickles", action="store_true", help="list what its pickles would import, without unpickling them"
    )


def _add_verify(commands: _Commands) -> None:
    more = (
        "Without names, all installed wheels.\n"
        "A hash proves that a wheel is intact; only a signature by a key that you trust says who made it.\n"
        "Nothing in it is imported or unpickled."
    )
    parser = _add(commands, "verify", "check every byte of wheels against their manifests", more)
    parser.add_argument(
        "wheels",
        metavar="NAME|WHEEL|DIR",
        nargs="*",
        help=f"{_NAMES}, or paths of .whl files or of directories of them",
    )
    parser.add_argument("--root", metavar="DIR", help="check also what deploy has put into this cache root")
    parser.add_argument(
        "--trust",
        metavar="FILE",
        action="append",
        help="require a signature by this public key, or by one of this directory's, and by no other (may be repeated)",
    )
    _add_quiet(parser)


def _add_deploy(commands: _Commands) -> None:
    more = (
        "Without names, every\ninstalled wheel that fits. A wheel is verified completely before anything is written;\n"
        "what is already there and was not put there by deploy is left alone."
    )
    parser = _add(commands, "deploy", "copy wheels that fit this host into the engine's cache root", more)
    parser.add_argument("names", metavar="NAME", nargs="*", help=_NAMES)
    _add_root(parser)
    parser.add_argument(
        "--overlay",
        metavar="DIR",
        help="the cache root cannot be written to: make DIR a root with links to the intact files in it, copies of "
        "the others, and room for what the engine adds; prints the environment that says so",
    )
    _add_assumed(parser)
    _add_dry_run(parser)
    _add_quiet(parser)


def _add_rollback(commands: _Commands) -> None:
    more = (
        "Every upgrade or\ndowngrade keeps the one version before; it comes back verified, and the present one is kept "
        "in its turn. Engine\nstarts then leave the version alone that was rolled back from, until a deploy by name."
    )
    parser = _add(commands, "rollback", "bring the version back that was deployed before", more)
    parser.add_argument("names", metavar="NAME", nargs="+", help="names of deployed wheels")
    _add_root(parser)
    _add_assumed(parser)
    _add_dry_run(parser)
    _add_quiet(parser)


def _add_gc(commands: _Commands) -> None:
    more = (
        "Gone: not\ninstalled any more. Stale: built for another engine, torch, Triton or Python than is installed. "
        "Not trusted:\nsigned by a key that is revoked, or not as this host requires; that is kept out of the way. "
        "Files that the engine\nhas added are named and stay; what killed deploys left is deleted."
    )
    text = "take out of a cache root what belongs to wheels that are gone, stale or not trusted any more"
    parser = _add(commands, "gc", text, more)
    _add_root(parser)
    _add_dry_run(parser)
    _add_quiet(parser)


def _add_remove(commands: _Commands) -> None:
    more = (
        "Files that the engine has\nadded or changed are named and stay. While the wheel is installed, the plug-in "
        "deploys it again when\nan engine starts; uninstall it with pip."
    )
    parser = _add(commands, "remove", "take away exactly what deploy has put into a cache root", more)
    parser.add_argument("names", metavar="NAME", nargs="+", help="names of deployed wheels, installed or not")
    _add_root(parser)
    _add_dry_run(parser)
    _add_quiet(parser)


def _add_status(commands: _Commands) -> None:
    more = "What the plug-in\nhas recorded of the engine's look-ups, and whether the files are as they were written."
    parser = _add(commands, "status", "say which deployed wheels the engine has really used", more)
    _add_root(parser)
    parser.add_argument("--format", choices=["text", "prometheus"], default="text", help="how to print it")
    parser.add_argument("--watch", action="store_true", help="go on, and show what changes, until Ctrl-C")


def _add_collect(commands: _Commands) -> None:
    more = "Libraries of an\nengine write to places of their own; a wheel fills the engine's. Nothing is changed."
    parser = _add(commands, "collect", "list every compile cache of this host, and which of them wheels fill", more)
    _add_root(parser)


def _add_trust(commands: _Commands) -> None:
    more = (
        "Keys lie in\n/etc/model-cache/trusted.d and ~/.config/model-cache/trusted.d (*.pub, *.sigstore, and a file "
        "`revoked`), and where\nMODEL_CACHE_TRUST says. As soon as there is one, only wheels with a signature by a "
        "trusted key are deployed;\nMODEL_CACHE_POLICY (require, prefer, off) says otherwise."
    )
    parser = _add(commands, "trust", "say which signers this host trusts, and change it", more)
    parser.set_defaults(action="list")
    actions = parser.add_subparsers(metavar="list|add|add-identity|remove|revoke")
    for action, argument, text in (
        ("list", "", "list policy, places and keys"),
        ("add", "file", "trust the public key in FILE"),
        ("add-identity", "identity", "trust what the mail address or URI IDENTITY signs with Sigstore"),
        ("remove", "id", "trust the key ID no longer; others than its file are not touched"),
        ("revoke", "id", "refuse everything the key ID has signed, also where nothing is required"),
    ):
        inner = actions.add_parser(action, help=text, description=f"{text[0].upper()}{text[1:]}.")
        inner.set_defaults(action=action)
        inner.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object")
        if argument:
            inner.add_argument(argument, metavar=argument.upper())
            inner.add_argument("--system", action="store_true", help="for all users, in /etc/model-cache/trusted.d")
        if action == "add-identity":
            inner.add_argument("--issuer", metavar="URL", required=True, help="who has to vouch for it")
            inner.add_argument("--root", metavar="FILE", required=True, help="trusted root of the Sigstore instance")
            inner.add_argument("--name", default="", help="whose identity it is, for messages")
        if action.startswith("add"):
            inner.add_argument("--expires", metavar="TIME", help="until when, in UTC: 2027-01-31T00:00:00Z")


def _add_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root",
        metavar="DIR",
        help="the engine's cache root (default: VLLM_CACHE_ROOT, else XDG_CACHE_HOME/vllm, else ~/.cache/vllm)",
    )


def _add_assumed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--assume-target",
        metavar="TARGET",
        help="take this host for one with that GPU instead of asking the driver (image builds; default: "
        "MODEL_CACHE_ASSUME_TARGET); must be one of the wheel's targets",
    )


def _add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="check everything, say what would be done, write nothing"
    )


def _add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="print errors only")


if __name__ == "__main__":
    sys.exit(main())
