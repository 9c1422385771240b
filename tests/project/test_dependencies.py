"""Every library that the package imports is one that an install brings."""

import sys
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.project.imports import NAME, imports
from tests.project.paths import PACKAGE, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# packages whose imports extras provide; what any kernel needs comes with `gpu`
EXTRAS = {
    "engine": ("structured",),
    "server": ("server", "otel"),
    "cli": ("server", "bench"),
    "report": ("report",),
    "evaluation": ("eval", "bench", "wildchat"),
    "integrations": ("vllm",),
}
DISTRIBUTION = {"PIL": "pillow", "fla": "flash-linear-attention", "opentelemetry": "opentelemetry-sdk"}


def declared(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(one).name) for one in requirements}


def test_imports_are_declared() -> None:
    extras = PROJECT["optional-dependencies"]
    undeclared = set()
    for found in imports(PACKAGE):
        top = found.imported.split(".")[0]
        if top == NAME or top in sys.stdlib_module_names:
            continue
        part = [*found.importer.split("."), ""][1]
        offered = declared(
            PROJECT["dependencies"] + extras["gpu"] + [one for extra in EXTRAS.get(part, ()) for one in extras[extra]]
        )
        if canonicalize_name(DISTRIBUTION.get(top, top)) not in offered:
            undeclared.add(f"{found.path.relative_to(ROOT)}:{found.line} imports {top}")
    assert not undeclared


def test_dev_brings_what_the_tests_use() -> None:
    pinned = declared([line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] not in "#"])
    assert (
        declared(PROJECT["optional-dependencies"]["dev"]) - {"holdover", "packaging", "pre-commit", "triton"} <= pinned
    )
    assert declared(PROJECT["optional-dependencies"]["server"]) <= pinned
    assert declared(PROJECT["dependencies"]) - {"torch"} <= pinned
