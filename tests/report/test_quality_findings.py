"""Findings say once what is alike, and with their figures what is told apart."""

from __future__ import annotations

from typing import Any

from holdover.report.quality.findings.checkpoints import checkpoints
from holdover.report.quality.findings.composed import composed
from holdover.report.quality.findings.page import MOST, findings_page
from holdover.report.quality.findings.papers import papers
from holdover.report.quality.findings.part import listed
from holdover.report.quality.results import ModelResults, Results
from tests.report import quality_results
from tests.report.quality_results import replay_row

Files = dict[str, dict[str, Any]]


def results_of(files: Files, *names: str, benchmarks: Files | None = None) -> Results:
    return Results(tuple(ModelResults(name, files) for name in names or ("small",)), benchmarks or {})


def answers(arm: str, w_max: int | None, difference: tuple[float, float, float] | None) -> dict[str, Any]:
    return replay_row(
        arm, w_max, difference, task="recall", metric="exact", mean=1.0 + (difference or (0.0,))[0], count=10
    )


def contradicting() -> Files:
    """Answers that come from states, exact composition that wins, and selectors that harm."""
    files = quality_results.everything()
    for score in files["validate"]["needle"]:
        score["right"]["0.0"] = {"zero-linear": 0, "zero-full-kv": 20}.get(score["arm"], score["right"]["0.0"])
    for row in files["composed"]["rows"]:
        if row["difference"] is not None:
            row |= {"difference": -2.0, "difference_low": -3.0, "difference_high": -1.0}
        if row["metric"] == "right" and row["selector"] == "none":
            row |= {"mean": 1.0, "low": 0.9, "high": 1.0}
    return files


def part_of(page: str, title: str) -> list[str]:
    """Sentences below a heading."""
    return [line[2:] for line in page.split(f"## {title}\n\n")[1].split("\n\n")[0].splitlines()]


def test_every_protocol_is_told_of_in_a_few_sentences() -> None:
    files, benchmarks = quality_results.everything(), {"decode": quality_results.decode()}
    page = findings_page(results_of(files, "a", "b", "c", benchmarks=benchmarks))
    sentences = [line for line in page.splitlines() if line.startswith("- ")]
    assert 20 < len(sentences) <= 50
    assert len(set(sentences)) == len(sentences)
    assert 5 <= len(part_of(page, "In short")) <= MOST
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert headings == [
        "## In short",
        "## What differs from the papers, and what does not",
        "## Checkpoints that keep less (DASC)",
        "## Contexts composed of chunks (LinearKV)",
        "## Decode from a log (DeltaLog)",
        "## Combinations",
        "## Decode speed (DeltaLog)",
        "## The models",
        "## What models this small cannot show",
    ]


def test_sentences_hold_the_files_figures() -> None:
    page = findings_page(results_of(quality_results.everything(), benchmarks={"decode": quality_results.decode()}))
    for wanted in (
        "- small: worse than dense: nr at W_max 16 on text +0.03 nats (+0.02 to +0.04, n = 24); not told apart: "
        "1 cell, the furthest off int8 on text +0.001 nats (-0.002 to +0.003, n = 24).",
        "- small: 1 of 2 random masks of as many units are worse than dense on some task, at most by +0.3 nats "
        "(+0.2 to +0.4, n = 24; text at W_max 16), where `nr` is worse. Their mean is worse than `nr` by up to 0.12 "
        "(text at W_max 16; sample sd 0.21).",
        "The error of `exact` grows with depth (rank correlation +0.8, +0.7 to +0.9)",
        "it keeps at most 0.2 (0.1 to 0.3, n = 20) of it, in layer 2: most of it comes from isolated inputs.",
        "and with epic at r = 0.2 of a full prefill's right answers are left 75 % (50 to 100) with `last` and 75 % (50 "
        "to 100) with `exact`",
        "- 1 of 2 random masks of as many units are worse than dense on some task, at most by +0.3 nats (+0.2 to +0.4, "
        "n = 24; small, text at W_max 16), where `nr` is worse.",
        "Windows around seams of 4 (5.0%) tokens: `exact` is, against `last`, on small better in 1 of 1, KL -0.5 nats",
        "mean KL 2e-06 (1e-06 to 4e-06, n = 16) with m8-bf16/fp32, 87.50% of tokens agree; with m8-bf16/fp32 it grows "
        "along the continuation by +1e-06 (+1e-07 to +2e-06).",
        "- small, 2 restores in a row (n = 6): KL grows, in nats a restore, by +0.001 (+0.0005 to +0.002) with nr at "
        "W_max 16.",
        "- Lossy restores are not seen to add up: KL grows beyond what one costs in none of 1 chain.",
        "in 1 of 1 combinations, at most by +0.01 nats (+0.005 to +0.02, n = 6; small, int8, `last`, epic 20%) of 0.1.",
        "- gdn: writing to a log is 2.00 to 2.00 (1.64 to 2.44, n = 60) times as fast as writing the state at 128 to "
        "128 sequences, most at 128; no other kernel is faster.",
    ):
        assert wanted in page, wanted


def test_equal_cells_are_one_sentence_and_the_others_are_named_worst_first() -> None:
    rows = [answers("dense", None, None)]
    rows += [answers(arm, w_max, (0.0, 0.0, 0.0)) for arm in ("nr", "wr") for w_max in (16, 32)]
    rows += [answers("nr", 64, (-0.2, -0.4, -0.1)), answers("wr", 64, (-0.3, -0.5, -0.1))]
    found = checkpoints(results_of({"replay": quality_results.head("warm-replay") | {"arms": {}, "rows": rows}}))
    assert found.findings == (
        "small: worse than dense: wr at W_max 64 on recall -0.3 (-0.5 to -0.1, n = 10) and nr at W_max 64 on recall "
        "-0.2 (-0.4 to -0.1, n = 10).",
        "On recall nr and wr do as dense does in every instance (n = 10 each) in 4 of 6 cells of arm, W_max and task "
        "on small.",
    )
    assert "4 are equal in every instance and 2 are worse, at most by -0.3" in found.short[0]


def test_the_model_that_differs_most_is_first() -> None:
    def model(name: str, low: float) -> ModelResults:
        rows = [answers("dense", None, None), answers("nr", 16, (low, low - 0.1, low + 0.1))]
        return ModelResults(name, {"replay": quality_results.head("warm-replay") | {"arms": {}, "rows": rows}})

    found = checkpoints(Results((model("a", -0.2), model("b", -0.05), model("c", -0.6))))
    assert [line.partition(":")[0] for line in found.findings] == ["c", "a", "b"]


def test_masks_that_lose_nothing_are_not_said_to() -> None:
    rows = [answers("dense", None, None)]
    rows += [answers(arm, 16, (0.0, 0.0, 0.0)) for arm in ("nr", "random(1)", "random(2)")]
    found = checkpoints(results_of({"replay": quality_results.head("warm-replay") | {"arms": {}, "rows": rows}}))
    assert found.findings[0] == "small: 0 of 2 random masks of as many units are worse than dense on some task."
    assert len(found.short) == 1


def test_a_contradiction_is_what_the_figures_contradict() -> None:
    agreeing = papers(results_of(quality_results.everything()))
    assert "So here: small finds 19 of 20 (0.76 to 0.99) with states at zero" in " ".join(agreeing.findings)
    assert "Here too `exact` is in most pairs of selector and r not better" in " ".join(agreeing.findings)
    assert agreeing.short == ()

    found = papers(results_of(contradicting()))
    assert [line.partition(":")[0] for line in found.short] == ["DASC, Table 1(a)", "LinearKV", "LinearKV, App. A"]
    assert "Not so on small; small finds 0 of 20 (0 to 0.16) with states at zero" in found.short[0]
    assert "`exact` is better on small, by KL -2 nats (-3 to -1, n = 20; small, epic at r = 0.2)." in found.short[1]
    assert "0.5 (0.4 to 0.6, n = 20) with epic at r = 0.2 against 1 (0.9 to 1, n = 20)" in found.short[2]
    assert "is 0.2 (0.1 to 0.3, n = 20) on small: most of it comes from isolated inputs." in found.findings[1]


def test_percentages_are_of_a_named_pair_and_have_their_range_over_selectors() -> None:
    files = quality_results.everything()
    rows = files["composed"]["rows"]
    rows += [row | {"selector": "seam", "mean": 25.0} for row in rows if row["metric"] == "percent of full"]
    assert (
        "with epic at r = 0.2 of a full prefill's right answers are left 75 % (50 to 100; over selectors 25 to 75) "
        "with `last` and 75 % (50 to 100; over selectors 25 to 75) with `exact`."
    ) in composed(results_of(files)).findings[0]


def test_masks_of_all_models_are_counted() -> None:
    page = findings_page(results_of(quality_results.everything(), "a", "b", "c"))
    assert part_of(page, "In short")[1].startswith("3 of 6 random masks of as many units are worse than dense")


def test_attention_that_cannot_find_values_is_said_to_be_by_design() -> None:
    files = contradicting()
    assert not [line for line in papers(results_of(files)).findings if "by design" in line]
    files["inspect"]["per_layer"].reverse()
    said = "In a and b the only attention layer is the first, by design"
    found = papers(results_of(files, "a", "b"))
    for lines in (found.findings, found.short):
        assert [said in line for line in lines[:3]] == [True, True, False]
    files["inspect"]["per_layer"].append({"index": 3, "kind": "attention"})
    assert not [line for line in papers(results_of(files)).findings if "by design" in line]


def test_one_state_that_is_not_better_on_mamba2_is_a_contradiction() -> None:
    files = quality_results.everything()
    files["inspect"]["family"] = "mamba2"
    assert papers(results_of(files)).short == ()
    for row in files["composed"]["rows"]:
        if row["difference"] is not None:
            row |= {"difference": 0.0, "difference_low": -0.1, "difference_high": 0.1}
    (line,) = papers(results_of(files)).short
    assert line.endswith("`exact` is in most pairs of selector and r not better, but nor is `last` on small.")
    files["inspect"]["family"] = "gdn"
    assert papers(results_of(files)).short == ()


def test_horizons_that_correlate_less_on_most_models_are_a_contradiction() -> None:
    def model(name: str, horizons: float, magnitudes: float) -> ModelResults:
        files = quality_results.everything()
        files["validate"]["spearman"] = {
            key: {"median": median, "q1": median - 0.1, "q3": median + 0.1, "count": 12}
            for key, median in (("horizons", horizons), ("magnitudes", magnitudes))
        }
        return ModelResults(name, files)

    agreeing, less, reverse = model("a", 0.8, 0.4), model("b", 0.4, 0.6), model("c", -0.4, -0.6)
    (line,) = papers(Results((agreeing, less, reverse))).short
    assert "Not so on b and c, by median rank correlation (quartiles): b 0.4 (0.3 to 0.5) and 0.6 (0.5 to 0.7)" in line
    half = papers(Results((agreeing, less)))
    assert half.short == ()
    assert "So on 1 of 2 models" in " ".join(half.findings)


def test_masks_that_are_better_than_a_plan_on_most_models_are_a_contradiction() -> None:
    def model(name: str, *masks: float) -> ModelResults:
        rows = [answers("dense", None, None)]
        for w_max, found in enumerate(masks, start=16):
            rows += [answers(arm, w_max, (by, by, by)) for arm, by in (("nr", -0.2), ("random(1)", found))]
        return ModelResults(name, {"replay": quality_results.head("warm-replay") | {"arms": {}, "rows": rows}})

    better, mixed, worse = model("a", -0.4, -0.2), model("b", -0.4, -0.1), model("c", -0.4, -0.1, 0.0)
    (line,) = papers(Results((mixed, worse, model("d", -0.1)))).short
    assert line.endswith(
        "it is more often worse than better: on c better in 1, equal in 0 and worse in 2; on d better in 0, equal in 0 "
        "and worse in 1."
    )
    assert papers(Results((better, mixed, worse))).short == ()


def test_what_the_figures_do_not_tell_is_not_said() -> None:
    files = quality_results.everything()
    for left, said in (
        ({"mean": 0.9, "low": 0.8, "high": 1.0}, "isolated inputs do not explain most of it"),
        (
            {"mean": 0.2, "low": 0.0, "high": 0.75},
            "the figures do not tell whether most of it comes from isolated inputs",
        ),
    ):
        files["composed"]["causes"][0]["left"] = left
        assert said in " ".join(composed(results_of(files)).findings)
    dense = {"model": "m", "context": 512, "batch": 1, "mode": "dense", "tpot_ms": 2.0, "p10": 1.9, "p90": 2.1}
    engine = quality_results.decode() | {"rows": [dense | {"tpot_p99_ms": 2.5, "update_share": 0.1, "n": 9}]}
    # there is nothing to compare it with
    assert "Decode speed" not in findings_page(results_of(files, benchmarks={"decode_engine": engine}))


def test_an_engine_s_step_says_whether_spreads_overlap() -> None:
    def step(batch: int, mode: str, ms: float) -> dict[str, Any]:
        return {"model": "m", "context": 512, "batch": batch, "mode": mode, "tpot_ms": ms, "p10": ms - 0.1,
                "p90": ms + 0.1, "n": 9}  # fmt: skip

    rows = [step(1, "dense", 2.0), step(1, "deferred", 1.9), step(8, "dense", 4.0), step(8, "deferred", 3.0)]
    page = findings_page(results_of(quality_results.everything(), benchmarks={"decode_engine": {"rows": rows}}))
    assert (
        "of the time without a log a step takes 0.95 (spreads overlap) with 1 and 0.75 with 8 sequences (n = 9)."
        in page
    )
    assert "lie apart in 1 of 2 settings in its favour and in 0 against it." in page


def test_names_are_listed_once() -> None:
    assert [listed(names) for names in ("a", "ab", "abcab")] == ["a", "a and b", "a, b and c"]
