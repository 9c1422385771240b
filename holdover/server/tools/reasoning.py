"""``<think>...</think>``: what a model thinks, apart from what it says."""

from __future__ import annotations

from collections.abc import Iterator

from holdover.server.tools.pending import Pending

OPEN, CLOSE = "<think>", "</think>"


class Thinking:
    """Splits a reply at its first thought. Line breaks around the marks belong to neither part.

    Args:
        opened: whether the prompt ends within a thought already.
    """

    def __init__(self, *, opened: bool) -> None:
        self._pending = Pending()
        # before a thought, at its first character, in it, just after it, in the text
        self._state = "first" if opened else "before"

    def push(self, text: str) -> Iterator[tuple[bool, str]]:
        """Take text; yields what is certain, as ``(is thought, text)``."""
        self._pending.push(text)
        if self._state == "before":
            self._open()
        if self._state in ("first", "within"):
            yield from self._think()
        if self._state == "after" and (rest := self._pending.text.lstrip("\n")):
            self._pending.text, self._state = rest, "said"
        if self._state == "said" and (said := self._pending.all()):
            yield False, said

    def finish(self) -> Iterator[tuple[bool, str]]:
        """End of text: yields what was held back."""
        if self._state != "after" and (rest := self._pending.all()):
            thought = self._state in ("first", "within")
            yield thought, rest.strip("\n") if thought else rest

    def _open(self) -> None:
        text = self._pending.text.lstrip()
        if text.startswith(OPEN):
            self._pending.text, self._state = text.removeprefix(OPEN), "first"
        elif not OPEN.startswith(text):
            self._state = "said"

    def _think(self) -> Iterator[tuple[bool, str]]:
        if self._state == "first":
            self._pending.text = self._pending.text.lstrip("\n")
            if not self._pending.text:
                return
            self._state = "within"
        thought, closed = self._pending.until(CLOSE)
        if closed:
            self._state = "after"
        kept = thought.rstrip("\n")
        if not closed:
            # these may be the last ones
            self._pending.text = thought[len(kept) :] + self._pending.text
        if kept:
            yield True, kept
