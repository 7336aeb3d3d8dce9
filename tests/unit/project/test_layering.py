"""Imports point down, and third-party packages stay behind their fences; read from the syntax tree."""

from __future__ import annotations

import ast
import functools
import graphlib
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "merlin"

# from the top down; a layer imports itself and what stands after it
LAYERS = (
    "cli",
    "dashboard",
    "api",
    "report",
    "train",
    "views",
    "execution",
    "notify",
    "server",
    "config",
    "status",
    "shards",
    "ledger",
    "workspace",
    "plan",
    "spec",
    "batch",
    "base",
    "errors",
)
APART: dict[str, set[str]] = {
    "testing": set(LAYERS),
    "common": set(),
    "celery": {"execution", "errors"},
    "__main__": {"cli"},
}

FENCES = {
    "click": {"cli"},
    "rich": {"cli"},
    "duckdb": {"base", "status", "shards"},
    "h5py": {"shards"},
    "hdf5plugin": {"base", "shards"},
    "blake3": {"shards", "workspace"},
    "scipy": {"workspace"},
    "maestrowf": {"plan"},
    "pyarrow": {"base"},
    "zarr": {"shards"},
    "zstandard": {"shards"},
    "yaml": {"base", "spec"},
    "pydantic": {"base", "config", "server", "spec", "train"},
    "pydantic_core": {"spec"},
    "numpy": {
        "base",
        "views",
        "report",
        "api",
        "train",
        "execution",
        "status",
        "shards",
        "ledger",
        "workspace",
        "common",
    },
    "torch": {"train"},
    "onnx": {"train"},
    "onnxscript": {"train"},
    "onnxruntime": {"train"},
    "matplotlib": {"shards"},
    "pandas": {"status", "shards", "api"},
    "celery": {"execution"},
    "amqp": {"execution"},
    "redis": {"views", "execution", "server", "config"},
    "kombu": {"execution", "config"},
    "starlette": {"dashboard"},
    "uvicorn": {"dashboard"},
    "prometheus_client": {"dashboard"},
    "textual": {"cli"},
    "apprise": {"notify"},
    "opentelemetry": {"views"},
}


FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


class Import(NamedTuple):
    file: Path
    line: int
    module: str
    is_top_level: bool


@functools.cache
def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@functools.cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def imports_of(file: Path) -> Iterator[Import]:
    """Every import of a file that runs; those for type checkers alone are left out of `is_top_level`."""
    todo: list[tuple[ast.AST, bool]] = [(tree_of(file), True)]
    while todo:
        node, top = todo.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name, top)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: a relative import"
            assert node.module is not None
            for module in dict.fromkeys(module_of(node.module, alias.name) for alias in node.names):
                yield Import(file, node.lineno, module, top)
        elif not isinstance(node, ast.expr):  # which holds no import
            scope = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking(node)
            todo += [(child, top and not scope) for child in ast.iter_child_nodes(node)]


@functools.cache
def module_of(package: str, name: str) -> str:
    """Return what `from package import name` imports: a module of ours inside the package, or the package."""
    path = ROOT.joinpath(*package.split("."), name)
    is_module = package.split(".")[0] == "merlin" and (path.is_dir() or path.with_suffix(".py").is_file())
    return f"{package}.{name}" if is_module else package


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def layer_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def all_imports() -> list[Import]:
    return [found for file in files() for found in imports_of(file)]


def test_there_is_something_to_check() -> None:
    assert {layer_of(i.file) for i in all_imports()} >= set(LAYERS) - {"errors"}


def test_imports_point_down() -> None:
    wrong = []
    for found in all_imports():
        if not found.module.startswith("merlin.") or layer_of(found.file) == "__init__":
            continue
        source, target = layer_of(found.file), found.module.split(".")[1]
        if source in APART:
            allowed = APART[source] | {source}
        else:
            assert source in LAYERS, f"{found.file}: no layer of this name in the architecture"
            allowed = set(LAYERS[LAYERS.index(source) :])
        if target not in allowed:
            wrong.append(f"{found.file.relative_to(ROOT)}:{found.line}: {source} imports {found.module}")
    assert not wrong, "\n".join(wrong)


def test_no_file_imports_in_a_circle() -> None:
    """Imports for type checkers and inside functions count, too."""
    graph: dict[str, set[str]] = {}
    for found in all_imports():
        name = ".".join(("merlin", *found.file.relative_to(PACKAGE).with_suffix("").parts))
        if found.module.startswith("merlin."):
            graph.setdefault(name.removesuffix(".__init__"), set()).add(found.module)
    graphlib.TopologicalSorter(graph).prepare()


def test_no_folders_beside_each_other_import_in_a_circle() -> None:
    """Imports for type checkers and inside functions count, too."""
    graphs: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for found in all_imports():
        if not found.module.startswith("merlin."):
            continue
        source, target = found.file.relative_to(PACKAGE).parts[:-1], tuple(found.module.split(".")[1:])
        if not PACKAGE.joinpath(*target).is_dir():
            target = target[:-1]
        same = next((n for n, (a, b) in enumerate(zip(source, target, strict=False)) if a != b), None)
        if same is not None:
            graphs.setdefault(source[:same], {}).setdefault(source[same], set()).add(target[same])
    assert ("shards",) in graphs
    for graph in graphs.values():
        graphlib.TopologicalSorter(graph).prepare()


def test_no_function_is_longer_than_a_screen() -> None:
    """At most 40 lines of code, docstrings and comments not counted."""
    wrong = []
    for file in files():
        functions = [node for node in ast.walk(tree_of(file)) if isinstance(node, FUNCTION)]
        if all((node.end_lineno or 0) - node.lineno < 40 for node in functions):
            continue
        text = file.read_text(encoding="utf-8")
        skipped = (
            tokenize.COMMENT,
            tokenize.NL,
            tokenize.NEWLINE,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENDMARKER,
        )
        code = {
            line
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type not in skipped
            for line in range(token.start[0], token.end[0] + 1)
        }
        for node in functions:
            lines = code & set(range(node.lineno, (node.end_lineno or 0) + 1))
            if ast.get_docstring(node) is not None:
                lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
            if len(lines) > 40:
                wrong.append(f"{file.relative_to(ROOT)}:{node.lineno}: {node.name} has {len(lines)} lines")
    assert not wrong, "\n".join(wrong)


def test_third_party_packages_stay_behind_their_fences() -> None:
    wrong = []
    unused = {(package, layer) for package, layers in FENCES.items() for layer in layers}
    for found in all_imports():
        package, layer = found.module.split(".")[0], layer_of(found.file)
        if package in sys.stdlib_module_names or package in ("merlin", "msgspec"):
            continue
        if layer not in FENCES.get(package, set()):
            wrong.append(f"{found.file.relative_to(ROOT)}:{found.line}: {package}")
        unused.discard((package, layer))
    assert not wrong, "\n".join(wrong)
    assert not unused


def test_the_table_of_layers_names_the_packages() -> None:
    """docs/architecture.md says of each layer what it may import; it leaves out numpy, and what pydantic is made of."""
    table = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Layers")[2]
    shown = {
        layer: {package.replace("pyyaml", "yaml") for package in re.findall(r"[a-z_0-9]+", packages)}
        for layer, packages in re.findall(
            r"^\| `(\w+)/` \|.*\|([^|]*)\|$", table.partition("\n## ")[0], re.MULTILINE
        )
    }
    packages = [package for package in FENCES if package not in ("numpy", "pydantic_core")]
    assert shown == {layer: {each for each in packages if layer in FENCES[each]} for layer in shown}
    assert set(shown) == {layer for layer in LAYERS if layer != "errors"}


def test_heavy_packages_are_imported_where_they_are_used() -> None:
    """numpy may stand at the top of the layers that compute; rich, matplotlib and duckdb never do."""
    lazy = {"rich", "matplotlib", "duckdb", "scipy", "maestrowf", "pyarrow", "pandas", "zarr"}
    wrong = [
        f"{found.file.relative_to(ROOT)}:{found.line}: {found.module}"
        for found in all_imports()
        if found.is_top_level
        and (
            found.module.split(".")[0] in lazy
            or (layer_of(found.file) == "cli" and found.module.split(".")[0] == "numpy")
        )
    ]
    assert not wrong, "\n".join(wrong)


def test_commands_import_no_layer_before_they_are_called() -> None:
    wrong = [
        f"{found.file.relative_to(ROOT)}:{found.line}: {found.module}"
        for found in all_imports()
        if "commands" in found.file.parts
        and found.is_top_level
        and found.module.startswith("merlin.")
        and found.module
        not in ("merlin.errors", *(f"merlin.cli.{name}" for name in ("argv", "lazy", "options", "output")))
        and not found.module.startswith("merlin.base.")
        and not found.module.startswith("merlin.cli.commands.shards")
        and found.module != "merlin.shards.export.formats"  # a table of names
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["utils", "helpers", "common_utils", "manager", "misc"])
def test_no_file_is_a_drawer(name: str) -> None:
    assert not list(PACKAGE.rglob(f"{name}.py"))


def test_hdf5_files_are_written_in_one_place() -> None:
    """Elsewhere a full disk would end the process; files in memory meet no disk."""
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(tree_of(file)):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="h5py"), attr="File")):
                    modes = {ast.unparse(argument) for argument in node.args[1:]}
                    if modes != {"'r'"} and not any(option.arg == "driver" for option in node.keywords):
                        wrong.append(f"{file.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


def test_no_two_files_of_tests_have_one_name() -> None:
    """Pytest imports them by it: the second one would be an error wherever both are collected."""
    names = [file.name for file in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
