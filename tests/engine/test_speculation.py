"""Speculation changes how many forwards a text takes, and nothing else."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Tokens
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdover.engine.request import Output, Request
from holdover.engine.sampling import SamplingParams
from holdover.engine.sequence import Sequence
from holdover.engine.speculation import PromptLookup
from holdover.engine.speculation.speculator import Proposer
from holdover.engine.text import TextStream
from holdover.prefix.policies import AnyOf, EndOfRequest, EveryN, PromptOnly, Wanted
from tests.arch.table import ARCHITECTURES, VOCAB
from tests.engine.harness import RTOL, Bench, Bytes, assert_greedy, distributions, prompt_of, reference
from tests.engine.small import SMALL
from tests.helpers import assert_close

every_family = pytest.mark.parametrize("name", SMALL)
CHEAP = "small-kimi_linear"
DRAFTED = 3
LENGTHS = (1, 9, 6)
BUSY = AnyOf((EndOfRequest(), EveryN(4), Wanted()))


class Oracle(Proposer):
    """Drafts of how texts go on, with mistakes.

    Args:
        texts: prompts and the tokens after them; what a request forces needs no entry.
        right: share of the drafts that are right.
    """

    def __init__(self, texts: Iterable[Output] = (), right: float = 0.7) -> None:
        self._texts = {text.prompt_token_ids: text.token_ids for text in texts}
        self._right = right
        self._draw = random.Random(0)

    def propose(self, sequences: Tokens[Sequence], most: int) -> list[list[int]]:
        return [self._propose(sequence, most) for sequence in sequences]

    def _propose(self, sequence: Sequence, most: int) -> list[int]:
        text = sequence.request.params.forced or self._texts.get(sequence.request.prompt, ())
        draft = text[sequence.num_generated :][:most]
        if self._right < 1:
            draft = draft[: self._draw.choice([0, most, most])]
        return [t if self._draw.random() < self._right else (t + 1) % VOCAB for t in draft]


def speculating(name: str, proposer: Proposer | None = None, **options) -> Bench:
    """An engine that speculates; by prompt lookup unless something else proposes."""
    sizes = {"slots": 24, "draft_tokens": DRAFTED, "merge_interval": DRAFTED + 3}
    bench = Bench(name, speculate="ngram", **{**sizes, **options})
    if proposer is not None:
        assert bench.core.speculator is not None
        bench.core.speculator._proposer = proposer
    return bench


def plain_texts(name: str, prompts: Iterable[tuple[int, ...]], tokens: int, **params) -> list[Output]:
    """What the prompts go on with, without speculation."""
    bench = Bench(name, slots=24)
    ids = [bench.add(prompt, tokens, **params) for prompt in prompts]
    bench.run()
    return [bench.outputs[request_id] for request_id in ids]


def prompts_of(lengths: Iterable[int]) -> list[tuple[int, ...]]:
    return [prompt_of(length, seed=length) for length in lengths]


def assert_forced(name: str, output: Output) -> None:
    """Fail unless the reported distributions are the reference's, whatever was chosen from them."""
    whole, start = output.prompt_token_ids + output.token_ids, len(output.prompt_token_ids)
    assert_close("logprobs", distributions(output.logprobs), reference(name, whole)[start - 1 : -1], RTOL)


def accepted(bench: Bench) -> set[int]:
    """How many tokens a step gave to a sequence."""
    return {len(update.token_ids) for updates in bench.updates.values() for update in updates if update.token_ids}


def assert_counted(bench: Bench) -> None:
    """Fail unless what was counted is what was handed out."""
    speculator, stats = bench.core.speculator, bench.core.stats
    assert speculator is not None
    given = [len(u.token_ids) for updates in bench.updates.values() for u in updates if u.token_ids]
    assert speculator.stats.accepted == sum(given) - len(given)
    assert speculator.stats.accepted <= speculator.stats.drafted
    decoder = bench.core.runner.decoder
    assert decoder.stats.forwards["draft"] == speculator.stats.verifications > 0
    assert decoder.stats.forwards["draft"] + decoder.stats.forwards["defer"] == stats.decode_forwards


# greedy


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture(name: str) -> None:
    texts = plain_texts(name, prompts_of((1, 7)), 7)
    bench = speculating(name, Oracle(texts), slots=4)
    for text in texts:
        bench.add(text.prompt_token_ids, tokens=7)
    bench.run()
    bench.assert_all_greedy()
    assert_counted(bench)
    bench.assert_empty()


@pytest.mark.parametrize(
    ("name", "merge_interval"), [*((name, DRAFTED + 2) for name in SMALL), (CHEAP, 8), (CHEAP, 64)]
)
def test_every_count_is_accepted_and_every_token_is_the_references(name: str, merge_interval: int) -> None:
    texts = plain_texts(name, prompts_of(LENGTHS), 20)
    bench = speculating(name, Oracle(texts), merge_interval=merge_interval)
    ids = [bench.add(text.prompt_token_ids, tokens=20, prompt_logprobs=VOCAB) for text in texts]
    bench.run()
    bench.assert_all_greedy()
    assert [bench.outputs[i].token_ids for i in ids] == [text.token_ids for text in texts]
    assert accepted(bench) == set(range(1, DRAFTED + 2))
    assert_counted(bench)
    for request_id in ids:
        output = bench.outputs[request_id]
        if wanted := output.prompt_token_ids[1:]:
            rows = reference(name, output.prompt_token_ids)[: len(wanted)]
            assert_close("prompt", distributions(output.prompt_logprobs[1:]), rows, RTOL)
        # the state that is kept at the end has seen what was accepted, and nothing that was not
        whole = output.prompt_token_ids + output.token_ids
        again = bench.serve((*whole, 5), tokens=2)
        assert again.cache.state_depth == len(whole) - 1
        assert_greedy(name, again)
    bench.assert_empty()


@every_family
def test_prompt_lookup_on_what_repeats(name: str) -> None:
    """Prompts that repeat, and texts that are made to."""
    bench = speculating(name)
    loop = prompt_of(6, seed=9)
    free = [bench.add(prompt_of(n, seed=n) + loop * 3, tokens=12) for n in (1, 5)]
    forced = [bench.add(loop * 2 + loop[:n], tokens=12, forced=(loop * 4)[n : n + 12]) for n in (0, 2, 5)]
    bench.run()
    for request_id in free:
        assert_greedy(name, bench.outputs[request_id])
    for request_id in forced:
        assert_forced(name, bench.outputs[request_id])
        assert len(bench.updates[request_id]) <= 6
    assert_counted(bench)
    assert DRAFTED + 1 in accepted(bench)
    bench.assert_empty()


# sampling


@every_family
def test_a_seed_gives_the_same_text_as_without(name: str) -> None:
    prompts = prompts_of(LENGTHS)
    for params in ({"temperature": 1.0}, {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.01}):
        texts = plain_texts(name, prompts, 14, seed=7, **params)
        bench = speculating(name, Oracle(texts))
        ids = [bench.add(prompt, 14, seed=7, **params) for prompt in prompts]
        bench.run()
        assert [bench.outputs[i].token_ids for i in ids] == [text.token_ids for text in texts]
        assert len(accepted(bench)) > 2
        for request_id in ids:
            assert_forced(name, bench.outputs[request_id])


@pytest.mark.parametrize("right", [1.0, 0.5])
def test_samples_have_the_exact_distribution(right: float) -> None:
    """Chi-square of three tokens in a row, each one of the three most probable, over as many seeds."""
    prompt, params, count, kept = prompt_of(5, seed=4), {"temperature": 1.0, "top_k": 3}, 160, 3
    (text,) = plain_texts(CHEAP, [prompt], 3)
    bench = speculating(CHEAP, Oracle([text], right))
    bench.serve(prompt_of(5, seed=4)[:4], tokens=1, request={"checkpoint_at": (4,)})
    ids = [bench.add(prompt, 3, seed=seed, logprobs=None, **params) for seed in range(count)]
    bench.run()
    assert bench.core.speculator.stats.accepted > count / 10
    seen = Counter(bench.outputs[i].token_ids for i in ids)
    exact = {(): 1.0}
    for _ in range(3):
        longer = {}
        for tokens, p in exact.items():
            values, choices = reference(CHEAP, prompt + tokens)[-1].topk(kept)
            for choice, q in zip(choices.tolist(), values.softmax(-1).tolist(), strict=True):
                longer[*tokens, choice] = p * q
        exact = longer
    assert seen.keys() <= exact.keys()
    # rare texts are counted together, as the test wants it
    frequent = [tokens for tokens, p in exact.items() if p * count >= 5]
    pairs = [(seen[tokens], exact[tokens] * count) for tokens in frequent]
    rest = (count - sum(n for n, _ in pairs), count - sum(wanted for _, wanted in pairs))
    cells = [*pairs, rest]
    statistic = sum((n - wanted) ** 2 / wanted for n, wanted in cells)
    # mean and deviation of chi-square
    freedom = len(cells) - 1
    assert freedom >= 6
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5, (statistic, freedom)


# ends in the middle of what was accepted


@pytest.mark.parametrize("tokens", range(1, 2 * DRAFTED))
def test_max_tokens(tokens: int) -> None:
    (text,) = plain_texts(CHEAP, [prompt_of(5)], 2 * DRAFTED + 4)
    bench = speculating(CHEAP, Oracle([text], right=1))
    output = bench.serve(prompt_of(5), tokens=tokens)
    assert (output.token_ids, output.finish_reason) == (text.token_ids[:tokens], "length")
    assert_resumes(bench, output)


@pytest.mark.parametrize(
    ("how", "end"), [*product(("token", "string"), (0, 2, 4)), *(("strings", end) for end in range(1, 2 * DRAFTED))]
)
def test_stops(how: str, end: int) -> None:
    """Tokens are bytes, so that a stop string may begin in one step and end in the next."""
    (text,) = plain_texts(CHEAP, [prompt_of(5)], 2 * DRAFTED + 4)
    token = text.token_ids[end]
    stop = {
        "token": {"stop_token_ids": (token,)},
        "string": {"stop": (chr(token),)},
        "strings": {"stop": ("".join(map(chr, text.token_ids[max(0, end - 2) : end + 1])),)},
    }[how]
    (wanted,) = plain_texts(CHEAP, [prompt_of(5)], 2 * DRAFTED + 4, **stop)
    bench = speculating(CHEAP, Oracle([text], right=1))
    output = bench.serve(prompt_of(5), tokens=2 * DRAFTED + 4, **stop)
    assert (output.token_ids, output.text, output.finish_reason) == (wanted.token_ids, wanted.text, "stop")
    assert "".join(update.text for update in bench.updates[output.request_id]) == output.text
    assert_resumes(bench, output)


def assert_resumes(bench: Bench, output: Output) -> None:
    """Fail unless the state that is kept of a finished request is that of all its tokens but the last."""
    assert_greedy(bench.name, output)
    whole = output.prompt_token_ids + output.token_ids
    again = bench.serve((*whole, 3), tokens=2)
    assert again.cache.state_depth == len(whole) - 1
    assert_greedy(bench.name, again)
    bench.assert_empty()


@every_family
def test_up_to_the_contexts_end(name: str) -> None:
    """Drafts that have no room are not made; the last tokens come one by one."""
    (text,) = plain_texts(name, [prompt_of(9)], 14)
    bench = speculating(name, Oracle([text], right=1), max_context=23)
    output = bench.serve(prompt_of(9), tokens=None)
    assert (output.token_ids, output.finish_reason) == (text.token_ids, "length")
    assert_greedy(name, output)
    forwards = bench.core.runner.decoder.stats.forwards
    assert (forwards["draft"], forwards["defer"]) == (3, 1)
    bench.assert_empty()


@every_family
def test_forced_tokens_are_drafts_like_any_other(name: str) -> None:
    bench = speculating(name, Oracle(right=0.8))
    forced = {n: prompt_of(12, seed=40 + n) for n in LENGTHS}
    ids = {bench.add(prompt_of(n, seed=n), tokens=15, forced=forced[n]): n for n in LENGTHS}
    bench.run()
    for request_id, n in ids.items():
        assert bench.outputs[request_id].token_ids[:12] == forced[n]
        assert_forced(name, bench.outputs[request_id])
    assert_counted(bench)
    bench.assert_empty()


# memory, checkpoints, aborts


@every_family
def test_no_request_gives_way_to_drafts(name: str) -> None:
    """Rows for every token that is computed, and one more; most of those that drafts were given are never used."""
    long, short = prompt_of(5, seed=25), prompt_of(8, seed=8)
    bench = speculating(name, Oracle(plain_texts(name, [long], 14), right=1), rows=(5 + 13) + (8 + 3) + 1)
    bench.add(long, tokens=14)
    bench.add(short, tokens=4)
    is_full = False
    while bench.core.has_work:
        bench.step()
        # the one has rows that it will not need, and the other none
        is_full |= bench.cache.kv.num_free == 0 and len(bench.running()) == 2
    assert is_full
    assert bench.core.stats.preemptions == 0
    bench.assert_all_greedy()
    assert bench.core.runner.decoder.stats.forwards["defer"] > 0
    bench.assert_empty()


@pytest.mark.parametrize(("name", "slots", "rows"), [*((name, 8, 45) for name in SMALL), (CHEAP, 1, 40)])
def test_too_little_memory(name: str, slots: int, rows: int) -> None:
    prompts = [prompt_of(3 + 5 * (i % 4), seed=i % 3) for i in range(6)]
    texts = plain_texts(name, prompts, 12)
    bench = speculating(name, Oracle(texts, right=0.4), slots=slots, rows=rows, max_running=4, policy=BUSY)
    for prompt in prompts:
        bench.add(prompt, tokens=12)
    bench.run(limit=200)
    bench.assert_all_greedy()
    assert (bench.core.stats.preemptions > 0) == (slots > 1)
    bench.assert_empty()


@pytest.mark.parametrize(("name", "right"), [*((name, 1.0) for name in SMALL), (CHEAP, 0.6)])
def test_depths_that_a_step_passes_are_kept_where_it_ends(name: str, right: float) -> None:
    prompt = prompt_of(5)
    (text,) = plain_texts(name, [prompt], 16)
    bench = speculating(name, Oracle([text], right), policy=AnyOf((EndOfRequest(), EveryN(3))))
    bench.serve(prompt, tokens=16)
    assert bench.cache.counters["checkpoints_published"] > 3
    whole, resumed = prompt + text.token_ids, set()
    for depth in range(len(prompt) + 1, len(whole), 2):
        again = bench.serve((*whole[:depth], 5), tokens=1)
        assert_greedy(name, again)
        resumed.add(again.cache.state_depth)
    # at least one in each step that passed a multiple
    assert len(resumed - {3}) >= 3
    bench.assert_all_greedy()
    bench.assert_empty()


@every_family
def test_a_state_wanted_at_the_prompts_end_is_not_passed(name: str) -> None:
    """The prompt's last token comes as a decode step where the rest of it was cached."""
    texts = plain_texts(name, [(5,), prompt_of(6)], 8)
    bench = speculating(name, Oracle(texts, right=1), policy=AnyOf((PromptOnly(), Wanted())))
    bench.serve(prompt_of(6)[:5], tokens=1)
    for text in texts:
        prompt = text.prompt_token_ids
        assert bench.serve(prompt, tokens=8).token_ids == text.token_ids
        again = bench.serve((*prompt, 3), tokens=2)
        assert again.cache.state_depth == len(prompt)
    bench.assert_all_greedy()
    assert_counted(bench)


@every_family
def test_an_abort_after_every_step(name: str) -> None:
    (text,) = plain_texts(name, [prompt_of(6)], 16)
    for steps in range(2, 6):
        bench = speculating(name, Oracle([text], 0.8))
        gone = bench.add(prompt_of(6), tokens=16)
        for _ in range(steps):
            bench.step()
        (sequence,) = bench.running()
        depth, tokens = sequence.computed, tuple(sequence.tokens)
        bench.abort(gone)
        assert bench.outputs[gone].token_ids == tokens[6:] == text.token_ids[: len(tokens) - 6]
        again = bench.serve((*tokens, 5), tokens=2)
        assert again.cache.state_depth == depth == len(tokens) - 1
        bench.assert_all_greedy()
        bench.assert_empty()


def test_too_few_drafts_are_not_worth_a_verification() -> None:
    prompts = prompts_of((3, 4, 5, 6, 7))
    (text,) = plain_texts(CHEAP, prompts[:1], 30)
    bench = speculating(CHEAP, Oracle([text], right=1))
    for prompt in prompts:
        bench.add(prompt, tokens=30)
    # each step prefills one
    for _ in prompts:
        bench.step()
    (verifications, running) = bench.core.speculator.stats.verifications, bench.running()
    assert (len(running), all(s.remaining == 1 for s in running)) == (5, True)
    bench.step()
    assert bench.core.speculator.stats.verifications == verifications > 0
    bench.run()
    bench.assert_all_greedy()


# prompt lookup


def naive_lookup(tokens: list[int], most: int, longest: int, shortest: int) -> list[int]:
    for size in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[-size:]:
                return tokens[end : end + most]
    return []


def sequence_of(tokens: list[int]) -> Sequence:
    params = SamplingParams(max_tokens=1)
    return Sequence(Request("id", tuple(tokens), params), b"", TextStream(Bytes(), ()), frozenset(), 1)


@settings(max_examples=150)
@given(
    start=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    growth=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=6),
    most=st.integers(1, 5),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)).map(sorted),
)
def test_prompt_lookup_is_the_latest_longest_match(start, growth, most, sizes) -> None:
    shortest, longest = sizes
    lookup = PromptLookup(longest, shortest)
    one, other = (sequence_of(start) for _ in range(2))
    for tokens in [[], *growth]:
        one.tokens += tokens
        wanted = [naive_lookup(s.tokens, most, longest, shortest) for s in (one, other)]
        assert lookup.propose([one, other], most) == wanted
