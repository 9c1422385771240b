"""The command line of `serve.py`: nothing that it says is ignored."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path

from benchmarks import common
from benchmarks.serve_models import SHAPES
from benchmarks.serve_traces import SEEDS

# flags that say nothing to a model of random weights, and to a bundled one
_NOT_SHAPED, _NOT_BUNDLED = ("quick", "threads"), ("seeds", "folder")


def arguments(description: str | None, line: Sequence[str] | None = None) -> Namespace:
    """Flags; ends the program where one has no effect on a model that is asked for.

    Args:
        description: of the program.
        line: the program's own if None.
    """
    parser = common.arguments("serve", description)
    parser.add_argument("--models", default="tiny-gdn", help="bundled models and shapes, with commas (%(default)s)")
    parser.add_argument(
        "--recording",
        type=Path,
        help="recording to ask; if unset, the one that comes with Holdover, or "
        "pasted paragraphs of models of random weights",
    )
    parser.add_argument("--folder", type=Path, help="where models of random weights are kept; nowhere if unset")
    parser.add_argument("--journal", type=Path, help="finished runs, so that another call goes on")
    parser.add_argument("--seconds", type=float, default=450, help="start no server after so many (%(default)s)")
    parser.add_argument("--shard", type=part, default="0/1", help="part i of n of a grid's pairs, as i/n (%(default)s)")
    numbers = range(1, len(SEEDS) + 1)
    parser.add_argument("--seeds", type=int, choices=numbers, default=len(SEEDS), help="runs of shapes' main arms")
    parser.add_argument("--call", help="one name for shards that one machine runs together; date and machine if unset")
    options = parser.parse_args(line)
    options.models = options.models.split(",")
    _refuse_ignored(parser, options)
    return options


def part(text: str) -> tuple[int, int]:
    """The ``i`` and ``n`` of ``i/n``.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        number, count = map(int, text.split("/"))
    except ValueError:
        number = count = 0
    if not 0 <= number < count:
        raise ArgumentTypeError(f"{text!r} is no i/n with i from 0 to n - 1")
    return number, count


def _refuse_ignored(parser: ArgumentParser, options: Namespace) -> None:
    for name in options.models:
        for flag in _NOT_SHAPED if name in SHAPES else _NOT_BUNDLED:
            if getattr(options, flag) != parser.get_default(flag):
                parser.error(f"--{flag} does nothing for {name}")
