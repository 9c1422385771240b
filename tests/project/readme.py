"""Fenced blocks of a Markdown file, found by language and label.

The label is the second word after the opening fence, which renderers ignore::

    ```python quickstart
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from tests.project.paths import ROOT

README = ROOT / "README.md"
CONSOLE = ("bash", "console", "sh")
_BLOCK = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


class Block(NamedTuple):
    """One fenced block; ``line`` is that of its opening fence."""

    language: str
    label: str
    code: str
    line: int


def blocks(language: str | None = None, label: str | None = None, *, path: Path = README) -> list[Block]:
    """The file's fenced blocks in order, only those of ``language`` and of ``label`` where given."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        first, _, second = match["info"].strip().partition(" ")
        found.append(Block(first, second.strip(), match["code"], text.count("\n", 0, match.start()) + 1))
    return [one for one in found if language in (None, one.language) and label in (None, one.label)]


def block(language: str, label: str, *, path: Path = README) -> Block:
    """The one block with this language and label.

    Raises:
        LookupError: there is none, or more than one.
    """
    found = blocks(language, label, path=path)
    if len(found) != 1:
        raise LookupError(f"{path.name} has {len(found)} blocks `{language} {label}`, want 1")
    return found[0]


def console_lines(label: str | None = None, *, path: Path = README) -> list[str]:
    """Every command in the file's console blocks: prompts and comments removed, continued lines joined."""
    lines: list[str] = []
    for one in blocks(label=label, path=path):
        if one.language in CONSOLE:
            joined = re.sub(r"\\\n\s*", "", one.code)
            lines += (line.removeprefix("$ ").strip() for line in joined.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def commands(program: str, *, path: Path = README) -> list[list[str]]:
    """Every call of ``program`` in console blocks and in inline code, split into words without comments."""
    prose = _BLOCK.sub("", path.read_text(encoding="utf-8"))
    lines = console_lines(path=path) + _SPAN.findall(prose)
    split = [shlex.split(line, comments=True) for line in lines if line.split()[:1] == [program]]
    return [words for words in split if len(words) > 1]


def links(path: Path = README) -> list[str]:
    """Targets of the file's links that lead to other files of the project."""
    targets = re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
    return [target.split("#")[0] for target in targets if not re.match(r"[a-z]+:|#", target)]
