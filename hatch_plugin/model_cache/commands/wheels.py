"""The commands of the serving side: each turns parsed options into a result that can be printed as text or JSON."""

from __future__ import annotations

import os
import stat
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_cache.commands.results import NONE_INSTALLED, Result, human, joined, progress, table, unless_quiet
from model_cache.errors import DamagedError, ModelCacheError, NotFoundError
from model_cache.wheel import small_file
from model_cache.wheel.discovery import scan
from model_cache.wheel.names import PREFIX, counted, normalize, printable

if TYPE_CHECKING:
    from model_cache.store.state import State


def run_list(_: Namespace) -> Result:
    """`model-cache list`."""
    from model_cache.commands.summary import Summarizer

    wheels = [*map(Summarizer().summarize, scan().wheels)]
    root, direct = _compiled_into()
    rest = [f"compiled straight into {root}: {one.name}, for {', '.join(one.targets)}" for one in direct]
    told = [{"name": one.name, "targets": [*one.targets], "root": root} for one in direct]
    if not wheels:
        return Result({"wheels": [], "direct": told}, [NONE_INSTALLED, *map(printable, rest)])
    rows = [("NAME", "VERSION", "MODEL", "ENGINE", "TARGETS", "SIZE")]
    for wheel in wheels:
        if wheel.problem:
            rows.append((wheel.name, wheel.version, f"damaged: {wheel.problem}", "", "", ""))
        else:
            targets = ", ".join(wheel.targets)
            rows.append((wheel.name, wheel.version, wheel.model, wheel.engine, targets, human(wheel.size)))
    stale = [f"stale: {printable(wheel.name)}: {printable('; '.join(wheel.stale))}" for wheel in wheels if wheel.stale]
    data = {"wheels": [wheel.as_dict() for wheel in wheels], "direct": told}
    return Result(data, [*table(rows), *stale, *map(printable, rest)])


def _compiled_into() -> tuple[str, list[State]]:
    """The cache root of this environment, and what was compiled straight into it; no such root holds nothing."""
    from model_cache.store import location, state
    from model_cache.store.root import Root

    try:
        root = location.cache_root()
        with Root.open(root) as opened:
            return root, [one for one in state.load_all(opened)[0] if one.direct]
    except ModelCacheError:
        return "", []


def run_inspect(options: Namespace) -> Result:
    """`model-cache inspect NAME|WHEEL`."""
    from model_cache.commands.description import describe
    from model_cache.origin.trust import Trust
    from model_cache.wheel import contents
    from model_cache.wheel.lookup import open_payload
    from model_cache.wheel.verify import read_manifest

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
        lines.append(contents.verdict(looked, found.manifest.engine.name))
    return Result(data, [printable(line) for line in lines])


def run_verify(options: Namespace) -> Result:
    """`model-cache verify [NAME|WHEEL …]`."""
    from model_cache.origin.trust import Trust
    from model_cache.wheel.lookup import open_payload
    from model_cache.wheel.verify import verify

    trust = Trust.of_files(options.trust) if options.trust else Trust.of_this_host()
    names = _named(options.wheels) or sorted({wheel.name for wheel in scan().wheels})
    if not names:
        raise NotFoundError(NONE_INSTALLED)
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    errors: list[ModelCacheError] = []
    for name in names:
        row: dict[str, Any] = {"name": name, "status": "intact", "problems": []}
        try:
            with open_payload(name) as payload:
                found = verify(payload, progress=progress(options, f"verify {payload.label}"), trust=trust)
                row["name"] = payload.name
            blobs = found.manifest.blobs()
            row |= {
                "version": found.manifest.version,
                "manifest_sha256": found.manifest_sha256,
                "files": len(blobs),
                "bytes": sum(blobs.values()),
                "origin": found.origin.as_dict(),
            }
            size = f"{counted(len(blobs), 'file')}, {human(row['bytes'])}"
            told = [f"intact: {found.manifest.name} {found.manifest.version} ({size}); {found.origin.text}"]
            if options.root:
                there = _verify_deployed(found.manifest.name, options.root)
                number = sum(len(entry.files) for entry in (*there.entries, *there.superseded))
                row |= {"deployed": number, "deployed_version": there.version}
                told.append(f"  intact in {options.root}: {there.name} {there.version} ({counted(number, 'file')})")
            lines += told
        except ModelCacheError as error:
            row |= {"status": error.kind, "problems": [error.message, *error.problems]}
            errors.append(error)
        rows.append(row)
    return Result({"wheels": rows}, unless_quiet(options, lines), joined(errors))


def _named(words: Sequence[str]) -> list[str]:
    """What the user has named, and for a directory the wheels in it. Raises NotFoundError for one without any."""
    named: list[str] = []
    for word in words:
        # A directory may be called like an installed wheel: the name means the wheel, as it always does.
        is_path = os.sep in word or not normalize(word).startswith(PREFIX)
        if is_path and stat.S_ISDIR(small_file.mode(word)):
            inside = sorted(map(str, Path(word).glob("*.whl")))
            if not inside:
                raise NotFoundError(f"{word}: holds no wheel")
            named += inside
        else:
            named.append(word)
    return list(dict.fromkeys(named))


def _verify_deployed(name: str, root_path: str) -> State:
    """Compare what is deployed with what was written; what that was. Raises DamagedError."""
    from model_cache.engine.status import OTHERS
    from model_cache.store import location, staging, state
    from model_cache.store.root import Root
    from model_cache.wheel.verify import Deadline

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
    return found


def run_remove(options: Namespace) -> Result:
    """`model-cache remove NAME …`."""
    from model_cache.store import location
    from model_cache.store.removal import remove

    root = location.cache_root(options.root)
    still_installed = {wheel.name for wheel in scan().wheels}
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    errors: list[ModelCacheError] = []
    for name in dict.fromkeys(map(normalize, options.names)):
        try:
            done = remove(name, root, dry_run=options.dry_run)
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
        would = "would be " if options.dry_run else ""
        count = counted(len(done.removed), "entry", "entries")
        lines.append(f"{would}removed: {done.name} {done.version} ({count}) from {root}")
        lines += [f"  {would}left, not ours: {printable(path)}" for path in done.left]
        lines += [f"  {would}left, was there before: {directory}" for directory in done.kept]
        if name in still_installed:
            lines.append(f"  {name} is still installed: the next engine start deploys it again; pip uninstall it")
    data = {"root": root, "dry_run": options.dry_run, "wheels": rows}
    return Result(data, unless_quiet(options, lines), joined(errors))


def run_trust(options: Namespace) -> Result:
    """`model-cache trust list|add|remove|revoke`."""
    from model_cache.commands import trust as trust_commands

    data, lines = trust_commands.run(options)
    return Result(data, [printable(line) for line in lines])
