"""The commands of the serving side: each turns parsed options into a result that can be printed as text or JSON."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from model_cache.discovery import scan
from model_cache.errors import DamagedError, MismatchError, ModelCacheError, NotFoundError, NotTrustedError, UsageError
from model_cache.names import printable

if TYPE_CHECKING:
    from model_cache.deploy import Outcome
    from model_cache.host import Host
    from model_cache.trust import Origin
    from model_cache.verify import Progress

_NONE_INSTALLED = "no model cache wheel is installed in this Python environment"


class Result(NamedTuple):
    """data: for `--json`; lines: for people; error: when the command has failed after all."""

    data: dict[str, Any]
    lines: Sequence[str] = ()
    error: ModelCacheError | None = None


def run_list(_: Namespace) -> Result:
    """`model-cache list`."""
    from model_cache.summary import Summarizer

    wheels = [*map(Summarizer().summarize, scan().wheels)]
    if not wheels:
        return Result({"wheels": []}, [_NONE_INSTALLED])
    rows = [("NAME", "VERSION", "MODEL", "ENGINE", "TARGETS", "SIZE")]
    for wheel in wheels:
        if wheel.problem:
            rows.append((wheel.name, wheel.version, f"damaged: {wheel.problem}", "", "", ""))
        else:
            targets = ", ".join(wheel.targets)
            rows.append((wheel.name, wheel.version, wheel.model, wheel.engine, targets, _human(wheel.size)))
    stale = [f"stale: {printable(wheel.name)}: {printable('; '.join(wheel.stale))}" for wheel in wheels if wheel.stale]
    return Result({"wheels": [wheel.as_dict() for wheel in wheels]}, [*_table(rows), *stale])


def run_inspect(options: Namespace) -> Result:
    """`model-cache inspect NAME|WHEEL`."""
    from model_cache import contents
    from model_cache.description import describe
    from model_cache.lookup import open_payload
    from model_cache.trust import Trust
    from model_cache.verify import read_manifest

    with open_payload(options.wheel) as payload:
        found = read_manifest(payload, Trust.of_this_host().lenient())
        looked = [*contents.look(payload, found.manifest)] if options.pickles else []
    data: dict[str, Any] = {
        "manifest": found.manifest.as_dict(),
        "manifest_sha256": found.manifest_sha256,
        "origin": found.origin.as_dict(),
    }
    origin = found.origin.text.replace("intact, ", "")  # the contents were not looked at
    lines = [*describe(found.manifest), f"  origin     {origin}"]
    if options.pickles:
        data["pickles"] = [contents.as_dict(one) for one in looked]
        lines.append("  pickles would import (read, never unpickled; ! is not in the list of what the engine needs):")
        lines += [line for one in looked for line in contents.describe(one, found.manifest.engine.name)]
    return Result(data, [printable(line) for line in lines])


def run_verify(options: Namespace) -> Result:
    """`model-cache verify [NAME|WHEEL …]`."""
    from model_cache.lookup import open_payload
    from model_cache.trust import Trust
    from model_cache.verify import verify

    trust = Trust.of_files(options.trust) if options.trust else Trust.of_this_host()
    names = options.wheels or sorted({wheel.name for wheel in scan().wheels})
    if not names:
        raise NotFoundError(_NONE_INSTALLED)
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    errors: list[ModelCacheError] = []
    for name in names:
        row: dict[str, Any] = {"name": name, "status": "intact", "problems": []}
        try:
            with open_payload(name) as payload:
                found = verify(payload, progress=_progress(options, f"verify {payload.label}"), trust=trust)
                row["name"] = payload.name
            blobs = found.manifest.blobs()
            row |= {
                "version": found.manifest.version,
                "manifest_sha256": found.manifest_sha256,
                "files": len(blobs),
                "bytes": sum(blobs.values()),
                "origin": found.origin.as_dict(),
            }
            if options.root:
                row["deployed"] = _verify_deployed(found.manifest.name, options.root)
            size = f"{len(blobs)} files, {_human(row['bytes'])}"
            lines.append(f"intact: {found.manifest.name} {found.manifest.version} ({size}); {found.origin.text}")
        except ModelCacheError as error:
            row |= {"status": error.kind, "problems": [error.message, *error.problems]}
            errors.append(error)
        rows.append(row)
    return Result({"wheels": rows}, unless_quiet(options, lines), joined(errors))


def _verify_deployed(name: str, root_path: str) -> int:
    """Compare what is deployed with what was written; the number of files. Raises DamagedError."""
    from model_cache import location, staging, state
    from model_cache.root import Root
    from model_cache.status import OTHERS
    from model_cache.verify import Deadline

    with Root.open(location.cache_root(root_path)) as root:
        found = state.require(root, name)
        others = staging.others(root, found.entries, Deadline())
        problems = [f"{directory}: {OTHERS}" for directory in others]
        for entry in found.ours():
            comparison = staging.compare(root, entry.directory, entry.files, Deadline())
            missing = comparison.missing if comparison else [file.path for file in entry.files]
            problems += [f"{entry.directory}/{path} is missing" for path in missing]
            problems += (
                [f"{entry.directory}/{path} has other content" for path in comparison.changed] if comparison else []
            )
    if found.phase != "deployed":
        problems.append(f"the last deploy was interrupted (phase {found.phase})")
    if others and len(problems) == len(others):
        raise DamagedError(
            f"{name}: is not in {root.path} as a whole; take away what is there (`model-cache remove` that wheel), "
            f"then `model-cache deploy {name}`",
            problems,
        )
    if problems:
        raise DamagedError(f"{name}: is damaged in {root.path}; `model-cache deploy {name}` restores it", problems)
    return sum(len(entry.files) for entry in (*found.entries, *found.superseded))


def run_deploy(options: Namespace) -> Result:
    """`model-cache deploy [NAME …]`."""
    from model_cache import location
    from model_cache.host import ASSUME_TARGET
    from model_cache.lookup import installed

    base = location.cache_root(options.root)
    root = location.cache_root(options.overlay) if options.overlay else base
    assumed = options.assume_target or os.environ.get(ASSUME_TARGET) or None
    if options.overlay and printable(root) != root:
        raise UsageError(f"the overlay {root} has a name that no shell line can hold; give another")
    names = [installed(name).name for name in options.names] or sorted({wheel.name for wheel in scan().wheels})
    if not names:
        raise NotFoundError(_NONE_INSTALLED)
    hosts: dict[str, Host] = {}
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    errors: list[ModelCacheError] = []
    for name in dict.fromkeys(names):
        try:
            outcome, origin = _deploy_one(name, root, base if options.overlay else None, assumed, hosts, options)
            done = "deployed" if outcome.changed else "unchanged"
            rows.append({**outcome_data(outcome), "outcome": done, "origin": origin.as_dict()})
            lines += [*outcome_lines(outcome, root), f"  {origin.text}"]
        except ModelCacheError as error:
            row = {"name": name, "outcome": error.kind, "problems": [error.message, *error.problems]}
            rows.append({**row, "differences": _differences(error)} if isinstance(error, MismatchError) else row)
            errors.append(error)
    if not options.names:
        # Asked for whatever fits: that some wheels are for other hosts, or held back, is no failure.
        some = len(errors) < len(names)
        refused = [e for e in errors if e.kind == "held" or (some and isinstance(e, MismatchError))]
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
    from model_cache.deploy import deploy
    from model_cache.host import read_host
    from model_cache.lookup import installed
    from model_cache.payload import InstalledPayload
    from model_cache.verify import read_manifest

    with InstalledPayload(installed(name)) as payload:
        known = read_manifest(payload)
        engine = known.manifest.engine.name
        if engine not in hosts:
            hosts[engine] = read_host(engine, assumed)
        progress = _progress(options, f"deploy {payload.label}")
        outcome = deploy(
            payload,
            root,
            hosts[engine],
            dry_run=options.dry_run,
            hold=not options.names,
            base_path=base,
            progress=progress,
        )
        return outcome, known.origin


def outcome_data(outcome: Outcome) -> dict[str, Any]:
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


def outcome_lines(outcome: Outcome, root: str) -> Sequence[str]:
    """What a deploy or rollback did, for people."""
    label = f"{outcome.name} {outcome.version}"
    would = "would be " if outcome.dry_run else ""
    lines = []
    for action in ("deployed", "restored", "unchanged", "kept"):
        entries = [entry for entry in outcome.entries if entry.action == action]
        if entries:
            size = f", {_human(outcome.bytes_written)}" if action == "deployed" and outcome.bytes_written else ""
            count = f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}{size}"
            lines.append(f"{would}{action}: {label} ({count}) for {', '.join(outcome.targets)} in {root}")
        lines += [f"  {entry.directory} {entry.note}" for entry in entries if entry.note]
    lines += [f"{would}removed, of another version: {directory}" for directory in outcome.removed]
    lines += [f"  left, not ours: {printable(path)}" for path in outcome.left]
    if outcome.previous and outcome.changed:
        lines.append(f"  kept for `model-cache rollback {outcome.name}`: {outcome.previous}")
    lines += [f"  note: {printable(note)}" for note in outcome.notes]
    return lines


def _differences(error: MismatchError) -> Sequence[dict[str, str]]:
    fit = getattr(error, "fit", None)
    return [{"field": d.field, "wheel": d.wheel, "host": d.host} for d in fit.differences] if fit else []


def run_status(options: Namespace) -> Result:
    """`model-cache status`."""
    from model_cache import location, status
    from model_cache.root import Root

    with Root.open(location.cache_root(options.root)) as root:
        found, errors = status.report(root)
    told = status.prometheus(found) if options.format == "prometheus" else status.lines(found, unreadable=len(errors))
    return Result(status.data(found), list(told), joined(errors))


def run_remove(options: Namespace) -> Result:
    """`model-cache remove NAME …`."""
    from model_cache import location
    from model_cache.names import normalize
    from model_cache.removal import remove

    root = location.cache_root(options.root)
    still_installed = {wheel.name for wheel in scan().wheels}
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    errors: list[ModelCacheError] = []
    for name in dict.fromkeys(map(normalize, options.names)):
        try:
            done = remove(name, root)
        except ModelCacheError as error:
            rows.append({"name": name, "outcome": error.kind, "problems": [error.message, *error.problems]})
            errors.append(error)
            continue
        row = {
            "removed": [*done.removed],
            "left": [*done.left],
            "kept": [*done.kept],
            "installed": name in still_installed,
        }
        rows.append({"name": done.name, "version": done.version, "outcome": "removed", **row})
        lines.append(f"removed: {done.name} {done.version} ({len(done.removed)} entries) from {root}")
        lines += [f"  left, not ours: {printable(path)}" for path in done.left]
        lines += [f"  left, was there before: {directory}" for directory in done.kept]
        if name in still_installed:
            lines.append(f"  {name} is still installed: the next engine start deploys it again; pip uninstall it")
    return Result({"root": root, "wheels": rows}, unless_quiet(options, lines), joined(errors))


def run_trust(options: Namespace) -> Result:
    """`model-cache trust list|add|remove|revoke`."""
    from model_cache import trust_commands

    data, lines = trust_commands.run(options)
    return Result(data, [printable(line) for line in lines])


def joined(errors: Sequence[ModelCacheError]) -> ModelCacheError | None:
    """One error for all: its kind is that of the worst (damage before refusal before absence before the rest)."""
    if len(errors) < 2:
        return errors[0] if errors else None
    worst = min(errors, key=lambda error: {3: 0, 7: 1, 4: 2, 5: 3}.get(error.exit_code, 4))
    kinds = {3: DamagedError, 4: MismatchError, 5: NotFoundError, 7: NotTrustedError}
    problems = [line.strip().removeprefix("- ") for error in errors for line in str(error).splitlines()]
    return kinds.get(worst.exit_code, ModelCacheError)(f"{len(errors)} wheels failed", problems)


def unless_quiet(options: Namespace, lines: Sequence[str]) -> Sequence[str]:
    """`lines`, or none with `--quiet`."""
    return [] if options.quiet else lines


def _progress(options: Namespace, label: str) -> Progress | None:
    if options.quiet or options.json or not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        sys.stderr.write(f"\r{label}: {_human(done)} of {_human(total)}{end}")
        sys.stderr.flush()

    return show


def _human(size: int) -> str:
    from model_cache.files import human

    return human(size)


def _table(rows: Sequence[tuple[str, ...]]) -> Sequence[str]:
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]
