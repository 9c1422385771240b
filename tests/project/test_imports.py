"""Imports point down, as docs/architecture.md draws them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.imports import OWNERS, ROW, imports, modules, violations
from tests.project.paths import PACKAGE, ROOT


def test_imports_point_down() -> None:
    found = imports(PACKAGE)
    assert any(one.imported.startswith("holdover.arch.layout") for one in found), "the checker saw no import"
    assert not violations(PACKAGE), "\n" + "\n".join(violations(PACKAGE))


def plant(folder: Path, files: dict[str, str]) -> Path:
    package = folder / "holdover"
    for name in ("__init__.py", "errors.py", "state/__init__.py", "store/pool.py", "engine/hf/host.py"):
        files.setdefault(name, "")
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return package


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("state/slots.py", "from holdover.store.pool import Pool"),
        ("state/slots.py", "import holdover.engine.hf.host as host"),
        ("state/slots.py", "from holdover import engine"),
        ("state/slots.py", "from holdover import Engine"),
        ("state/slots.py", "from ..store import pool"),
        ("state/slots.py", "from .. import store"),
        ("state/__init__.py", "from ..store.pool import Pool"),
        ("state/slots.py", "def late():\n    from holdover.store import pool"),
        ("state/slots.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from holdover.store import pool"),
        ("state/slots.py", "import importlib\nimportlib.import_module('holdover.store')"),
        ("state/slots.py", "import transformers.cache_utils"),
        ("errors.py", "from holdover.state import header"),
        ("arch/config.py", "from holdover.weights.read import read"),
        ("prefix/tree.py", "from holdover.chunks import entry"),
        ("engine/scheduler.py", "from transformers import PreTrainedModel"),
        ("engine/scheduler.py", "from holdover.server import app"),
        ("engine/hfish.py", "import transformers"),
        ("server/app.py", "from holdover.cli import main"),
        ("server/app.py", "import vllm"),
        ("integrations/sglang.py", "from holdover.engine.hf import host"),
        ("integrations/vllm/plugin.py", "from holdover.server import app"),
        ("integrations/vllm/plugin.py", "from holdover import Engine"),
        ("engine/scheduler.py", "from holdover.integrations import vllm"),
        ("__init__.py", "from holdover.server import app"),
        ("elsewhere.py", ""),
    ],
)
def test_planted_violation_is_found(path: str, code: str, tmp_path: Path) -> None:
    targets = {"weights/read.py": "", "chunks/entry.py": "", "server/app.py": "", "cli/main.py": ""}
    targets["integrations/vllm/plugin.py"] = ""
    wrong = violations(plant(tmp_path, targets | {path: code}))
    assert len(wrong) == 1, wrong
    assert path.removesuffix(".py") in wrong[0].replace(".", "/")


def test_allowed_imports_pass(tmp_path: Path) -> None:
    allowed = {
        "__init__.py": "from holdover.engine.engine import Engine",
        "__main__.py": "from holdover.cli.main import app",
        "cli/main.py": "from holdover import Engine, errors\nfrom holdover.server import app",
        "engine/engine.py": "from holdover.engine.hf import host\nfrom holdover.store.pool import Pool",
        "engine/hf/host.py": "from transformers import DynamicCache\nfrom . import mixers",
        "engine/hf/mixers.py": "from ..engine import Engine\nfrom ...errors import ConfigError",
        "integrations/vllm/plugin.py": "import vllm.config\nfrom holdover.store import pool",
        "server/app.py": "import fastapi\nfrom holdover import Engine",
        "store/pool.py": "from holdover.state import SlotPool\nfrom holdover.errors import CapacityError",
    }
    assert violations(plant(tmp_path, allowed)) == []


def test_lower_packages_load_no_host() -> None:
    """The package's own ``__init__`` is lazy enough that the core can be used without any engine."""
    core = [name for name, path in modules(PACKAGE) if path.name == "__init__.py" and below_engine(name)]
    assert core
    code = f"import sys, {', '.join(core)}\nprint(*sorted(sys.modules.keys() & {set(OWNERS)}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def below_engine(module: str) -> bool:
    part = module.split(".")[1:2]
    return bool(part) and ROW.get(part[0], 0) < ROW["engine"]
