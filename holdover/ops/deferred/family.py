"""What tells the recurrences apart once each is written as a decay, an update pair and a read (DeltaLog, Eq. 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

# the fields of `Inputs` before this one differ between tokens, the others are parameters
PER_TOKEN = 6


class Inputs(NamedTuple):
    """One step's tensors under the names that all families share; those that a family lacks are None.

    Leading axes are ``[B]`` for one token and ``[B, T]`` for several.

    Attributes:
        q: what reads the state ``[..., Hk, d_k]``; a key head serves ``H // Hk`` consecutive value heads.
        k: what writes it ``[..., Hk, d_k]``.
        v: ``[..., H, d_v]``.
        log_decay: ``[..., H]``, or ``[..., H, d_k]`` per key channel; never positive once multiplied by ``rate``.
        beta: write strength of the delta rule ``[..., H]``.
        weight: factor of the key ``[..., H]``.
        rate: factor of the log decay ``[H]``.
        skip: share of the value that goes straight to the output ``[H]``.
        bonus: weight of the token's own key in a read before the update ``[H, d_k]``.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor
    beta: Tensor | None = None
    weight: Tensor | None = None
    rate: Tensor | None = None
    skip: Tensor | None = None
    bonus: Tensor | None = None

    def at(self, t: int) -> Inputs:
        """Token ``t`` of several."""
        return self._tokenwise(lambda x: x[:, t])

    def rows(self, index: Tensor) -> Inputs:
        """The sequences that ``index`` names."""
        return self._tokenwise(lambda x: x[index])

    def _tokenwise(self, pick: Callable[[Tensor], Tensor]) -> Inputs:
        tokenwise = zip(self._fields[:PER_TOKEN], self[:PER_TOKEN], strict=True)
        return self._replace(**{name: pick(x) for name, x in tokenwise if x is not None})


@dataclass(frozen=True)
class Family:
    """A recurrence, as far as its state is concerned.

    Attributes:
        name: as in result files.
        per_key: the decay is one number per key channel, not one per head.
        delta: the delta rule: keys and queries are l2-normalised, and what is written is the value less what the
            decayed state already holds for the key.
        scaled: a log entry has an fp32 factor beside its raw key: the inverse norm, or Mamba-2's step size.
        reads_before: the output reads the state before the update.
        pack: the arguments of the dense ``step``, in its order, as `Inputs`.
    """

    name: str
    per_key: bool
    delta: bool
    scaled: bool
    reads_before: bool
    pack: Callable[..., Inputs]


def _delta(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Inputs:
    return Inputs(q, k, v, log_decay, beta=beta)


def _mamba2(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Inputs:
    return Inputs(c, b, x, dt, weight=dt, rate=a, skip=d)


def _rwkv6(r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, bonus: Tensor) -> Inputs:
    return Inputs(r, k, v, log_decay, bonus=bonus)


GDN = Family("gdn", per_key=False, delta=True, scaled=True, reads_before=False, pack=_delta)
KDA = Family("kda", per_key=True, delta=True, scaled=True, reads_before=False, pack=_delta)
MAMBA2 = Family("mamba2", per_key=False, delta=False, scaled=True, reads_before=False, pack=_mamba2)
RWKV6 = Family("rwkv6", per_key=True, delta=False, scaled=False, reads_before=True, pack=_rwkv6)

FAMILIES = {family.name: family for family in (GDN, KDA, MAMBA2, RWKV6)}
