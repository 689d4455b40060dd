"""From which commit a recipe was compiled. A hash and a flag: no path, no host, no name of anybody."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from hatch_model_cache.recipe.recipe import Recipe, config_files
from model_cache.wheel.manifest import Source

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SECONDS = 30
_STEERING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_NAMESPACE")


def source_of(recipe: Recipe) -> Source:
    """The commit that the recipe's project is checked out at.

    dirty: a tracked file of the project differs from the commit, or a file of the recipe is not in it. Without a
    project or git, in an unpacked sdist, or when the project is no part of the repository around it: no commit.
    """
    project = recipe.project_dir
    if project is None or _git(project, "ls-files", "--error-unmatch", "--", "pyproject.toml") is None:
        return Source(None, dirty=False)
    commit = (_git(project, "rev-parse", "HEAD") or "").strip()
    if not _COMMIT.fullmatch(commit):
        return Source(None, dirty=False)
    changed = _git(project, "status", "--porcelain", "--untracked-files=no", "--", ".")
    others = _git(project, "ls-files", "--others", "--", *_files(recipe, project))
    return Source(commit, dirty=bool(changed is None or changed.strip() or others is None or others.strip()))


def _files(recipe: Recipe, project: Path) -> list[str]:
    """The recipe's files that lie in its project, relative to it."""
    found = ["pyproject.toml"]
    directory = recipe.config_dir
    if directory is not None and directory.is_relative_to(project):
        found += [path.relative_to(project).as_posix() for _, path in config_files(directory)]
    return found


def _git(directory: Path, *arguments: str) -> str | None:
    """What git prints; None when it fails, or is not there."""
    environment = {name: value for name, value in os.environ.items() if name not in _STEERING}
    try:
        done = subprocess.run(
            # A repository's own configuration could make `status` run a program.
            ["git", "-c", "core.fsmonitor=false", "-C", str(directory), *arguments],  # noqa: S607
            env={**environment, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
