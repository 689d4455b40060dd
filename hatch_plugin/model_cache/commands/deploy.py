"""The commands that put a version in place: `deploy` and `rollback`."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from model_cache.commands.results import NONE_INSTALLED, Result, human, joined, progress, unless_quiet
from model_cache.errors import MismatchError, ModelCacheError, NotFoundError, UsageError
from model_cache.wheel.discovery import scan
from model_cache.wheel.names import counted, printable

if TYPE_CHECKING:
    from model_cache.machine.host import Host
    from model_cache.origin.trust import Origin
    from model_cache.store.deploy import Outcome


def run_deploy(options: Namespace) -> Result:
    """`model-cache deploy [NAME …]`."""
    from model_cache.machine.host import ASSUME_TARGET
    from model_cache.store import location
    from model_cache.store.plan import OccupiedError
    from model_cache.wheel.lookup import installed

    base = location.cache_root(options.root)
    root = location.cache_root(options.overlay) if options.overlay else base
    assumed = options.assume_target or os.environ.get(ASSUME_TARGET) or None
    if options.overlay and printable(root) != root:
        raise UsageError(f"the overlay {root} has a name that no shell line can hold; give another")
    names = [installed(name).name for name in options.names] or sorted({wheel.name for wheel in scan().wheels})
    if not names:
        raise NotFoundError(NONE_INSTALLED)
    hosts: dict[str, Host] = {}
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    errors: list[ModelCacheError] = []
    for name in dict.fromkeys(names):
        try:
            outcome, origin = _deploy_one(name, root, base if options.overlay else None, assumed, hosts, options)
            done = "deployed" if outcome.changed else "unchanged"
            done = "occupied" if outcome.occupied else done
            rows.append({**_data(outcome), "outcome": done, "from": outcome.replaced, "origin": origin.as_dict()})
            lines += [*_lines(outcome, root, "switched", outcome.replaced), f"  {origin.text}"]
            if outcome.occupied:
                errors.append(OccupiedError(outcome, root))
        except ModelCacheError as error:
            row = {"name": name, "outcome": error.kind, "problems": [error.message, *error.problems]}
            rows.append({**row, "differences": _differences(error)} if isinstance(error, MismatchError) else row)
            errors.append(error)
    if not options.names:
        # Asked for whatever fits: that some wheels are for other hosts, held back, or not needed where the engine has
        # compiled already, is no failure.
        some = len(errors) < len(names)
        refused = [e for e in errors if e.kind in ("held", "occupied") or (some and isinstance(e, MismatchError))]
        lines += [printable(line) for error in refused for line in str(error).splitlines()]
        errors = [error for error in errors if error not in refused]
    result = Result({"root": root, "wheels": rows}, unless_quiet(options, lines), joined(errors))
    if not options.overlay:
        return result
    # The answer is how to start the engine, so `--quiet` prints it too.
    environment = {"VLLM_CACHE_ROOT": root}
    shown = [f"{key}={shlex.quote(value)}" for key, value in environment.items()] if not result.error else []
    return Result({**result.data, "environment": environment}, [*result.lines, *shown], result.error)


def _deploy_one(
    name: str, root: str, base: str | None, assumed: str | None, hosts: dict[str, Host], options: Namespace
) -> tuple[Outcome, Origin]:
    from model_cache.machine.host import read_host
    from model_cache.store.deploy import deploy
    from model_cache.wheel.lookup import installed
    from model_cache.wheel.payload import InstalledPayload
    from model_cache.wheel.verify import read_manifest

    with InstalledPayload(installed(name)) as payload:
        known = read_manifest(payload)
        engine = known.manifest.engine.name
        if engine not in hosts:
            hosts[engine] = read_host(engine, assumed)
        outcome = deploy(
            payload,
            root,
            hosts[engine],
            dry_run=options.dry_run,
            hold=not options.names,
            base_path=base,
            progress=progress(options, f"deploy {payload.label}"),
        )
        return outcome, known.origin


def run_rollback(options: Namespace) -> Result:
    """`model-cache rollback NAME …`."""
    from model_cache.machine.host import ASSUME_TARGET, read_host
    from model_cache.store import deploy, kept, location, state
    from model_cache.store.plan import OccupiedError
    from model_cache.store.root import Root
    from model_cache.wheel.verify import read_manifest

    root_path = location.cache_root(options.root)
    assumed = options.assume_target or os.environ.get(ASSUME_TARGET) or None
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    errors: list[ModelCacheError] = []
    for name in dict.fromkeys(options.names):
        try:
            with Root.open(root_path) as root:
                found = state.require(root, name)
                if not found.rollback_to:
                    raise NotFoundError(f"{name}: no version before {found.version} is kept in {root_path}")
                with kept.open_kept(root, name, found.rollback_to) as payload:
                    engine = read_manifest(payload).manifest.engine.name
            host = read_host(engine, assumed)
            outcome = deploy.rollback(name, root_path, host, dry_run=options.dry_run)
        except ModelCacheError as error:
            rows.append({"name": name, "outcome": error.kind, "problems": [error.message, *error.problems]})
            errors.append(error)
            continue
        rows.append({**_data(outcome), "outcome": "rolled-back", "from": found.version})
        lines += _lines(outcome, root_path, "rolled back", found.version)
        if not options.dry_run:
            lines.append(
                f"  engine starts leave {found.version} alone; `model-cache deploy {outcome.name}` brings it back"
            )
        if outcome.occupied:
            errors.append(OccupiedError(outcome, root_path))
    return Result({"root": root_path, "wheels": rows}, unless_quiet(options, lines), joined(errors))


def _data(outcome: Outcome) -> dict[str, Any]:
    """What a deploy or rollback did, for `--json`."""
    return {
        "name": outcome.name,
        "version": outcome.version,
        "targets": [*outcome.targets],
        "entries": [{"directory": e.directory, "action": e.action, "note": e.note} for e in outcome.entries],
        "bytes_written": outcome.bytes_written,
        "removed": [*outcome.removed],
        "left": [*outcome.left],
        "dry_run": outcome.dry_run,
        "previous": outcome.previous,
        "notes": [*outcome.notes],
    }


def _lines(outcome: Outcome, root: str, switched: str, before: str) -> Sequence[str]:
    """What a deploy or rollback did, for people.

    switched: the word for having come from the version `before`, which is "" where no other version was there.
    """
    would = "would be " if outcome.dry_run else ""
    where = f"for {', '.join(outcome.targets)} in {root}"
    written = human(outcome.bytes_written) if outcome.bytes_written else ""
    counts = _counts(outcome)
    if before:
        was = "another build" if before == outcome.version else before
        # What another version had in the same place was whole, so nothing is "restored" by putting ours there.
        parts = [f"{'replaced' if action == 'restored' else action}: {count}" for action, count in counts.items()]
        parts += [f"written: {written}"] if written else []
        lines = [f"{would}{switched}: {outcome.name} from {was} to {outcome.version} ({'; '.join(parts)}) {where}"]
    else:
        label = f"{outcome.name} {outcome.version}"
        sizes = {"deployed": f", {written}" if written else ""}
        lines = [f"{would}{act}: {label} ({count}{sizes.get(act, '')}) {where}" for act, count in counts.items()]
    lines += [f"  {entry.directory} {entry.note}" for entry in outcome.entries if entry.note]
    lines += [f"{would}removed, of another version: {directory}" for directory in outcome.removed]
    lines += [f"  left, not ours: {printable(path)}" for path in outcome.left]
    if outcome.previous and outcome.changed:
        lines.append(f"  kept for `model-cache rollback {outcome.name}`: {outcome.previous}")
    lines += [f"  note: {printable(note)}" for note in outcome.notes]
    return lines


def _counts(outcome: Outcome) -> dict[str, str]:
    """Every action that was taken, and with how many entries."""
    numbers = Counter(entry.action for entry in outcome.entries)
    order = ("deployed", "restored", "unchanged", "kept")
    return {action: counted(numbers[action], "entry", "entries") for action in order if numbers[action]}


def _differences(error: MismatchError) -> Sequence[dict[str, str]]:
    fit = getattr(error, "fit", None)
    return [{"field": d.field, "wheel": d.wheel, "host": d.host} for d in fit.differences] if fit else []
