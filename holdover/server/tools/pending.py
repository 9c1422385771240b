"""Text that arrives in pieces, cut at marks that may arrive in pieces too."""

from __future__ import annotations


class Pending:
    """Text that was not taken yet."""

    def __init__(self) -> None:
        self.text = ""

    def push(self, text: str) -> None:
        """Add text."""
        self.text += text

    def until(self, mark: str) -> tuple[str, bool]:
        """Take what stands before ``mark``, and the mark with it.

        Returns:
            The text, and whether the mark was there. If not, what may be its beginning is left.
        """
        before, found, after = self.text.partition(mark)
        if not found:
            held = next((n for n in range(len(mark) - 1, 0, -1) if before.endswith(mark[:n])), 0)
            before, after = before[: len(before) - held], before[len(before) - held :]
        self.text = after
        return before, bool(found)

    def all(self) -> str:
        """Take everything."""
        text, self.text = self.text, ""
        return text

    def skip_space(self) -> bool:
        """Drop leading white space; whether anything is left."""
        self.text = self.text.lstrip()
        return bool(self.text)
