"""The arrows of docs/architecture.md: who may import whom."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "hatch_plugin"
ENGINE_PACKAGES = {"flashinfer", "humming", "torch", "triton", "vllm"}


def modules() -> dict[str, Path]:
    """Every module of both packages by dotted name."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = list(path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(name: str) -> Iterator[str]:
    """Dotted names that a module imports anywhere, relative ones resolved."""
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:
                inner = f"{prefix}.{alias.name}"
                yield inner if inner in MODULES else prefix


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every node, without those that only a type checker sees."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from walk(child)


def top(dotted: str) -> str:
    return dotted.partition(".")[0]


def test_there_are_modules() -> None:
    assert len([m for m in MODULES if m.startswith("model_cache")]) > 8
    assert len([m for m in MODULES if m.startswith("hatch_model_cache")]) > 20


@pytest.mark.parametrize("name", sorted(m for m in MODULES if top(m) == "model_cache"))
def test_the_serving_side_needs_the_standard_library_only(name: str) -> None:
    # In functions only: `cryptography` and `sigstore` when a signature is made or a trusted signer's is checked,
    # `torch` in an engine that runs on it and is about to load something.
    allowed = {
        "model_cache.origin.ed25519": {"cryptography"},
        "model_cache.origin.identity": {"sigstore"},
        "model_cache.engine.mends": {"torch"},
        "model_cache.engine.program": {"torch"},
        "model_cache.engine.standalone": {"torch"},
        "model_cache.torch": {"torch"},
    }.get(name, set())
    strangers = {top(i) for i in imports(name)} - sys.stdlib_module_names - allowed - {"model_cache"}
    assert not strangers, f"{name} imports {strangers}"


def test_the_serving_side_reaches_the_build_side_by_name_in_two_functions() -> None:
    """One hands build commands over, one asks about a running engine; nobody else knows of the build side."""
    found = set()
    for name, path in MODULES.items():
        if top(name) == "model_cache":
            for function in (n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.FunctionDef)):
                called = [n for n in ast.walk(function) if isinstance(n, ast.Call) and n.args]
                constants = [c.args[0].value for c in called if isinstance(c.args[0], ast.Constant)]
                if any(str(constant).startswith("hatch_model_cache") for constant in constants):
                    found.add((name, function.name))
    assert found == {("model_cache.cli", "_build_command"), ("model_cache.engine.nearest", "_near_miss")}


@pytest.mark.parametrize("name", sorted(m for m in MODULES if top(m) == "hatch_model_cache"))
def test_torch_and_engines_are_imported_in_compile_only(name: str) -> None:
    found = {top(i) for i in imports(name)} & ENGINE_PACKAGES
    assert name.startswith("hatch_model_cache.compile.") or not found, f"{name} imports {found}"


@pytest.mark.parametrize("name", sorted(m for m in MODULES if f"{m}.".startswith("hatch_model_cache.compile.")))
def test_compile_knows_little_of_the_build_side(name: str) -> None:
    allowed = (
        *(f"hatch_model_cache.{n}" for n in ("compile", "targets", "cubin")),
        "model_cache.errors",
        "model_cache.machine.cpu",
        *(f"model_cache.wheel.{n}" for n in ("calls", "lineage")),
        *(f"model_cache.engine.{n}" for n in ("kernel_names", "model_tag", "on_import", "program")),
    )
    ours = [i for i in imports(name) if top(i) in {"hatch_model_cache", "model_cache"}]
    wrong = [i for i in ours if not i.startswith(allowed) and i != "hatch_model_cache"]
    assert not wrong, f"{name} imports {wrong}"
    foreign = {top(i) for i in imports(name)} - sys.stdlib_module_names - ENGINE_PACKAGES
    # dependencies of every engine
    known = {"hatch_model_cache", "model_cache", "huggingface_hub", "numpy", "safetensors"}
    assert foreign <= known, f"{name} imports {foreign}"


def test_hatchling_is_imported_by_the_hook_only() -> None:
    users = {name for name in MODULES if any(top(i) == "hatchling" for i in imports(name))}
    assert users <= {"hatch_model_cache.hooks", "hatch_model_cache.build_hook", "hatch_model_cache.wheel_config"}, users


def test_no_import_goes_in_a_circle() -> None:
    graph = {name: {i for i in imports(name) if i in MODULES and i != name} for name in MODULES}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " → ".join((*way[way.index(name) :], name))
        if name not in done:
            for other in sorted(graph[name]):
                # a package is not a client of the module that imports its sibling through it
                if not name.startswith(f"{other}."):
                    visit(other, (*way, name))
            done.add(name)

    for name in graph:
        visit(name, ())


LAYERS = [{"wheel", "origin"}, {"machine"}, {"store"}, {"engine"}, {"commands"}]
"""The packages of the serving side; one may import those in its own layer and in the ones before."""


def test_the_serving_side_s_packages_lie_on_each_other() -> None:
    level = {package: n for n, layer in enumerate(LAYERS) for package in layer}
    inside = [name for name in MODULES if top(name) == "model_cache" and name.count(".") == 2]
    assert {name.split(".")[1] for name in inside} == set(level)
    for name in inside:
        above = {
            i
            for i in imports(name)
            if level.get(i.partition("model_cache.")[2].partition(".")[0], -1) > level[name.split(".")[1]]
        }
        assert not above, f"{name} imports {above}"


def test_modules_stay_small() -> None:
    long = {name: n for name, path in MODULES.items() if (n := len(path.read_text("utf-8").splitlines())) > 400}
    assert not long
