"""How tokens are chosen: supports, distributions, seeds, ends, and replay of recorded text."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from holdover.engine.drawing import Uniforms, Wanted, draw
from holdover.engine.sampling import SamplingDefaults, SamplingParams
from holdover.errors import RequestError
from tests.engine.harness import TOY, Bench, prompt_of, reference
from tests.engine.toy import VOCAB

DRAWS = 3000


def expected(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """The distribution from its definition: one token after another, most probable first."""
    p = (logits.double() / temperature).softmax(-1).tolist()
    order = sorted(range(len(p)), key=lambda i: -p[i])
    kept = order[: top_k or None]
    total = sum(p[i] for i in kept)
    kept = [i for i in kept if p[i] >= min_p * p[order[0]]]
    total, mass, nucleus = sum(p[i] for i in kept), 0.0, []
    for i in kept:
        if nucleus and mass >= top_p * total:
            break
        nucleus.append(i)
        mass += p[i]
    out = torch.zeros(len(p), dtype=torch.float64)
    for i in nucleus:
        out[i] = p[i] / mass
    return out


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.5, 0, 1.0, 0.0),
        (2.0, 0, 1.0, 0.0),
        (1.0, 3, 1.0, 0.0),
        (1.0, 1, 1.0, 0.0),
        (1.0, 0, 0.6, 0.0),
        (1.0, 0, 0.95, 0.0),
        (1.0, 0, 1.0, 0.2),
        (1.5, 5, 0.8, 0.1),
        (1.0, 100, 1.0, 1.0),
    ],
)
def test_distribution(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    logits = torch.randn(8, generator=torch.Generator().manual_seed(3)) * 1.5
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    uniforms = Uniforms(0)
    counts = Counter(draw(logits.expand(DRAWS, -1), [Wanted(params, uniforms[i]) for i in range(DRAWS)]))
    wanted = expected(logits, temperature, top_k, top_p, min_p)
    assert set(counts) <= set(wanted.nonzero().flatten().tolist()), "outside the support"
    for token, probability in enumerate(wanted.tolist()):
        # five standard deviations
        slack = 5 * (probability * (1 - probability) / DRAWS) ** 0.5
        assert abs(counts[token] / DRAWS - probability) <= slack


@pytest.mark.parametrize("temperature", [1e-5, 1e-38, 1e-45, 5e-324])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_temperatures_near_zero_are_greedy(temperature: float, scale: float) -> None:
    """No overflow: one request's temperature must not stop the engine."""
    logits = scale * torch.tensor([1.0, 5.0, 3.0])
    assert draw(logits.unsqueeze(0), [Wanted(SamplingParams(temperature=temperature), 0.9)]) == [1]


@pytest.mark.parametrize("top_p", [1e-6, 1e-45, 5e-324])
def test_top_p_near_zero_keeps_the_most_probable(top_p: float) -> None:
    logits = torch.tensor([1.0, 1.1, 1.0])
    assert draw(logits.unsqueeze(0), [Wanted(SamplingParams(temperature=1.0, top_p=top_p), 0.9)]) == [1]


ENDS = [0.0, 1 - 2**-53]


@pytest.mark.parametrize("uniform", ENDS)
@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}])
def test_what_has_no_probability_is_never_drawn(params: dict, uniform: float) -> None:
    logits = torch.full((1, 9), -torch.inf)
    logits[0, 3:6] = torch.tensor([1.0, 3.0, 2.0])
    assert draw(logits, [Wanted(SamplingParams(temperature=1.0, **params), uniform)])[0] in {3, 4, 5}


def test_a_row_draws_alone_what_it_draws_in_company() -> None:
    logits = torch.randn(150, 40, generator=torch.Generator().manual_seed(5))
    logits[7] = torch.nan
    kinds = [{}, {"top_k": 4}, {"top_p": 0.7}, {"top_k": 30, "top_p": 0.9}, {"min_p": 0.1}, {"top_k": 50}]
    uniforms = Uniforms(1)
    wanted = [
        Wanted(SamplingParams(temperature=0.5 + i % 3, **kinds[i % len(kinds)]), uniforms[i])
        for i in range(len(logits))
    ]
    assert draw(logits, wanted) == [draw(row.unsqueeze(0), [one])[0] for row, one in zip(logits, wanted, strict=True)]


def test_uniforms_follow_from_seed_and_index() -> None:
    ahead, again = Uniforms(3), Uniforms(3)
    assert [ahead[i] for i in (4, 0, 2)] == [[again[i] for i in range(5)][i] for i in (4, 0, 2)]
    assert len({Uniforms(seed)[0] for seed in (1, -1, 2**63, None, None)}) == 5


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -1.0}, "min_p"),
        ({"top_k": -1}, "top_k"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"stop": ("x", "")}, "stop"),
    ],
)
def test_bad_values_name_the_parameter(values: dict, param: str) -> None:
    with pytest.raises(RequestError, match=param) as caught:
        SamplingParams(**values).resolve(SamplingDefaults())
    assert caught.value.param == param


def test_defaults_of_the_model_fill_what_is_not_said() -> None:
    defaults = SamplingDefaults(temperature=0.7, top_p=0.9, top_k=20, min_p=0.05)
    resolved = SamplingParams(top_k=0, temperature=0.0).resolve(defaults)
    assert (resolved.temperature, resolved.top_p, resolved.top_k, resolved.min_p) == (0.0, 0.9, 0, 0.05)


SAMPLED = {"temperature": 1.3, "top_p": 0.95, "seed": 7}


@pytest.mark.parametrize("seed", [0, 7, -1, 2**64 + 5])
def test_a_seed_repeats_whatever_the_company(seed: int) -> None:
    prompt = prompt_of(5, vocab=VOCAB)
    alone = Bench(TOY).serve(prompt, 12, **{**SAMPLED, "seed": seed}).token_ids
    # in a batch, in smaller chunks, preempted, and resumed from the cache
    bench = Bench(TOY, slots=4, rows=30, chunk=3)
    for i in range(3):
        bench.add(prompt_of(4, seed=i, vocab=VOCAB), 12, temperature=1.0)
    crowded = bench.add(prompt, 12, **{**SAMPLED, "seed": seed})
    bench.run()
    assert bench.core.stats.preemptions
    assert bench.outputs[crowded].token_ids == alone
    resumed = bench.serve((*prompt, *alone[:4]), 3, **{**SAMPLED, "seed": seed})
    assert resumed.error is None


def test_without_a_seed_runs_differ() -> None:
    bench = Bench(TOY)
    assert len({bench.serve([1], 20, temperature=2.0).token_ids for _ in range(4)}) > 1


def greedy(count: int) -> tuple[int, ...]:
    return Bench(TOY).serve(PROMPT, count).token_ids


PROMPT = prompt_of(5, seed=3, vocab=VOCAB)


def first_seen(tokens: tuple[int, ...], at_least: int) -> int:
    """Index of a token that does not occur before, at or after ``at_least``."""
    return next(i for i in range(at_least, len(tokens)) if tokens[i] not in tokens[:i])


def test_end_tokens() -> None:
    whole = greedy(12)
    end = first_seen(whole, 1)
    bench = Bench(TOY, end_tokens=[whole[end]])
    output = bench.serve(PROMPT, 12)
    # the end token is reported and is not part of the text
    assert (output.token_ids, output.finish_reason) == (whole[: end + 1], "stop")
    assert output.text == bytes(whole[:end]).decode()
    ignoring = bench.serve(PROMPT, 12, ignore_eos=True)
    assert (ignoring.token_ids, ignoring.finish_reason) == (whole, "length")
    both = bench.serve(PROMPT, 12, ignore_eos=True, stop_token_ids=(whole[end],))
    assert (both.token_ids, both.finish_reason) == (whole[: end + 1], "stop")


def test_stop_strings_end_the_text_before_them() -> None:
    whole = greedy(12)
    text = bytes(whole).decode()
    stop = text[3:6]
    output = Bench(TOY).serve(PROMPT, 12, stop=(stop, "never"))
    assert output.finish_reason == "stop"
    assert output.text == text[: text.find(stop)]
    assert len(output.token_ids) == text.find(stop) + len(stop)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_max_tokens(count: int) -> None:
    output = Bench(TOY).serve(PROMPT, count)
    assert (len(output.token_ids), output.finish_reason) == (count, "length")


def test_no_max_tokens_fills_the_context() -> None:
    output = Bench(TOY, rows=24).serve(PROMPT, None)
    assert len(output.token_ids) == 24 - len(PROMPT)


def test_forced_tokens_replay_and_then_sampling_goes_on() -> None:
    bench = Bench(TOY)
    forced = prompt_of(6, seed=9, vocab=VOCAB)
    output = bench.serve(PROMPT, 9, forced=forced)
    assert output.token_ids[:6] == forced
    # the distributions are those of teacher forcing
    wanted = reference(TOY, (*PROMPT, *output.token_ids))[len(PROMPT) - 1 : -1]
    assert [entry.logprob for entry in output.logprobs] == pytest.approx(
        [float(row[token]) for row, token in zip(wanted, output.token_ids, strict=True)], rel=1e-5
    )
    assert output.token_ids[6:] == tuple(wanted[6:].argmax(-1).tolist())


def test_forced_tokens_end_where_generated_ones_would() -> None:
    assert Bench(TOY, end_tokens=[5]).serve(PROMPT, 9, forced=(1, 2, 5, 3)).token_ids == (1, 2, 5)
    assert Bench(TOY).serve(PROMPT, 2, forced=(1, 2, 5, 3)).token_ids == (1, 2)


def test_updates_add_up_to_the_output() -> None:
    bench = Bench(TOY)
    output = bench.serve(PROMPT, 9, stop=("zz",))
    updates = bench.updates[output.request_id]
    assert tuple(t for update in updates for t in update.token_ids) == output.token_ids
    assert "".join(update.text for update in updates) == output.text
    assert tuple(entry for update in updates for entry in update.logprobs) == output.logprobs
    assert [update.output for update in updates] == [None] * 8 + [output]
    assert 0 <= output.timing.queued <= output.timing.first_token <= output.timing.total


@pytest.mark.parametrize(
    ("prompt", "params", "param", "code"),
    [
        ([], {}, "prompt", "empty_prompt"),
        ("", {}, "prompt", "empty_prompt"),
        ([8], {}, "prompt", "invalid_request"),
        ([-1], {}, "prompt", "invalid_request"),
        ([1.5], {}, "prompt", "invalid_request"),
        (["a"], {}, "prompt", "invalid_request"),
        (5, {}, "prompt", "invalid_request"),
        ([1], {"forced": (8,)}, "forced", "invalid_request"),
        ([1] * 24, {}, "prompt", "context_length_exceeded"),
        ([1] * 20, {"max_tokens": 5}, "max_tokens", "context_length_exceeded"),
    ],
)
def test_bad_requests_are_refused_before_anything_starts(prompt, params: dict, param: str, code: str) -> None:
    bench = Bench(TOY, rows=24)
    with pytest.raises(RequestError) as caught:
        bench.prepare.sequence(prompt, SamplingParams(**params))
    assert (caught.value.param, caught.value.code) == (param, code)
    bench.assert_empty()


def test_the_longest_request_fits() -> None:
    bench = Bench(TOY, rows=24)
    assert len(bench.serve([1] * 20, 4).token_ids) == 4
