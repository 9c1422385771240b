"""The built wheel, in an environment that holds it, what it says it needs, and nothing else."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from holdover import __version__ as VERSION
from tests.project.paths import MODELS, PACKAGE, ROOT

BUNDLED = "tiny-gdn"
BUNDLED_BYTES = 12 * 2**20

# builds and installs; the work is disk, and disks are slow at times
pytestmark = pytest.mark.timeout(900)


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command with nothing of this checkout in sight, and return what it printed."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env |= {"HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "COLUMNS": "160"}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the source distribution, so that what the latter lacks is missed here."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    assert len(list(folder.glob("*.tar.gz"))) == 1
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel, and links to this environment's copies of its requirements.

    Only the closure of the wheel's own requirements is linked: an undeclared import fails here, and an editable
    install of this checkout cannot be found.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (info,) = site.glob("holdover-*.dist-info")
    for needed in closure(Distribution.at(info).requires or []):
        link(needed, site)
    return folder


def closure(requirements: Iterable[str]) -> list[Distribution]:
    """The installed distributions that these requirements bring, extras left out unless asked for."""
    found: dict[str, Distribution] = {}
    queue = [(text, "") for text in requirements]
    seen = set()
    while queue:
        asked = queue.pop()
        if asked in seen:
            continue
        seen.add(asked)
        requirement = Requirement(asked[0])
        if requirement.marker and not requirement.marker.evaluate({"extra": asked[1]}):
            continue
        dist = found.setdefault(requirement.name, distribution(requirement.name))
        queue += [(text, extra) for text in dist.requires or [] for extra in ("", *requirement.extras)]
    return list(found.values())


def link(dist: Distribution, site: Path) -> None:
    tops = {file.parts[0] for file in dist.files or []} - {"..", "__pycache__"}
    assert tops, f"{dist.name}: cannot tell its files"
    for top in tops:
        target = site / top
        if not target.exists():
            target.symlink_to(Path(str(dist.locate_file(top))))


def test_wheel_holds_the_package_and_the_models(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {item.filename: item.file_size for item in archive.infolist()}
    folders = {PACKAGE: "holdover", MODELS: "holdover/assets/models"}
    wanted = {
        f"{inside_name}/{path.relative_to(folder).as_posix()}": path.stat().st_size
        for folder, inside_name in folders.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name: size for name, size in inside.items() if ".dist-info/" not in name} == wanted
    # what is compiled where it is installed
    assert {"recurrence.c", "lanes.h"} <= {Path(name).name for name in inside if "/ops/native/source/" in name}
    recording = "holdover/evaluation/traces/data/article_trace"
    assert {f"{recording}.json", f"{recording}.NOTICE"} <= set(inside)
    names = {Path(name).name for name in inside if name.startswith(f"holdover/assets/models/{BUNDLED}/")}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    bundled = [size for name, size in inside.items() if name.startswith(f"holdover/assets/models/{BUNDLED}/")]
    assert sum(bundled) <= BUNDLED_BYTES


def test_licence_and_entry_point(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = f"holdover-{VERSION}.dist-info"
        assert b"Apache License" in archive.read(f"{info}/licenses/LICENSE")
        assert "holdover = holdover.cli.main:app" in archive.read(f"{info}/entry_points.txt").decode()


def test_import_is_the_wheels(environment: Path, tmp_path: Path) -> None:
    code = "import holdover, sys; print(holdover.__file__); print(*sys.path, sep='\\n')"
    file, *path = run(environment / "bin" / "python", "-c", code, cwd=tmp_path).splitlines()
    assert Path(file).is_relative_to(environment)
    assert str(ROOT) not in path


def test_help(environment: Path, tmp_path: Path) -> None:
    for command in ([environment / "bin" / "holdover"], [environment / "bin" / "python", "-m", "holdover"]):
        text = run(*command, "--help", cwd=tmp_path)
        assert "serve" in text
        assert "inspect" in text


def test_version(environment: Path, tmp_path: Path) -> None:
    assert VERSION in run(environment / "bin" / "holdover", "--version", cwd=tmp_path)


def test_inspect_bundled_model(environment: Path, tmp_path: Path) -> None:
    report = json.loads(run(environment / "bin" / "holdover", "inspect", BUNDLED, "--json", cwd=tmp_path))
    assert report["model"] == BUNDLED
    assert report["bytes"]["temporal"] > 0


def test_bundled_recording_is_read(environment: Path, tmp_path: Path) -> None:
    command = [environment / "bin" / "holdover", "trace"]
    code = "from holdover.evaluation.traces.sources import BUNDLED; print(BUNDLED)"
    recording = run(environment / "bin" / "python", "-c", code, cwd=tmp_path).strip()
    said = run(*command, recording, BUNDLED, "--preset", "tiny", "-o", tmp_path / "trace.jsonl", cwd=tmp_path)
    assert "24 conversations" in said


def test_generate_with_bundled_model(environment: Path, tmp_path: Path) -> None:
    code = (
        "from holdover import Engine, SamplingParams\n"
        f"engine = Engine.from_pretrained({BUNDLED!r})\n"
        "print(repr(engine.generate('Hello', SamplingParams(max_tokens=4)).text))"
    )
    assert run(environment / "bin" / "python", "-c", code, cwd=tmp_path).strip()
