"""A report as Markdown: pictures lie beside the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from holdover.report.quality.section import Section
from holdover.report.tables import Table

_RULE = "---"


def page(title: str, intro: Sequence[str], sections: Sequence[Section]) -> str:
    """Sections with their tables and pictures."""
    return _joined([f"# {title}", *intro, *(part for section in sections for part in _section(section))])


def listing(title: str, intro: Sequence[str], parts: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Headings with a list of sentences each."""
    found = [(f"## {heading}", "\n".join(f"- {line}" for line in lines)) for heading, lines in parts]
    return _joined([f"# {title}", *intro, *(text for part in found for text in part)])


def _section(section: Section) -> Iterator[str]:
    yield f"## {section.title}"
    yield from section.text
    for picture in section.pictures:
        yield f"![{picture.caption}]({picture.name}.png)"
    for table in section.tables:
        yield f"### {table.title}"
        yield _table(table)


def _table(table: Table) -> str:
    lines = [table.columns, tuple(_RULE for _ in table.columns), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(parts) + "\n"
