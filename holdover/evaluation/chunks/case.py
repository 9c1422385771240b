"""One prompt over chunks with what follows it, and how such prompts are cut out of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdover.chunks import Chunk
from holdover.errors import ConfigError


@dataclass(frozen=True)
class Case:
    """A prompt, and the tokens after it.

    Attributes:
        parts: its context: chunks, and token ids around them.
        query: what follows the context, at least one token.
        following: tokens behind the query; what the model makes of each is compared.
    """

    parts: tuple[Chunk | tuple[int, ...], ...]
    query: tuple[int, ...]
    following: tuple[int, ...] = ()

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Tokens of each chunk, in order."""
        return tuple(part.tokens for part in self.parts if isinstance(part, Chunk))

    def __len__(self) -> int:
        context = sum(len(part.tokens if isinstance(part, Chunk) else part) for part in self.parts)
        return context + len(self.query) + len(self.following)

    def without_text(self) -> Case:
        """The same tokens, those around chunks taken into the chunk behind them, or into the last one."""
        chunks: list[tuple[int, ...]] = []
        text: tuple[int, ...] = ()
        for part in self.parts:
            if isinstance(part, Chunk):
                chunks.append((*text, *part.tokens))
                text = ()
            else:
                text += part
        chunks[-1] += text
        return replace(self, parts=tuple(map(Chunk, chunks)))


@dataclass(frozen=True)
class Cut:
    """How a text becomes cases: consecutive pieces, each of some chunks, a query and what follows.

    Attributes:
        contexts: pieces.
        chunks: chunks of each.
        tokens: tokens of a chunk.
        query: tokens of the query.
        following: tokens behind it.
    """

    contexts: int
    chunks: int
    tokens: int
    query: int = 1
    following: int = 0

    @property
    def piece(self) -> int:
        """Tokens of one piece."""
        return self.chunks * self.tokens + self.query + self.following

    def cases(self, text: Sequence[int], max_context: int) -> list[Case]:
        """The pieces of ``text``.

        Raises:
            ConfigError: the text is too short, or a piece too long for the model.
        """
        if self.piece > max_context:
            raise ConfigError(
                f"{self.piece} tokens do not fit into the model's context of {max_context}: lower --chunks or --tokens"
            )
        if len(text) < self.contexts * self.piece:
            raise ConfigError(
                f"the text has {len(text)} tokens and {self.contexts} pieces of {self.piece} are needed: give a longer "
                "text, or fewer --contexts"
            )
        return [self._case(text[i * self.piece : (i + 1) * self.piece]) for i in range(self.contexts)]

    def _case(self, piece: Sequence[int]) -> Case:
        end = self.chunks * self.tokens
        chunks = (Chunk(tuple(piece[start : start + self.tokens])) for start in range(0, end, self.tokens))
        query = end + self.query
        return Case(tuple(chunks), tuple(piece[end:query]), tuple(piece[query:]))
