"""A card lists goals that are reached and missed, no run twice, and is what the results make it."""

import copy
import json

import pytest

from tests.training import MODEL
from training.card import again, card, goals, noted

RESULTS = MODEL.parents[2] / "training" / "results"


def scores_of(task, exact):
    return {task: {length: {"exact": value, "low": 0.0, "high": 1.0, "prompts": 50} for length, value in exact.items()}}


def report(name, folder="tiny-kda"):
    return json.loads((RESULTS / folder / f"{name}.json").read_text("utf-8"))


def test_goals_reached_and_missed_are_both_listed():
    scores = scores_of("recall", {"256": 0.99, "512": 0.95, "2048": 0.66, "4096": 0.5, "all": 0.9})
    scores |= scores_of("needle", {"256": 1.0, "2048": 1.0}) | scores_of("count", {"256": 0.2, "4096": 0.3})
    assert goals(scores).splitlines()[2:] == [
        "- recall, 0.95 or more: reached at 256, 512; missed at 2,048 (0.660) tokens",
        "- needle, 0.95 or more: reached at 256, 2,048 tokens",
        "- count, 0.3 to 0.95: reached at 4,096; missed at 256 (0.200) tokens",
    ]


def test_a_run_that_the_scores_hold_is_not_told_again():
    recall, scores = report("recall"), report("scores")
    assert again(recall, [scores]) == ""
    other = copy.deepcopy(recall)
    other["scores"]["needle"]["256"]["exact"] = 0.5
    for changed in (other, recall | {"seed": 2}, recall | {"engine": "transformers"}):
        assert "| needle |" in again(changed, [scores])


def test_no_remarks_leave_no_empty_paragraph():
    assert noted([]) == ""
    assert noted(["a", "b"]) == "- a\n- b\n\n"


@pytest.mark.parametrize("name", ["tiny-kda", "tiny-mamba2"])
def test_bundled_cards_are_what_the_results_make_them(name):
    path = MODEL.parent / name
    text = (path / "README.md").read_text("utf-8")
    assert text == card(path, RESULTS / name)
    assert "\n\n\n" not in text
