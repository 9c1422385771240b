"""Time spent inside chosen methods, without changing what is measured."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any


class Stopwatch:
    """Seconds inside wrapped functions; a call within another wrapped call is not counted twice.

    Attributes:
        seconds: time so far.
        calls: outermost calls so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0
        self._inside = False

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside = True
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start
                self.calls += 1
                self._inside = False

        return timed

    @contextmanager
    def watching(self, methods: Mapping[type, Sequence[str]]) -> Iterator[Stopwatch]:
        """Wrap methods of classes, and put them back at the end."""
        originals = [(owner, name, vars(owner)[name]) for owner, names in methods.items() for name in names]
        for owner, name, function in originals:
            setattr(owner, name, self.wrap(function))
        try:
            yield self
        finally:
            for owner, name, function in originals:
                setattr(owner, name, function)


def public_methods(owner: type, but: Sequence[str] = ()) -> list[str]:
    """Public methods that a class defines itself, properties and static methods left out."""
    return [n for n, f in vars(owner).items() if inspect.isfunction(f) and not n.startswith("_") and n not in but]
