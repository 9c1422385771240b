"""What one model costs on one machine: measured once, read by every simulation."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdover.errors import HoldoverError


@dataclass(frozen=True)
class ForwardCost:
    """Milliseconds of a forward, linear in what it runs.

    Attributes:
        base: of any forward.
        token: of each token.
        pair: of each token and each token that it attends to.
    """

    base: float
    token: float
    pair: float

    def ms(self, tokens: int, pairs: int) -> float:
        """Milliseconds of a forward of so many tokens over so many pairs."""
        return self.base + self.token * tokens + self.pair * pairs


@dataclass(frozen=True)
class ServingCost:
    """Milliseconds that a server adds to what its engine does, in the same process.

    One thread of it runs Python at a time: reading a request and sending a token both hold up the engine's step.
    Tokenising does not.

    Attributes:
        request: of any request, before the engine sees it; they are read one after another.
        prompt_token: of each token of its prompt, before the engine sees it, which goes on meanwhile.
        token: of each token that is sent, between the step that made it and the next one.
        together: requests that ran together when that was measured; 0 if nobody knows.
    """

    request: float = 0.0
    prompt_token: float = 0.0
    token: float = 0.0
    together: int = 0

    def before_ms(self, prompt: int) -> float:
        """Milliseconds until the engine sees a request that comes alone, with a prompt of so many tokens."""
        return self.request + self.prompt_token * prompt


@dataclass(frozen=True)
class Costs:
    """Costs of one model on one machine.

    Attributes:
        model: its name.
        machine: what it was measured on.
        dtype: that it ran in.
        prefill: forwards of several tokens of one sequence.
        decode: forwards of one token of every sequence.
        copy_ms: restoring a dense checkpoint, in milliseconds a byte.
        unpack_ms: restoring a packed one, in milliseconds a byte of the record.
        chunk_size: most tokens of one prefill forward there while other requests wait.
        serving: what a server adds; nothing where that was not measured.
    """

    model: str
    machine: str
    dtype: str
    prefill: ForwardCost
    decode: ForwardCost
    copy_ms: float
    unpack_ms: float
    chunk_size: int = 512
    serving: ServingCost = ServingCost()


def pairs_of(start: int, count: int) -> int:
    """Pairs of ``count`` tokens from position ``start`` on, each with every token up to itself."""
    return count * start + count * (count + 1) // 2


def costs_of(facts: dict[str, Any]) -> Costs:
    """Costs that `asdict` made a dictionary of.

    Raises:
        TypeError: a field is missing or unknown, or of another kind.
        KeyError: a field is missing.
    """
    forwards = {name: ForwardCost(**facts[name]) for name in ("prefill", "decode")}
    return Costs(**facts | forwards | {"serving": ServingCost(**facts.get("serving", {}))})


def write_costs(costs: Costs, path: Path) -> None:
    """Write costs to a file."""
    path.write_text(json.dumps(asdict(costs), indent=1) + "\n", encoding="utf-8")


def read_costs(path: Path) -> Costs:
    """Read costs.

    Raises:
        HoldoverError: the file cannot be read, or is not one that was measured.
    """
    try:
        return costs_of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HoldoverError(
            f"costs {path} cannot be read ({reason}): measure them with holdover simulate --measure MODEL"
        ) from None
