"""The runs that the report is made from: which commands, how large, and where what they write lies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdover.errors import ConfigError

JSON = "{json}"


@dataclass(frozen=True)
class Size:
    """How much is run on each model.

    Attributes:
        prefixes: prefixes that static horizons are held against.
        needles: needle prompts at each of five depths.
        pieces: pieces of text that every arm of warm replay continues.
        piece: cached and scored tokens of each.
        problems: most problems that every arm of warm replay is asked.
        cutoffs: W_max of the arms.
        questions: questions over composed contexts.
        ratios: shares of their tokens that are run again.
        seam_windows: tokens to each side of a seam, instead.
        continuations: prefixes that decode from a log continues.
        steps: tokens of each.
        intervals: merge intervals of the logs.
        conversations: conversations of the combinations.
        restores: turns of each that resume.
        message: tokens of a message behind the first, and of a reply.
    """

    prefixes: int
    needles: int
    pieces: int
    piece: tuple[int, int]
    problems: int
    cutoffs: tuple[int, ...]
    questions: int
    ratios: tuple[float, ...]
    seam_windows: tuple[int, ...]
    continuations: int
    steps: int
    intervals: tuple[int, ...]
    conversations: int
    restores: int
    message: int


SIZES: Mapping[str, Size] = {
    "quick": Size(
        prefixes=8,
        needles=4,
        pieces=24,
        piece=(256, 32),
        problems=30,
        cutoffs=(16, 32, 64),
        questions=12,
        ratios=(0.05, 0.2, 0.4),
        seam_windows=(4, 16),
        continuations=16,
        steps=128,
        intervals=(8,),
        conversations=3,
        restores=6,
        message=16,
    ),
    "full": Size(
        prefixes=32,
        needles=20,
        pieces=100,
        piece=(1024, 64),
        problems=600,
        cutoffs=(16, 32, 64, 128, 256),
        questions=200,
        ratios=(0.03, 0.05, 0.1, 0.2, 0.3, 0.4),
        seam_windows=(2, 4, 8, 16, 32),
        continuations=64,
        steps=512,
        intervals=(4, 8, 16),
        conversations=20,
        restores=20,
        message=32,
    ),
}
# tokens of a conversation's first message
_FIRST = "256"
# combinations are of one cutoff: the paper's middle one
_COMBINED, _COMBINED_CUTOFF = "dense,nr,wr,int8,nr+int8", "64"
_ARMS = "dense,nr,wr,int8,nr+int8,random"


@dataclass(frozen=True)
class Step:
    """One run.

    Attributes:
        name: of its result file, without ending.
        arguments: of `holdover`; `JSON` stands for the file to write. Where it is absent, standard output is the file.
    """

    name: str
    arguments: tuple[str, ...]


def size_named(name: str) -> Size:
    """A size by its name.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in SIZES:
        raise ConfigError(f"there is no size {name!r}; choose among {', '.join(SIZES)}")
    return SIZES[name]


def steps(model: str, size: Size, text: Path, problems: Path | None) -> list[Step]:
    """What is run on one model, in order.

    Args:
        model: as `holdover` takes it.
        size: how much.
        text: held-out text.
        problems: problems for warm replay; None to leave that out.
    """
    return list(_steps(model, size, str(text), problems))


def _steps(model: str, size: Size, text: str, problems: Path | None) -> Iterator[Step]:
    cutoffs = ("--wmax", _listed(size.cutoffs))
    yield Step("inspect", ("inspect", model, *cutoffs, "--full", "--json"))
    needles = ("--needle", "--examples", str(size.needles))
    prefixes = ("--text", text, "--prefixes", str(size.prefixes), "--threads", "1")
    yield Step("validate", ("validate", model, *prefixes, *cutoffs, *needles, "--json"))
    replay = ("--arms", _ARMS, *cutoffs)
    prefix, following = map(str, size.piece)
    pieces = ("--text", text, "--prefix", prefix, "--following", following, "--limit", str(size.pieces))
    yield _protocol("replay-text", "warm-replay", model, *pieces, *replay)
    if problems is not None:
        asked = ("--problems", str(problems), "--limit", str(size.problems))
        yield _protocol("replay-tasks", "warm-replay", model, *asked, *replay)
    budgets = ("--ratios", _listed(size.ratios), "--seam-windows", _listed(size.seam_windows))
    yield _protocol("composed", "composed", model, "--prompts", str(size.questions), *budgets)
    started = ("--text", text, "--prefix", prefix, "--limit", str(size.continuations))
    logs = ("--steps", str(size.steps), "--intervals", _listed(size.intervals))
    yield _protocol("deferred", "deferred", model, *started, *logs)
    talks = ("--text", text, "--prefix", _FIRST, "--following", str(size.message), "--limit", str(size.conversations))
    ways = ("--restores", str(size.restores), "--arms", _COMBINED, "--wmax", _COMBINED_CUTOFF)
    yield _protocol("combinations", "combinations", model, *talks, *ways)


def _listed(values: Sequence[float]) -> str:
    return ",".join(f"{value:g}" for value in values)


def _protocol(name: str, protocol: str, model: str, *arguments: str) -> Step:
    ways = ("--threads", "1", "--json", JSON, "--resume")
    return Step(name, ("eval", model, "--protocol", protocol, *arguments, *ways))
