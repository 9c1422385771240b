"""The synchronous API: lists, streams that are read in turn, and what is left after each."""

from __future__ import annotations

from itertools import zip_longest
from types import SimpleNamespace

import pytest

from holdover.engine.engine import Engine
from holdover.engine.options import EngineOptions
from holdover.engine.runner import Runner
from holdover.engine.sampling import SamplingParams
from holdover.errors import RequestError
from tests.engine.harness import TOY, assert_greedy, budgets, host_of, loaded_of, prompt_of

FOUR = SamplingParams(max_tokens=4)


@pytest.fixture
def engine() -> Engine:
    options = EngineOptions(**budgets(host_of(TOY).layout, 6, 80), chunk_size=4, poison=True)
    return Engine(loaded_of(TOY), options)


@pytest.fixture(autouse=True)
def balanced(engine: Engine):
    yield
    assert not engine.core.has_work
    engine.core.check_integrity()


def prompts(count: int) -> list[tuple[int, ...]]:
    return [prompt_of(3 + 2 * i, seed=i, vocab=8) for i in range(count)]


def assert_right(output) -> None:
    assert_greedy(TOY, output, logprobs=False)


def test_a_text_gives_one_output(engine: Engine) -> None:
    output = engine.generate("\x01\x02", FOUR)
    assert output.prompt_token_ids == (1, 2)
    assert_right(output)
    assert [type(x) for x in (engine.generate(["\x01"], FOUR), engine.generate([[1]], FOUR))] == [list, list]
    assert engine.generate([], FOUR) == []


def test_outputs_come_in_the_order_of_the_prompts(engine: Engine) -> None:
    params = [SamplingParams(max_tokens=n) for n in (9, 1, 5)]
    outputs = engine.generate(prompts(3), params)
    assert [output.prompt_token_ids for output in outputs] == prompts(3)
    assert [len(output.token_ids) for output in outputs] == [9, 1, 5]
    for output in outputs:
        assert_right(output)


@pytest.mark.parametrize("bad", [[[1], [99]], [[1], []]])
def test_one_bad_request_starts_none(engine: Engine, bad) -> None:
    with pytest.raises(RequestError):
        engine.generate(bad, FOUR)
    assert not engine.core.stats.prompt_tokens


def test_as_many_parameters_as_prompts(engine: Engine) -> None:
    with pytest.raises(RequestError, match="2 prompts and 1 sampling"):
        engine.generate(prompts(2), [FOUR])


def test_one_id_for_two_prompts_starts_none(engine: Engine) -> None:
    with pytest.raises(RequestError, match="in use"):
        engine.generate(prompts(2), FOUR, id="one")


def test_a_failed_request_raises_its_error(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Runner, "run", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.generate(prompts(2), FOUR)
    assert_right(engine.generate(prompts(1), FOUR)[0])


def test_an_interrupt_leaves_nothing_behind(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    core = engine.core
    for owner, method in ((core, "step"), (core, "_emit"), (core._checkpoints, "take")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, interrupt)
            with pytest.raises(KeyboardInterrupt):
                engine.generate(prompts(3), FOUR)
        assert not engine.core.has_work
        engine.core.check_integrity()
    assert_right(engine.generate(prompts(1), FOUR)[0])


def test_a_stream_adds_up(engine: Engine) -> None:
    updates = list(engine.stream([1, 2, 3], SamplingParams(max_tokens=9)))
    output = updates[-1].output
    assert [update.output for update in updates[:-1]] == [None] * 8
    assert tuple(token for update in updates for token in update.token_ids) == output.token_ids
    assert "".join(update.text for update in updates) == output.text
    assert_right(output)


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_leaving_a_stream_early_aborts(engine: Engine, taken: int) -> None:
    stream = engine.stream([1, 2, 3], SamplingParams(max_tokens=50))
    for _ in range(taken):
        next(stream)
    stream.close()
    assert not engine.core.has_work
    assert engine.core.stats.aborted == (taken > 0)


def test_streams_read_in_turn(engine: Engine) -> None:
    """A step made for one advances the other: neither may lose what the other's steps gave it."""
    streams = [
        engine.stream(prompt, SamplingParams(max_tokens=n)) for prompt, n in zip(prompts(3), (3, 9, 6), strict=True)
    ]
    ends = []
    for updates in zip_longest(*streams):
        ends += [update.output for update in updates if update is not None and update.output is not None]
    assert sorted(len(output.token_ids) for output in ends) == [3, 6, 9]
    for output in ends:
        assert_right(output)


def test_generating_while_a_stream_is_read(engine: Engine) -> None:
    stream = engine.stream([1, 2, 3], SamplingParams(max_tokens=6))
    next(stream)
    # more steps than the stream has tokens
    assert_right(engine.generate([[4, 5]], SamplingParams(max_tokens=20))[0])
    *_, last = stream
    assert_right(last.output)


def test_chat_without_a_template_is_refused(engine: Engine) -> None:
    def refuse(*_, **__):
        raise RequestError("no template", param="messages")

    engine.loaded.tokenizer.sharing = lambda: SimpleNamespace(render=refuse)
    with pytest.raises(RequestError, match="no template"):
        engine.chat([{"role": "user", "content": "x"}], FOUR)


def test_chat_keeps_the_state_at_the_boundary(engine: Engine) -> None:
    def render(messages, **_):
        # replies are rendered in another way than they were generated
        return [token for m in messages for token in ([1, 2, 3] if m["role"] == "user" else [7])] + [6]

    engine.loaded.tokenizer.sharing = lambda: SimpleNamespace(render=render)
    first = [{"role": "user", "content": "x"}]
    assert engine.chat(first, FOUR).cache.state_depth == 0
    output = engine.chat([*first, {"role": "assistant", "content": "y"}, *first], FOUR)
    # the first turn's [1, 2, 3], not its 6
    assert output.cache.state_depth == 3
    assert_right(output)
