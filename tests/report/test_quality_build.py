"""Pages say what the files say, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from holdover.errors import ConfigError
from holdover.report.quality.build import build
from holdover.report.quality.section import brief, difference, interval, signed, verdict, wilson
from tests.cli.run import error_line, invoke
from tests.report import quality_results

Files = dict[str, dict[str, Any]]
# of a picture of one model; three models must stay below 150 kB
MOST_BYTES = 50_000


def pages_of(files: Files, folder: Path, *, benchmarks: Path | None = None, training: Path | None = None) -> Path:
    quality_results.write(folder / "results" / "small", files)
    build(folder / "results", folder / "pages", benchmarks=benchmarks, training=training)
    return folder / "pages"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    held_out = {"rows": 3, "length": 64, "loss": 2.0, "perplexity": 7.389}
    scores = {"scores": {"recall": {"all": {"exact": 0.25, "prompts": 8}, "256": {"exact": 0.25, "prompts": 8}}}}
    quality_results.write(folder / "training" / "small", {"held_out": held_out, "scores-1": scores, "scores-2": scores})
    benchmarks = quality_results.write(folder / "benchmarks", {"decode": quality_results.decode()})
    return pages_of(quality_results.everything(), folder, benchmarks=benchmarks, training=folder / "training")


def lines(page: Path) -> list[str]:
    return page.read_text().splitlines()


def test_pictures_are_small_and_all_of_them_shown(pages: Path) -> None:
    text = (pages / "index.md").read_text()
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert set(shown) == {path.name for path in pages.glob("*.png")}
    assert {"horizons.png", "capacity.png", "composed-kl.png", "deferred.png", "restores.png", "decode.png"} <= set(
        shown
    )
    for path in pages.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size <= MOST_BYTES


def test_tables_hold_the_files_figures(pages: Path) -> None:
    found = lines(pages / "index.md")
    for wanted in (
        # random masks are one line: mean, sample deviation, range
        "| text | 16 | 2 | 2.155 | 0.2051 | 2.03 | 1 | +0.01 to +0.3 | 24 |",
        "| text | nr | 16 | 2.00x | 2.03 | 1.5 to 2.5 | +0.03 | +0.02 to +0.04 | 0.900 | 100.0% | 24 |",
        "| recall | epic | r 0.2 | exact | 20.0% | KL | 0.5 | 0.4 to 0.6 | +0.25 | +0.24 to +0.26 | 20 |",
        "| m8-bf16/fp32 | 0 to 64 | 2e-06 | 1e-06 to 4e-06 | 2e-06 | 2e-06 | 87.50% | 0.8 to 0.9 | 16 |",
        "| small | recurrent states | 0.95 | 0.7639 to 0.9911 | 20 |",
        "| small | horizons | 0.875 | 0.75 to 0.9 | 12 |",
        # the interval that was fastest, and no row at one fill only
        "| gdn | holdover | 8 | 0.125 | 0.1125 to 0.1375 | 1.00x | 60 |",
        # two files of training's scores are one score
        "| recall | 0.250 (0.10 to 0.49, n = 16) | 0.250 (0.10 to 0.49, n = 16) |",
        "| small | deferred | deferred | 3 | feed float32 | cpu | 0123456789 | 2026-01-02 |",
    ):
        assert wanted in found, wanted
    assert not any("random(" in line for line in found)
    assert not any("0.01 |" in line and "holdover | 8" in line for line in found)


def test_what_was_not_run_has_no_section(tmp_path: Path) -> None:
    files = quality_results.everything()
    for name in ("composed", "combinations", "validate"):
        del files[name]
    titles = [line for line in lines(pages_of(files, tmp_path) / "index.md") if line.startswith("## ")]
    assert titles == [
        "## The models",
        "## Checkpoints that keep less (DASC)",
        "## Decode from a log (DeltaLog)",
        "## What models this small cannot show",
        "## Where the figures come from",
    ]


def test_a_difference_is_read_by_its_interval() -> None:
    def row(low: float, high: float) -> dict[str, Any]:
        return {"difference": (low + high) / 2, "difference_low": low, "difference_high": high, "count": 9}

    assert verdict(row(0.1, 0.3), "nll") == verdict(row(-0.3, -0.1), "exact") == "worse"
    assert verdict(row(-0.3, -0.1), "kl") == verdict(row(0.1, 0.3), "exact") == "better"
    assert verdict(row(-0.3, 0.1), "kl") == "open"
    assert verdict(row(1e-12, 2e-12), "kl") == "rounding"
    assert verdict(row(0.0, 0.0), "kl") == "equal"
    assert difference(row(0.1, 0.3), "nll") == "+0.2 nats (+0.1 to +0.3, n = 9)"
    assert difference(row(0.1, 0.3), "exact", "here") == "+0.2 (+0.1 to +0.3, n = 9; here)"


def test_figures_are_written_without_needless_digits_and_exponents() -> None:
    assert (signed(None), signed(-0.0), interval(None, 1.0)) == ("-", "+0", "-")
    assert [brief(value) for value in (0.123, 12.5, 99.7, 1234.5, 1.23e-7)] == ["0.12", "12", "100", "1,234", "1.2e-07"]
    assert [signed(value) for value in (-120.0, 0.5)] == ["-120", "+0.5"]


def test_wilson_s_interval() -> None:
    # Wilson (1927) at 0.95: 8 of 10
    assert wilson(8, 10) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert wilson(0, 5)[0] == 0.0
    assert wilson(5, 5)[1] == 1.0


def test_results_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no results"):
        build(tmp_path, tmp_path / "pages")
    (quality_results.write(tmp_path / "results" / "small", {}) / "x.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"x\.json is no JSON object"):
        build(tmp_path / "results", tmp_path / "pages")
    (tmp_path / "results" / "small" / "x.json").write_text("{")
    with pytest.raises(ConfigError, match=r"x\.json cannot be read as JSON"):
        build(tmp_path / "results", tmp_path / "pages")


def test_the_command_fails_where_a_result_lacks_something(tmp_path: Path) -> None:
    files = quality_results.everything()
    folder = quality_results.write(tmp_path / "results" / "small", files)
    done = invoke("report", "build", str(tmp_path), "--pages", str(tmp_path / "pages"))
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "pages" / "index.md").exists()
    del files["deferred"]["rows"][1]["low"]
    quality_results.write(folder, files)
    done = invoke("report", "build", str(tmp_path), "--pages", str(tmp_path / "pages"))
    assert done.exit_code == 2
    assert "small/deferred, row 2" in error_line(done.stderr)
