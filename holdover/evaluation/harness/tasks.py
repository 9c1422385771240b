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
_PACKAGES = {"ruler": ("nltk", "scipy", "wonderwords")}


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

    def load(self, names: Sequence[str], length: int | None = None) -> dict[str, Any]:
        """Load tasks and their data, as the harness's ``evaluate`` takes them.

        Args:
            names: tasks and groups.
            length: tokens of generated prompts.

        Raises:
            ConfigError: a name is unknown, or a package or data are missing.
        """
        manager = self._manager(names, length)
        for name in names:
            if name not in manager.all_tasks:
                close = difflib.get_close_matches(name, manager.all_tasks, 3)
                raise ConfigError(f"there is no task {name}" + (f"; did you mean {', '.join(close)}?" if close else ""))
        try:
            loaded: dict[str, Any] = manager.load(list(names))
        except ImportError as error:
            raise ConfigError(_missing(names, error)) from error
        except Exception as error:
            # data sets, their servers and tasks' own code raise what they like
            detail = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"the data of {', '.join(names)} cannot be had ({detail}): they come from the hub or from where the "
                "task says, so a network is needed, or what an earlier run has left in the cache"
            ) from error
        return loaded

    def _manager(self, names: Sequence[str], length: int | None) -> Any:
        metadata = {"tokenizer": str(self._tokenizer)} | ({} if length is None else {"max_seq_lengths": [length]})
        if set(names) <= set(RULER):
            # the harness's index of all of its thousands of tasks takes a while to read
            folder = Path(lm_eval.__file__).parent / "tasks" / "ruler"
            return TaskManager(include_path=str(folder), include_defaults=False, metadata=metadata)
        include = None if self._include is None else os.fspath(self._include)
        return TaskManager(include_path=include, include_defaults=self._defaults, metadata=metadata)


def _missing(names: Sequence[str], error: ImportError) -> str:
    packages = [package for package in _PACKAGES["ruler"] if importlib.util.find_spec(package) is None]
    if packages and set(names) & set(RULER):
        return f"RULER's prompts need {', '.join(packages)}: pip install 'lm-eval[ruler]'"
    needed = error.name or str(error)
    return f"{', '.join(names)} needs a package that is missing, {needed}: pip install {needed}, or 'lm-eval[tasks]'"
