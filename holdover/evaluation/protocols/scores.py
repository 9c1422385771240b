"""What an answer is worth: functions of the answer's text and the right answers, from 0 to 1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

Score = Callable[[str, Sequence[str]], float]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def exact(text: str, answers: Sequence[str]) -> float:
    """1 if the text, blanks around it left out, is one of the answers."""
    return float(text.strip() in answers)


def contains(text: str, answers: Sequence[str]) -> float:
    """Share of the answers that occur in the text, whatever their case (RULER's metric)."""
    return sum(answer.lower() in text.lower() for answer in answers) / len(answers)


def token_f1(text: str, answers: Sequence[str]) -> float:
    """Best F1 of the words of text and answer, without case, punctuation and articles (SQuAD's metric)."""
    return max(_f1(_words(text), _words(answer)) for answer in answers)


SCORES: dict[str, Score] = {"exact": exact, "contains": contains, "f1": token_f1}


def _f1(found: list[str], wanted: list[str]) -> float:
    if not found or not wanted:
        return float(found == wanted)
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted))


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()
