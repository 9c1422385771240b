"""A report as one HTML file that needs nothing beside it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from html import escape

from holdover.report.tables import Table

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #222; }
h1 { font-size: 1.4rem; } h2 { font-size: 1rem; margin-top: 2rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .8rem .15rem 0; text-align: left; white-space: nowrap; border-bottom: 1px solid #ddd; }
img { max-width: 100%; }
"""


def render_page(title: str, notes: Iterable[str], tables: Iterable[Table], pictures: Mapping[str, bytes]) -> str:
    """The HTML.

    Args:
        title: heading of the page.
        notes: sentences below it.
        tables: what to list.
        pictures: PNG files by caption.
    """
    parts = [f"<h1>{escape(title)}</h1>"]
    parts += [f"<p>{escape(note)}</p>" for note in notes]
    parts += [_table(table) for table in tables]
    parts += [_picture(caption, data) for caption, data in pictures.items()]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _table(table: Table) -> str:
    head = _row("th", table.columns) if any(table.columns) else ""
    body = "\n".join(_row("td", row) for row in table.rows)
    return f'<h2>{escape(table.title)}</h2>\n<div class="wide"><table>\n{head}\n{body}\n</table></div>'


def _row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _picture(caption: str, data: bytes) -> str:
    source = f"data:image/png;base64,{b64encode(data).decode()}"
    return f'<p><img alt="{escape(caption)}" src="{source}"></p>'
