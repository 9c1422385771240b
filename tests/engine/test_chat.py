"""Where the next turn of a conversation is sure to repeat this one's prompt."""

from __future__ import annotations

import re

import pytest

from holdover.engine.chat import render_chat
from holdover.errors import RequestError

USER, ASSISTANT, END = 1, 2, 3


class Template:
    """Text as bytes between marks.

    Args:
        drop_thinking: replies of earlier turns are rendered without what they thought.
        prefill: what a reply is made to begin with, and is not repeated in later turns.
        most: messages that it accepts.
    """

    def __init__(self, *, drop_thinking: bool = False, prefill: str = "", most: int = 99) -> None:
        self.drop_thinking = drop_thinking
        self.prefill = prefill
        self.most = most

    def render(self, messages, *, note: str = "") -> list[int]:
        if len(messages) > self.most:
            raise RequestError("too many messages", param="messages")
        last = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
        ids = list(note.encode())
        for i, message in enumerate(messages):
            content = message["content"]
            if message["role"] == "assistant" and self.drop_thinking and i < last:
                content = re.sub(r"<think>.*</think>", "", content)
            mark = USER if message["role"] == "user" else ASSISTANT
            ids += [mark, *content.encode(), END]
        return [*ids, ASSISTANT, *self.prefill.encode()]


QUESTION = [{"role": "user", "content": "why?"}]
TURN = [*QUESTION, {"role": "assistant", "content": "<think>hm</think>so"}, {"role": "user", "content": "oh"}]


@pytest.mark.parametrize("messages", [QUESTION, TURN])
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("prefill", ["", "<think>\n"])
@pytest.mark.parametrize("reply", ["yes", "<think>hm</think>no", "", "x", "7.", "<think>"])
def test_the_next_turn_repeats_the_prompt_up_to_the_boundary(messages, drop: bool, prefill: str, reply: str) -> None:
    template = Template(drop_thinking=drop, prefill=prefill)
    ids, (boundary,) = render_chat(template, messages, note="n")
    assert ids == template.render(messages, note="n")
    # all but what only a reply in progress begins with
    assert boundary == len(ids) - len(prefill)
    following = [*messages, {"role": "assistant", "content": reply}, {"role": "user", "content": "more"}]
    assert template.render(following, note="n")[:boundary] == ids[:boundary]


def test_a_turn_that_rewrites_an_earlier_reply_moves_the_boundary_before_it() -> None:
    """The last message is the reply itself: a further question drops what it thought."""
    template = Template(drop_thinking=True)
    messages = TURN[:2]
    ids, (boundary,) = render_chat(template, messages)
    assert bytes(ids[:boundary]) == bytes([USER, *b"why?", END, ASSISTANT])


def test_a_template_that_refuses_to_go_on_has_no_boundary() -> None:
    assert render_chat(Template(most=1), QUESTION) == (Template().render(QUESTION), ())


def test_a_template_that_refuses_the_messages() -> None:
    with pytest.raises(RequestError, match="too many messages"):
        render_chat(Template(most=1), TURN)


def test_a_template_that_repeats_nothing_has_no_boundary() -> None:
    class Counting:
        def render(self, messages, **_):
            return [len(messages), 5]

    assert render_chat(Counting(), QUESTION) == ([1, 5], ())
