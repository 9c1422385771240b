"""From results to pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from holdover.errors import ConfigError
from holdover.report.quality.check import check
from holdover.report.quality.checkpoints import checkpoints
from holdover.report.quality.combinations import combinations
from holdover.report.quality.composed import composed
from holdover.report.quality.decode import decode
from holdover.report.quality.deferred import deferred
from holdover.report.quality.findings.page import findings_page
from holdover.report.quality.limits import limits
from holdover.report.quality.markdown import page
from holdover.report.quality.models import models
from holdover.report.quality.results import Results, read_results
from holdover.report.quality.section import Section
from holdover.report.tables import Table

SECTIONS: tuple[Callable[[Results], Section | None], ...] = (
    models,
    checkpoints,
    composed,
    deferred,
    combinations,
    decode,
    limits,
)
_INTRO = (
    "Made by `make report` from result files; no figure is typed. [Findings](findings.md) says what came of it. "
    "Intervals are 95 %, n is the number of instances that they are over."
)
_SOURCES = ("model", "file", "protocol", "rows", "weights", "device", "commit", "date")


def build(results: Path, out: Path, *, training: Path | None = None, benchmarks: Path | None = None) -> list[Path]:
    """Write the report and return its files.

    Args:
        results: a folder with a folder of result files for each model.
        out: where to write.
        training: scores of the models' training, a folder a model.
        benchmarks: result files of benchmarks.

    Raises:
        ConfigError: a result lacks what the report needs, or a file cannot be read or written.
    """
    found = read_results(results, training=training, benchmarks=benchmarks)
    wrong = check(found)
    if wrong:
        raise ConfigError("these results cannot be reported: " + "; ".join(wrong))
    sections = [section for make in SECTIONS if (section := make(found)) is not None]
    sections.append(_sources(found))
    files = {f"{one.name}.png": one.png for section in sections for one in section.pictures}
    files["index.md"] = page("Quality report", (_INTRO,), sections).encode()
    files["findings.md"] = findings_page(found).encode()
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (out / name).write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror or error}") from error
    return [out / name for name in files]


def _sources(results: Results) -> Section:
    return Section("Where the figures come from", tables=(Table("Result files", _SOURCES, tuple(_lines(results))),))


def _lines(results: Results) -> Iterator[tuple[str, ...]]:
    for model in results.models:
        for name, facts in model.protocols:
            commit, date = str(facts.get("commit") or "-"), str(facts.get("date", "-"))
            digest, _, dtype = facts["model"].partition(":")
            yield (
                model.name,
                name,
                facts["protocol"],
                str(len(facts["rows"])),
                f"{digest[:12]} {dtype}".strip(),
                str(facts.get("device", "-")),
                commit[:10] + ("-dirty" if commit.endswith("-dirty") else ""),
                date[:10],
            )
