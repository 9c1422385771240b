"""What an answer is worth: functions of the answer's text and the right answers, from 0 to 1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

Score = Callable[[str, Sequence[str]], float]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_BOX = re.compile(r"\\boxed\{")
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


def boxed(text: str, answers: Sequence[str]) -> float:
    r"""1 if what stands in the last ``\boxed{}``, without blanks, is one of the answers (competition mathematics)."""
    found = [inside for begin in _BOX.finditer(text) if (inside := _braced(text, begin.end())) is not None]
    return float(bool(found) and _without_blanks(found[-1]) in map(_without_blanks, answers))


SCORES: dict[str, Score] = {"exact": exact, "contains": contains, "f1": token_f1, "boxed": boxed}


def _f1(found: list[str], wanted: list[str]) -> float:
    if not found or not wanted:
        return float(found == wanted)
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted))


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _braced(text: str, start: int) -> str | None:
    """What stands up to the brace that closes the one before ``start``; None if nothing closes it."""
    depth = 1
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if not depth:
            return text[start:end]
    return None


def _without_blanks(text: str) -> str:
    return "".join(text.split())
