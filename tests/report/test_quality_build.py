"""Pages say what the files say, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from holdover.errors import ConfigError
from holdover.report.quality.build import build
from holdover.report.quality.section import compared, interval, signed, wilson
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
    assert not any("0.01 |" in line and "holdover | 8" in line for line in found)


def test_findings_are_sentences_of_the_figures(pages: Path) -> None:
    found = lines(pages / "findings.md")
    for wanted in (
        "- small, text: nr at W_max 16 against dense: worse (+0.03, +0.02 to +0.04, n = 24); 1 of 2 random masks of as "
        "many units are worse than it, and differ from dense by +0.01 to +0.3.",
        "- small, text: int8 against dense: not told apart (+0.001, -0.002 to +0.003, n = 24).",
        "- small: as constructed, `exact` is off by 2.1 (2.05 to 2.2, n = 20) in its worst layer, 2; its error grows "
        "with depth.",
        "- small: as constructed, `last` is off by 2.1 (2.05 to 2.2, n = 20) in its worst layer, 2; its error has no "
        "trend over layers.",
        "- small: with the inputs of its context, exact composition keeps at most 0.2 (0.1 to 0.3, n = 20) of its "
        "error, at layer 2: most of it comes from isolated inputs.",
        "- small: perplexity 7.389 on 3 pieces of 64 tokens of held-out text.",
    ):
        assert wanted in found, wanted
    whole = "\n".join(found)
    assert "it grows along the continuation (+1e-06, +1e-07 to +2e-06)" in whole
    assert "KL beyond that of a single restore is not seen to grow (+0.0001 nats a restore" in whole
    assert "gdn: writing to a log is 2.00 to 2.00 times as fast" in whole
    assert "no other kernel is faster" in whole


def test_wording_follows_the_figures(tmp_path: Path) -> None:
    files = quality_results.everything()
    files["replay-text"]["rows"][1] |= {"difference": -0.03, "difference_low": -0.04, "difference_high": -0.02}
    files["composed"]["causes"][0]["left"] = {"mean": 0.9, "low": 0.8, "high": 1.0}
    found = "\n".join(lines(pages_of(files, tmp_path) / "findings.md"))
    assert "nr at W_max 16 against dense: better (-0.03" in found
    assert "isolated inputs do not explain most of it" in found


def test_what_the_figures_do_not_tell_is_not_said(tmp_path: Path) -> None:
    files = quality_results.everything()
    files["composed"]["causes"][0]["left"] = {"mean": 0.2, "low": 0.0, "high": 0.75}
    dense = {"model": "m", "context": 512, "batch": 1, "mode": "dense", "tpot_ms": 2.0, "p10": 1.9, "p90": 2.1}
    dense |= {"tpot_p99_ms": 2.5, "update_share": 0.1, "n": 9}
    engine = quality_results.decode() | {"rows": [dense]}
    benchmarks = quality_results.write(tmp_path / "benchmarks", {"decode_engine": engine})
    pages = pages_of(files, tmp_path, benchmarks=benchmarks)
    found = "\n".join(lines(pages / "findings.md"))
    assert "the figures do not tell whether most of it comes from isolated inputs" in found
    assert "| m | 512 | 1 | dense | 2 | 1.9 to 2.1 | 2.5 | 10.0% | 9 |" in lines(pages / "index.md")
    # there is nothing to compare it with
    assert "with a log a step takes" not in found


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

    assert compared(row(0.1, 0.3), "nll") == "worse (+0.2, +0.1 to +0.3, n = 9)"
    assert compared(row(0.1, 0.3), "exact") == "better (+0.2, +0.1 to +0.3, n = 9)"
    assert compared(row(-0.3, -0.1), "kl").startswith("better")
    assert compared(row(-0.3, 0.1), "kl").startswith("not told apart")
    assert compared(row(1e-12, 2e-12), "kl").startswith("equal but for rounding (+1.5e-12")
    assert compared(row(0.0, 0.0), "kl") == "equal in every instance (n = 9)"
    assert (signed(None), signed(-0.0), interval(None, 1.0)) == ("-", "+0", "-")


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
