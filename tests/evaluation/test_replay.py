"""What the benchmarks replay: the generated trace, and prompts that each extend the exchange before."""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from holdover.errors import RequestError
from holdover.evaluation.traces import Conversation, ShareGPTReader, Turn

# a source distribution comes without the benchmarks
common = pytest.importorskip("benchmarks.common")
make_trace = pytest.importorskip("benchmarks.data.make_trace")
turns = pytest.importorskip("benchmarks.turns")
Stopwatch = pytest.importorskip("benchmarks.stopwatch").Stopwatch

END = 1


class Letters:
    """A tokenizer with a token for each letter; ``[`` begins and ``]`` ends a message."""

    def encode(self, text: str) -> list[int]:
        return [END if letter == "]" else ord(letter) for letter in text]

    def render(self, messages: Sequence[Mapping[str, Any]], **_: Any) -> list[int]:
        if messages[0]["role"] == "assistant":
            raise RequestError("a conversation begins with a question")
        return self.encode("".join(f"[{m['role'][0]}:{m['content']}]" for m in messages) + "[a:")


LOADED = SimpleNamespace(tokenizer=Letters(), end_tokens=frozenset([END]))


def conversation(*texts: str, roles: str = "ua") -> Conversation:
    names = {"u": "user", "a": "assistant", "s": "system"}
    return Conversation("x", tuple(Turn(names[roles[i % len(roles)]], text) for i, text in enumerate(texts)))  # type: ignore[arg-type]


def text_of(tokens: Sequence[int]) -> str:
    return "".join("]" if token == END else chr(token) for token in tokens)


def test_every_prompt_extends_the_exchange_before() -> None:
    found = turns.exchanges(conversation("hi", "hello", "why", "because", "ok", ""), LOADED, 1000)
    assert [(text_of(e.prompt), text_of(e.reply)) for e in found] == [
        ("[u:hi][a:", "hello]"),
        ("[u:hi][a:hello][u:why][a:", "because]"),
        ("[u:hi][a:hello][u:why][a:because][u:ok][a:", "]"),
    ]
    assert all(e.boundaries == (len(e.prompt),) for e in found)
    for before, after in pairwise(found):
        assert after.prompt[: len(before.prompt) + len(before.reply)] == before.prompt + before.reply


def test_exchanges_stop_at_the_context() -> None:
    whole = turns.exchanges(conversation("hi", "hello", "why", "because"), LOADED, 1000)
    length = len(whole[1].prompt) + len(whole[1].reply)
    assert turns.exchanges(conversation("hi", "hello", "why", "because"), LOADED, length) == whole
    assert turns.exchanges(conversation("hi", "hello", "why", "because"), LOADED, length - 1) == whole[:1]


def test_only_answers_to_a_user_are_exchanges() -> None:
    found = turns.exchanges(conversation("be brief", "hi", "hello", "more", roles="suaa"), LOADED, 1000)
    assert [text_of(e.prompt) for e in found] == ["[s:be brief][u:hi][a:"]


def test_long_conversations_have_a_later_prompt_in_range() -> None:
    refused = conversation("hello", "hi", "yes", roles="aua")
    short, long = conversation("hi", "hello", "why", "because"), conversation("hi", "hello" * 9, "why", "because")
    found = list(turns.long_conversations([refused, short, long], LOADED, 1000, range(40, 100)))
    assert [len(exchanges) for _, exchanges in found] == [2]


def test_generated_trace_is_what_its_script_writes() -> None:
    text = make_trace.TRACE.read_text(encoding="utf-8")
    assert text == make_trace.trace()
    assert len(text) < 400_000
    reader = ShareGPTReader(text)
    found = list(reader)
    assert (len(found), reader.skipped, reader.is_truncated) == (make_trace.CONVERSATIONS, 0, False)
    low, high = make_trace.EXCHANGES
    for one in found:
        assert low <= len(one.turns) / 2 <= high
        assert {turn.role for turn in one.turns[::2]} == {"user"}
        assert {turn.role for turn in one.turns[1::2]} == {"assistant"}
        # every place of every template was filled
        assert not any(re.search(r"[{}]", turn.text) for turn in one.turns)


@pytest.mark.parametrize(
    ("values", "q", "want"),
    [
        ([5.0], 95, 5.0),
        ([3.0, 1.0, 2.0], 50, 2.0),
        ([1.0, 2.0], 50, 1.5),
        ([0.0, 10.0], 90, 9.0),
        ([1.0, 2.0], 100, 2.0),
    ],
)
def test_percentile(values: list[float], q: float, want: float) -> None:
    assert common.percentile(values, q) == pytest.approx(want)


def test_arms_run_in_turn_and_warm_rounds_are_left_out() -> None:
    order: list[str] = []

    def arm(name: str) -> Any:
        def run() -> int:
            order.append(name)
            return len(order)

        return run

    found = common.interleaved("test", {"a": arm("a"), "b": arm("b")}, repeats=2, warmup=1)
    assert "".join(order) == "ababab"
    assert found == {"a": [3, 5], "b": [4, 6]}


def test_result_file_has_the_shape_that_readers_expect(tmp_path: Any) -> None:
    path = tmp_path / "results" / "x.json"
    common.write_results(path, [{"engine": "e", "metric": "m", "value": 1.0}])
    document = json.loads(path.read_text())
    assert {"machine", "versions", "commit", "date", "rows"} <= document.keys()
    assert {"cpu", "cores", "threads", "memory_bytes"} <= document["machine"].keys()
    assert {"python", "torch", "transformers", "holdover"} <= document["versions"].keys()


def test_stopwatch_counts_outermost_calls_and_puts_methods_back() -> None:
    class Pool:
        def outer(self) -> int:
            return self.inner() + 1

        def inner(self) -> int:
            return 1

        def fail(self) -> None:
            raise KeyError

    original, watch = Pool.outer, Stopwatch()
    with watch.watching({Pool: ["outer", "inner", "fail"]}):
        assert Pool().outer() == 2
        with pytest.raises(KeyError):
            Pool().fail()
        assert Pool().inner() == 1
    assert watch.calls == 3
    assert Pool.outer is original
