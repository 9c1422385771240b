"""What a paper found beside what was found here, and when it is no refutation."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import dataclass

from holdover.report.quality.findings.part import listed
from holdover.report.quality.results import ModelResults


@dataclass(frozen=True)
class Comparison:
    """What a paper found, beside what was found here.

    Attributes:
        text: both.
        short: the same in one sentence; empty where they agree.
    """

    text: str
    short: str = ""


def most(found: Sized, every: Sized) -> bool:
    """Whether something was found in more than half."""
    return 2 * len(found) > len(every)


def by_design(models: Iterable[ModelResults]) -> str:
    """A sentence on those models whose attention cannot find values; empty if there are none."""
    names = [model.name for model in models if _attention_is_first(model)]
    if not names:
        return ""
    return (
        f" In {listed(names)} the only attention layer is the first, by design, so that attention cannot find values "
        "(`training/README.md`): this is a property of the models more than a refutation."
    )


def _attention_is_first(model: ModelResults) -> bool:
    """Whether keys and values are of single tokens only, which know nothing of their neighbours."""
    kinds = [layer["kind"] for layer in model.files.get("inspect", {}).get("per_layer", ())]
    return kinds[:1] == ["attention"] and kinds.count("attention") == 1
