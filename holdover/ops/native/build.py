"""Compiling the C sources for this machine, once."""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import torch

_SOURCE = Path(__file__).parent / "source"
# nothing that would change how numbers are rounded, or what NaN and infinities do
_FLAGS = [
    *("-std=gnu11", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    *("-fopenmp", "-fPIC", "-shared"),
]
_SECONDS = 120


class BuildError(Exception):
    """The sources could not be compiled here."""


def library() -> Path:
    """The compiled library's file, made now if it is not there.

    It lies in ``$XDG_CACHE_HOME/holdover/native`` (``~/.cache`` without it), under a name that says by what, from what
    and for which processor it was made; where nothing can be kept there, in a folder that ends with the process.

    Raises:
        BuildError: there is no C compiler, or it failed.
    """
    compiler = _compiler()
    command = [*compiler, *_FLAGS]
    sources = sorted(_SOURCE.glob("*.[ch]"))
    digest = hashlib.sha256(repr((command, _processor(), _openmp())).encode())
    for source in sources:
        digest.update(source.read_bytes())
    name, folder = f"{digest.hexdigest()[:24]}.so", _folder()
    if folder is not None and os.access(folder / name, os.R_OK):
        return folder / name
    path = _writable(folder) / name
    _compile(command, [x for x in sources if x.suffix == ".c"], path)
    return path


def _compile(command: list[str], sources: list[Path], path: Path) -> None:
    """Compile to a file of its own first: processes that start together must not see half of one."""
    with tempfile.TemporaryDirectory(dir=path.parent) as room:
        made = Path(room) / path.name
        call = [*command, "-o", str(made), *map(str, sources), "-lm", *_openmp()]
        try:
            done = subprocess.run(call, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"{call[0]}: {error}") from error
        if done.returncode:
            raise BuildError(f"{shlex.join(call)}: {done.stderr.strip()[-500:]}")
        made.replace(path)


def _compiler() -> list[str]:
    said = os.environ.get("CC", "")
    try:
        named = shlex.split(said)
    except ValueError as error:
        raise BuildError(f"CC is {said!r}: {error}") from error
    for candidate in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(candidate[0]):
            return candidate
    raise BuildError(f"{named[0] if named else 'cc, gcc and clang'}: no such program")


def _openmp() -> list[str]:
    """Torch's own OpenMP library, so that both share one pool of threads; nothing where it brings none."""
    return [str(x) for x in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))[:1]]


def _processor() -> str:
    """What the compiled code depends on."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text("utf-8", "replace").splitlines() if known.exists() else []
    features = [x for x in lines if x.startswith(("model name", "flags", "Features"))][:2]
    return "\n".join([platform.machine(), platform.processor(), *features])


def _folder() -> Path | None:
    """Where compiled libraries are kept; None for a user without a home."""
    with suppress(RuntimeError):
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdover" / "native"
    return None


def _writable(folder: Path | None) -> Path:
    """The folder, made if need be, or one that ends with the process where that cannot be written."""
    with suppress(OSError):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    scratch = tempfile.mkdtemp(prefix="holdover-native-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return Path(scratch)
