"""Templates around chunks: what stands for a chunk comes out once and in order, or the request is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from holdover.chunks import Chunk
from holdover.engine.chunks.conversation import Placeholders, render_composed
from holdover.errors import RequestError


class Template:
    """Text as bytes, a line a message.

    Args:
        show: how a message's content is shown.
        prompt: what the reply stands behind.
        note: what conversations of more than two messages begin with.
    """

    def __init__(self, show: Callable[[str], str] = str, *, prompt: str = ">", note: str = "") -> None:
        self.show, self.prompt, self.note = show, prompt, note

    def render_text(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> str:
        note = self.note if len(messages) > 2 else ""
        shown = "".join(f"{m['role'][0]}:{self.show(m['content'])}\n" for m in messages)
        return f"{note}{shown}{options.get('last', '')}{self.prompt}"

    def encode_part(self, text: str) -> list[int]:
        return list(text.encode())


def cut(text: str) -> tuple[Chunk, ...]:
    ids = tuple(text.encode())
    return tuple(Chunk(ids[i : i + 4]) for i in range(0, len(ids), 4))


def render(template: Template, *content: str | Chunk, **options: Any) -> Any:
    """One question, of texts and chunks."""
    marks = Placeholders()
    shown = [part if isinstance(part, str) else marks.put(bytes(part.tokens).decode()) for part in content]
    return render_composed(template, [{"role": "user", "content": "".join(shown)}], marks, cut, **options)


A, B = Chunk(tuple(b"docu")), Chunk(tuple(b"ment"))


def test_a_conversation_is_cut_where_the_chunks_stand() -> None:
    chat = render(Template(), "read ", A, B, " and ", A, "?", last="!")
    assert chat.context == (tuple(b"u:read "), A, B, tuple(b" and "), A)
    assert chat.query == tuple(b"?\n!>")
    assert chat.tokens == tuple(b"u:read document and docu?\n!>")
    # the next turn repeats all but what the reply stands behind
    assert bytes(chat.tokens[: chat.boundaries[0]]) == b"u:read document and docu?\n"


def test_a_long_text_is_cut_into_several_chunks() -> None:
    chat = render(Template(), Chunk(tuple(b"documents")), "?")
    assert chat.context == (tuple(b"u:"), A, Chunk(tuple(b"ment")), Chunk(tuple(b"s")))


def test_a_template_that_changes_what_stands_before_leaves_no_boundary() -> None:
    assert render(Template(note="~"), A, "?").boundaries == ()


@pytest.mark.parametrize(
    "show",
    [
        lambda content: "",
        lambda content: content + content,
        lambda content: content[::-1],
        lambda content: content.upper(),
        lambda content: content[: len(content) // 2],
        lambda content: content[len(content) // 2 :] + content[: len(content) // 2],
        lambda content: content + content[:40],
    ],
    ids=["dropped", "twice", "reversed", "changed", "cut off", "moved", "twice in part"],
)
def test_a_template_that_cannot_carry_chunks(show: Callable[[str], str]) -> None:
    with pytest.raises(RequestError, match="cannot carry chunks there") as error:
        render(Template(show), A, B)
    assert error.value.param == "messages"


@pytest.mark.parametrize("show", [str.strip, lambda content: content.replace("<", "&lt;"), repr])
def test_what_templates_do_to_text_does_not_touch_chunks(show: Callable[[str], str]) -> None:
    chat = render(Template(show), " <a>", Chunk(tuple(b"\n<'> ")), "'?")
    assert Chunk(tuple(b"\n<'>")) in chat.context
    assert Chunk(tuple(b" ")) in chat.context


def test_something_follows_the_last_chunk() -> None:
    class Bare(Template):
        def render_text(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> str:
            return "".join(message["content"] for message in messages)

    with pytest.raises(RequestError, match="nothing follows the last chunk"):
        render(Bare(), "read ", A)


def test_a_text_in_the_form_of_a_placeholder_is_text() -> None:
    known = Placeholders()
    forged = known.put("anything")
    # a client that has seen the words of one request knows nothing of the next one's
    chat = render(Template(), forged, A, forged, "?")
    assert chat.context == (tuple(f"u:{forged}".encode()), A)
    assert chat.query == tuple(f"{forged}?\n>".encode())
    assert render(Template(), A, "?").context == (tuple(b"u:"), A)


def test_a_chunk_that_holds_a_placeholder_is_not_looked_into() -> None:
    marks = Placeholders()
    inner = marks.put("docu")
    outer = marks.put(inner)
    chat = render_composed(Template(), [{"role": "user", "content": f"{inner} {outer}?"}], marks, cut)
    assert b"".join(bytes(part.tokens) for part in chat.context if isinstance(part, Chunk)).decode() == "docu" + inner


def test_words_are_of_one_request() -> None:
    first, second = Placeholders(), Placeholders()
    word, other = first.put("a"), second.put("a")
    assert word != other != first.put("a") != word
    assert second.cut(f"x{other}y{word}") == ["x", f"y{word}"]
