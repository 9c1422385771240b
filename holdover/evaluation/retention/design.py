"""Where in a text states are resumed, and when measuring so means something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdover.errors import ConfigError

# prefix lengths in each piece of the text
DEPTHS = 16
# longest prefix over longest cutoff: a window as long as the prefix replays all of it, and is exact for that alone
_PREFIX_OVER_CUTOFF = 4


@dataclass(frozen=True)
class Design:
    """Where in a text states are resumed.

    Attributes:
        continuations: how many are wanted; whole pieces are measured, so there may be a few more.
        tokens: tokens of each.
        longest: longest prefix in tokens; prefixes are as long as 1/16, 2/16, ... of it.
    """

    continuations: int
    tokens: int
    longest: int

    @property
    def depths(self) -> tuple[int, ...]:
        """Prefix lengths in each piece."""
        return tuple(self.longest * (i + 1) // DEPTHS for i in range(DEPTHS))

    @property
    def piece(self) -> int:
        """Tokens of one piece."""
        return self.longest + self.tokens

    @property
    def pieces(self) -> int:
        """Pieces of the text."""
        return -(-self.continuations // DEPTHS)

    @property
    def measured(self) -> int:
        """Continuations that are measured."""
        return self.pieces * DEPTHS

    def check(self, text: int, cutoffs: Sequence[int], max_context: int) -> None:
        """Verify that the design can be carried out, and means something.

        Args:
            text: tokens of the text.
            cutoffs: the W_max to be measured.
            max_context: the model's context.

        Raises:
            ConfigError: it cannot, or it would flatter long windows.
        """
        if self.continuations < 1 or self.tokens < 1 or not cutoffs:
            raise ConfigError("a sweep needs at least one cutoff, one continuation and one token of it")
        if self.tokens > self.longest // DEPTHS:
            raise ConfigError(
                f"continuations of {self.tokens} tokens overlap at prefixes up to {self.longest}: raise --prefix to "
                f"{self.tokens * DEPTHS} or more"
            )
        if (wanted := _PREFIX_OVER_CUTOFF * max(cutoffs)) > self.longest:
            raise ConfigError(
                f"a cutoff of {max(cutoffs)} needs prefixes up to {wanted} tokens to mean something, not "
                f"{self.longest}: raise --prefix or lower --wmax"
            )
        if self.piece > max_context:
            raise ConfigError(
                f"{self.piece} tokens do not fit into the model's context of {max_context}: lower --prefix"
            )
        if text < self.pieces * self.piece:
            raise ConfigError(
                f"the text has {text} tokens and {self.pieces} pieces of {self.piece} are needed: give a longer text, "
                "fewer --continuations or a shorter --prefix"
            )
