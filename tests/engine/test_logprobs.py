"""Log probabilities of prompts and of generated tokens are Transformers' own."""

import pytest
import torch

from tests.arch.table import ARCHITECTURES, VOCAB
from tests.engine.harness import RTOL, TOY, Bench, assert_greedy, distributions, prompt_of, reference
from tests.engine.small import SMALL
from tests.helpers import assert_close

LENGTH = 37


def assert_prompt(name: str, output) -> None:
    first, *rest = output.prompt_logprobs
    assert first is None
    assert [entry.token for entry in rest] == list(output.prompt_token_ids[1:])
    if rest:
        wanted = reference(name, output.prompt_token_ids)[:-1]
        assert_close("prompt logprobs", distributions(rest), wanted, RTOL)


@pytest.mark.parametrize(("name", "chunk"), [*((name, 7) for name in ARCHITECTURES), *((name, 64) for name in SMALL)])
def test_prompt_logprobs_in_chunks(name: str, chunk: int) -> None:
    bench = Bench(name, chunk=chunk)
    output = bench.serve(prompt_of(LENGTH), tokens=3, prompt_logprobs=VOCAB, request={"checkpoint_at": (13,)})
    assert_prompt(name, output)
    assert_greedy(name, output)
    # after a cached prompt too, which such a request computes again
    again = bench.serve(prompt_of(LENGTH + 1), tokens=2, prompt_logprobs=VOCAB)
    assert_prompt(name, again)
    assert (again.cache.state_depth, again.cache.reason.split(":")[0]) == (0, "miss")


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_short_prompts(length: int, chunk: int) -> None:
    output = Bench(TOY, chunk=chunk).serve(prompt_of(length, vocab=8), prompt_logprobs=8)
    assert_prompt(TOY, output)


def test_prompt_logprobs_after_a_preemption() -> None:
    """Computed twice, recorded once."""
    bench = Bench(TOY, slots=6, rows=30, max_running=6, chunk=4)
    for i in range(6):
        bench.add(prompt_of(9, seed=i, vocab=8), tokens=10, prompt_logprobs=8)
    bench.run()
    assert bench.core.stats.preemptions
    for output in bench.outputs.values():
        assert_prompt(TOY, output)
        assert_greedy(TOY, output)


@pytest.mark.parametrize("top", [0, 1, 3, VOCAB + 1])
def test_alternatives(top: int) -> None:
    output = Bench(TOY).serve(prompt_of(5, vocab=8), logprobs=top, prompt_logprobs=top, temperature=1.5, seed=0)
    tokens = (*output.prompt_token_ids, *output.token_ids)
    wanted = reference(TOY, tokens)[:-1]
    for row, token, entry in zip(wanted, tokens[1:], (*output.prompt_logprobs[1:], *output.logprobs), strict=True):
        assert entry.token == token
        # before temperature
        assert entry.logprob == pytest.approx(float(row[token]), rel=1e-5)
        assert [token for token, _ in entry.top] == row.topk(min(top, 8)).indices.tolist()
        assert torch.tensor([x for _, x in entry.top]).diff().le(0).all()


def test_nothing_is_reported_unless_asked() -> None:
    output = Bench(TOY).serve([1, 2], logprobs=None)
    assert (output.logprobs, output.prompt_logprobs) == (None, None)
