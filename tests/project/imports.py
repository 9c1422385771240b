"""Reads every import of the package from its source, and says which ones the architecture does not allow.

Imports inside functions and under ``TYPE_CHECKING`` count: a dependency that is hidden is still one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

NAME = "holdover"

# bottom to top; a package may import those in rows below its own, and none beside it
ROWS = (
    ("errors", "files"),
    ("arch", "weights"),
    ("ops",),
    ("state",),
    ("retention",),
    ("codec",),
    ("store",),
    ("prefix", "chunks"),
    ("engine",),
    # the package itself: what `from holdover import Engine` means
    ("",),
    ("server", "report", "evaluation"),
    ("cli",),
    ("__main__",),
)
ROW = {part: row for row, parts in enumerate(ROWS) for part in parts}
# hosts of other engines stand beside ours and use the same packages below it
ROW["integrations"] = ROW["engine"]

# libraries that one package alone may know
OWNERS = {
    "transformers": f"{NAME}.engine.hf",
    "vllm": f"{NAME}.integrations.vllm",
    "fastapi": f"{NAME}.server",
    "starlette": f"{NAME}.server",
}


class Import(NamedTuple):
    """One imported module, by whom and where."""

    importer: str
    imported: str
    path: Path
    line: int


def modules(package: Path) -> Iterator[tuple[str, Path]]:
    """Every module under ``package`` with its dotted name."""
    for path in sorted(package.rglob("*.py")):
        parts = (NAME, *path.relative_to(package).with_suffix("").parts)
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(package: Path) -> list[Import]:
    """Every import in the tree, relative and literal dynamic ones included, as absolute module names."""
    found = []
    for name, path in modules(package):
        parent = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            found += [Import(name, imported, path, node.lineno) for imported in _imported(node, parent)]
    return found


def _imported(node: ast.AST, parent: str) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            base = node.module or ""
            if node.level:
                above = parent.split(".")[: len(parent.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            # `from package import name` may import the module `package.name`: keep the longer form
            return [f"{base}.{alias.name}" for alias in node.names]
        case ast.Call(func=ast.Name(id="__import__" | "import_module"), args=[ast.Constant(value=str(name)), *_]):
            return [name]
        case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
            return [name]
    return []


def violations(package: Path) -> list[str]:
    """What the architecture forbids, one sentence each."""
    parts = {path.stem for path in package.iterdir() if path.suffix == ".py" or any(path.rglob("*.py"))}
    parts -= {"__init__", "__pycache__"}
    wrong = [f"{NAME}.{part} has no row: place it in ROWS" for part in sorted(parts - ROW.keys())]
    for found in imports(package):
        where = f"{found.path.relative_to(package.parent)}:{found.line}"
        top, _, rest = found.imported.partition(".")
        if top == NAME:
            importer, imported = _part(found.importer, parts), _part(f"{NAME}.{rest}", parts)
            if importer != imported and ROW.get(imported, 0) >= ROW.get(importer, len(ROWS)):
                wrong.append(f"{where}: {importer or NAME} imports {imported or NAME}, which is not below it")
        elif top in OWNERS and not f"{found.importer}.".startswith(f"{OWNERS[top]}."):
            wrong.append(f"{where}: {found.importer} imports {top}, which only {OWNERS[top]} may know")
    return wrong


def _part(module: str, parts: set[str]) -> str:
    """The first folder or module under the package, or "" for the package itself and the names it exports."""
    part = module.split(".")[1] if "." in module else ""
    return part if part in parts else ""
