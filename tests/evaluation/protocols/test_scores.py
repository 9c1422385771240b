"""What answers are worth."""

from __future__ import annotations

import pytest

from holdover.evaluation.protocols.scores import SCORES


@pytest.mark.parametrize(
    ("metric", "text", "worth"),
    [
        ("boxed", r"first \boxed{41}, then \boxed{ 4 2 }.", 1.0),
        ("boxed", r"first \boxed{42}, then \boxed{41}", 0.0),
        ("boxed", r"\boxed{\frac{1}{2}}", 1.0),
        ("boxed", r"\boxed{\frac{\sqrt{3}}{2}}", 1.0),
        ("boxed", r"\boxed{42}, and so \boxed{\frac{", 1.0),
        ("boxed", "42", 0.0),
        ("exact", " 42\n", 1.0),
        ("f1", "the 42 cats", 2 / 3),
    ],
)
def test_scores(metric: str, text: str, worth: float) -> None:
    assert SCORES[metric](text, ["42", r"\frac{ 1}{2}", r"\frac{\sqrt{3}}{2}"]) == pytest.approx(worth)
