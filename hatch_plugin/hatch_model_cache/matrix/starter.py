"""The first files of a project with a matrix, made from one recipe."""

from __future__ import annotations

from hatch_model_cache.recipe.naming import slug
from hatch_model_cache.scaffold import scaffold, templating
from model_cache.errors import UsageError
from model_cache.wheel.names import printable

PIPELINES = ("github", "gitlab")
"""Those of `scaffold.PIPELINES` that build a matrix."""

_MODELS = "models"


def files(project: scaffold.Project) -> dict[str, bytes]:
    """Relative path -> content. The recipe's targets are those of the matrix, each with a wheel of its own.

    Raises UsageError for what a matrix cannot have: a model that is not pinned, pipelines of one recipe.
    """
    recipe = project.recipe
    others = [name for name in project.pipelines if name not in PIPELINES]
    problems = [f"--with: {printable(name)} is for one recipe; a matrix has {', '.join(PIPELINES)}." for name in others]
    if recipe.config is None and recipe.revision is None:
        problems.append("a matrix pins its models: give --config or --revision.")
    if recipe.variant:
        problems.append("--variant: write variants into the matrix.")
    if problems:
        raise UsageError("No matrix can be made:", problems)
    # one directory for each model, since there will be more
    place = f"{_MODELS}/{slug(recipe.model)}"
    table = project.table()
    table["config"] = f"{place}/{scaffold.CONFIG}" if table["config"] else None
    table["drafts"] = {name: f"{place}/{path}" for name, path in table["drafts"].items()}
    values = {**scaffold.template_values(), "recipe": table, "version": project.version, "matrix": True}
    texts = templating.render_folder("matrix-project", values)
    for pipeline in project.pipelines:
        texts |= templating.render_folder(f"pipelines/{pipeline}", values | {"extras": "build,hub,new"})
    found = {path: text.encode() for path, text in texts.items()}
    found |= {f"{place}/{path}": data for path, data in project.configurations().items()}
    return dict(sorted(found.items()))
