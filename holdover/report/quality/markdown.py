"""A report as Markdown: pictures lie beside the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdover.report.quality.section import Section
from holdover.report.tables import Table

_RULE = "---"


def page(title: str, intro: Sequence[str], sections: Sequence[Section]) -> str:
    """Sections with their tables and pictures."""
    return _joined([f"# {title}", *intro, *(part for section in sections for part in _section(section))])


def findings(title: str, intro: Sequence[str], sections: Sequence[Section]) -> str:
    """The findings of every section that has some."""
    parts = [f"# {title}", *intro]
    for section in sections:
        if section.findings:
            parts += [f"## {section.title}", "\n".join(f"- {line}" for line in section.findings)]
    return _joined(parts)


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
