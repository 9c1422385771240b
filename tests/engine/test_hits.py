"""A resumed request equals an uncached one, and resumes where it should."""

import pytest

from holdover.prefix.policies import DEFAULT_POLICY, EveryN, PromptOnly
from holdover.state import EXACT
from tests.arch.table import ARCHITECTURES, VOCAB
from tests.engine.harness import Bench, assert_greedy, prompt_of
from tests.engine.small import SMALL

every_architecture = pytest.mark.parametrize("name", ARCHITECTURES)
# where a state is kept and found does not depend on what is in it
every_family = pytest.mark.parametrize("name", SMALL)


def assert_hit(bench: Bench, output, depth: int, kv_depth: int) -> None:
    assert_greedy(bench.name, output)
    assert (output.cache.state_depth, output.cache.kv_depth) == (depth, kv_depth), output.cache.reason
    assert output.cache.reason.startswith("hit" if depth else "miss")
    assert (output.cache.tier, output.cache.lineage) == (("native", "exact") if depth else (None, None))


@every_architecture
def test_conversation(name: str) -> None:
    """Each turn extends the last one's text: only what is new is computed."""
    bench = Bench(name)
    prompt: tuple[int, ...] = prompt_of(9)
    known = 0
    # fewer new tokens than the conv window, twice in a row, and a token alone
    for turn, added in enumerate([0, 1, 2, 3, 1, 30, 64]):
        prompt += prompt_of(added, seed=100 + turn)
        before = bench.core.stats.prefill_tokens + bench.core.stats.decode_tokens
        output = bench.serve(prompt, tokens=4)
        assert_hit(bench, output, depth=known, kv_depth=known)
        computed = bench.core.stats.prefill_tokens + bench.core.stats.decode_tokens - before
        assert computed == len(prompt) - known + 3
        prompt += output.token_ids
        # the last generated token was never run
        known = len(prompt) - 1


@every_family
def test_same_prompt_again(name: str) -> None:
    bench = Bench(name, policy=DEFAULT_POLICY)
    prompt = prompt_of(70)
    assert_hit(bench, bench.serve(prompt), depth=0, kv_depth=0)
    assert_hit(bench, bench.serve(prompt), depth=64, kv_depth=70)


@every_family
def test_a_state_at_the_last_token_is_too_deep_for_the_same_prompt(name: str) -> None:
    """The next token's logits come from running the last one: 10 tokens resume at 8, not at 10."""
    bench = Bench(name)
    prompt = prompt_of(10)
    bench.serve(prompt, request={"checkpoint_at": (4, 8, 10)})
    assert_hit(bench, bench.serve(prompt), depth=8, kv_depth=10)
    longer = (*prompt, (bench.serve(prompt).token_ids[0] + 1) % VOCAB)
    assert_hit(bench, bench.serve(longer), depth=10, kv_depth=10)


@every_family
def test_branch_from_the_middle(name: str) -> None:
    """The second prompt that leaves a shared prefix keeps a state where it left; the third one resumes there."""
    bench = Bench(name, policy=DEFAULT_POLICY)
    shared = prompt_of(23)
    ends = [prompt_of(12, seed=seed) for seed in (1, 2, 3)]
    assert_hit(bench, bench.serve(shared + ends[0]), depth=0, kv_depth=0)
    assert_hit(bench, bench.serve(shared + ends[1]), depth=0, kv_depth=23)
    assert_hit(bench, bench.serve(shared + ends[2]), depth=23, kv_depth=23)


@every_family
def test_every_n(name: str) -> None:
    bench = Bench(name, policy=EveryN(8))
    output = bench.serve(prompt_of(30), tokens=12)
    whole = output.prompt_token_ids + output.token_ids
    # during decoding too; tokens that differ from the next depth on
    for depth in (8, 16, 24, 32, 40):
        other = (*whole[:depth], (whole[depth] + 1) % VOCAB)
        assert_hit(bench, bench.serve(other, tokens=2), depth=depth, kv_depth=depth)


@every_family
def test_end_of_the_prompt_only(name: str) -> None:
    bench = Bench(name, policy=PromptOnly())
    bench.serve(prompt_of(20))
    assert_hit(bench, bench.serve(prompt_of(31)), depth=20, kv_depth=20)


DEPTHS = (1, 2, 3, 5, 13, 29, 63, 64, 65)


@every_architecture
def test_wanted_depths(name: str) -> None:
    bench = Bench(name, slots=40)
    prompt = prompt_of(70)
    assert_hit(bench, bench.serve(prompt, request={"checkpoint_at": (-1, 0, *DEPTHS, 71, 10**9)}), 0, 0)
    for i, depth in enumerate(DEPTHS):
        assert bench.cache.has_state(bench.prepare.namespace(""), prompt[:depth], EXACT)
        # one token above the state, or more than the window; either leaves what is cached at once
        added = (1, 6)[i % 2]
        other = prompt[:depth] + tuple((token + 1) % VOCAB for token in prompt[depth : depth + added])
        assert_hit(bench, bench.serve(other, tokens=2), depth=depth, kv_depth=depth)


@every_architecture
def test_concurrent_requests_share_a_prefix(name: str) -> None:
    bench = Bench(name)
    prompt = prompt_of(30)
    bench.serve(prompt, request={"checkpoint_at": (13, 25)})
    ids = [bench.add(prompt[:depth]) for depth in (20, 20, 26, 30, 30)]
    bench.run()
    bench.assert_all_greedy()
    assert [bench.outputs[one].cache.state_depth for one in ids] == [13, 13, 25, 25, 25]


@every_family
def test_salts_share_nothing(name: str) -> None:
    bench = Bench(name)
    prompt = prompt_of(20)
    one = bench.serve(prompt, request={"salt": "one", "checkpoint_at": (13,)})
    assert_hit(bench, bench.serve(prompt, request={"salt": "other"}), depth=0, kv_depth=0)
    assert_hit(bench, bench.serve(prompt, request={"salt": "one"}), depth=13, kv_depth=20)
    assert one.token_ids == bench.serve(prompt, request={"salt": "one"}).token_ids


@every_family
def test_without_the_cache(name: str) -> None:
    bench = Bench(name)
    prompt = prompt_of(20)
    assert_hit(bench, bench.serve(prompt, request={"use_cache": False, "checkpoint_at": (13,)}), 0, 0)
    assert not bench.cache.roots
    bench.serve(prompt)
    assert_hit(bench, bench.serve(prompt_of(21), request={"use_cache": False}), depth=0, kv_depth=0)


@every_family
def test_kv_without_its_state_is_no_hit(name: str) -> None:
    bench = Bench(name)
    output = bench.serve(prompt_of(20))
    for checkpoint in list(bench.cache.tiers.order):
        bench.cache.tiers.discard(checkpoint)
        checkpoint.on_evict()
    longer = output.prompt_token_ids + output.token_ids
    assert_hit(bench, bench.serve(longer), depth=0, kv_depth=25)
