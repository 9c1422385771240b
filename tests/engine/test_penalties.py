"""Penalties and biases: their definition, and the same tokens in every way that a request can be served."""

from __future__ import annotations

import pytest
import torch

from holdover.engine.request import Output
from holdover.engine.sampling import SamplingDefaults, SamplingParams, adjust
from holdover.errors import RequestError
from tests.engine.harness import TOY, Bench, prompt_of, reference
from tests.engine.test_speculation import Oracle, speculating
from tests.engine.toy import VOCAB

WAYS = [
    {"frequency_penalty": 1.5},
    {"frequency_penalty": -0.5},
    {"presence_penalty": 2.0},
    {"repetition_penalty": 3.0},
    {"repetition_penalty": 0.7},
    {"logit_bias": ((2, 4.0), (5, -100.0))},
    {"frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.2, "logit_bias": ((1, 2.5),)},
]
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: "+".join(way))


def defined(logits: list[float], way: dict, prompt: tuple[int, ...], generated: tuple[int, ...]) -> list[float]:
    """The definition, one token at a time."""
    out = []
    for token, logit in enumerate(logits):
        if token in prompt or token in generated:
            penalty = way.get("repetition_penalty", 1.0)
            logit = logit / penalty if logit > 0 else logit * penalty
        count = generated.count(token)
        logit -= way.get("frequency_penalty", 0.0) * count + way.get("presence_penalty", 0.0) * (count > 0)
        out.append(logit + sum(bias for biased, bias in way.get("logit_bias", ()) if biased == token))
    return out


@every_way
@pytest.mark.parametrize(("prompt", "generated"), [((3,), ()), ((0, 0, 6), (2, 5, 2)), ((1, 2), (1, 1, 1, 4, 7))])
def test_definition(way: dict, prompt: tuple[int, ...], generated: tuple[int, ...]) -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(len(generated)))
    before = logits.clone()
    got = adjust(logits, SamplingParams(**way), torch.tensor(prompt), generated)
    assert got.tolist() == pytest.approx(defined(before.tolist(), way, prompt, generated), rel=1e-5)
    assert torch.equal(logits, before)


def test_a_token_biased_twice_is_biased_by_the_sum() -> None:
    params = SamplingParams(logit_bias=((1, 2.0), (1, 3.0)))
    assert adjust(torch.zeros(3), params, torch.tensor([0]), ()).tolist() == [0, 5, 0]


PROMPTS = [prompt_of(length, seed=length, vocab=VOCAB) for length in (2, 5, 9)]


def serve(bench: Bench, way: dict, tokens: int = 12) -> list[Output]:
    ids = [bench.add(prompt, tokens, **way) for prompt in PROMPTS]
    bench.run()
    return [bench.outputs[i] for i in ids]


@every_way
def test_greedy_takes_the_best_adjusted_token_and_reports_the_model_s_probabilities(way: dict) -> None:
    for output in serve(Bench(TOY), way):
        prompt, tokens = output.prompt_token_ids, output.token_ids
        rows = reference(TOY, prompt + tokens)[len(prompt) - 1 : -1]
        for i, (row, token) in enumerate(zip(rows, tokens, strict=True)):
            assert output.logprobs[i].logprob == pytest.approx(float(row[token]), rel=1e-4)
            if "repetition_penalty" not in way:
                adjusted = defined(row.tolist(), way, prompt, tokens[:i])
                assert adjusted[token] == pytest.approx(max(adjusted), abs=1e-4)


@every_way
@pytest.mark.parametrize("sampled", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "sampled"])
def test_however_it_is_served(way: dict, sampled: dict) -> None:
    params = way | sampled
    alone = [Bench(TOY).serve(prompt, 12, **params).token_ids for prompt in PROMPTS]
    crowded = Bench(TOY, slots=4, rows=36, chunk=3)
    assert [output.token_ids for output in serve(crowded, params)] == alone
    assert crowded.core.stats.preemptions


@every_way
def test_accepted_drafts_count_before_the_next_position(way: dict) -> None:
    name = "small-kimi_linear"
    plain = serve(Bench(name), way)
    bench = speculating(name, Oracle(plain))
    assert [output.token_ids for output in serve(bench, way)] == [output.token_ids for output in plain]
    assert bench.core.speculator.stats.accepted


def test_neighbours_are_not_penalised() -> None:
    alone = [Bench(TOY).serve(prompt, 8).token_ids for prompt in PROMPTS]
    bench = Bench(TOY)
    ids = [bench.add(prompt, 8) for prompt in PROMPTS]
    bench.add(PROMPTS[0], 8, frequency_penalty=2.0, logit_bias=((0, 100.0),))
    bench.run()
    assert [bench.outputs[i].token_ids for i in ids] == alone


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"presence_penalty": -2.1}, "presence_penalty"),
        ({"presence_penalty": float("nan")}, "presence_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"logit_bias": ((1, 101.0),)}, "logit_bias"),
        ({"logit_bias": ((1, float("inf")),)}, "logit_bias"),
    ],
)
def test_bad_values_name_the_parameter(values: dict, param: str) -> None:
    with pytest.raises(RequestError, match=param) as caught:
        SamplingParams(**values).resolve(SamplingDefaults())
    assert caught.value.param == param


def test_a_bias_on_a_token_that_is_not_there() -> None:
    with pytest.raises(RequestError, match="logit_bias holds token 8") as caught:
        Bench(TOY).prepare.sequence([1], SamplingParams(logit_bias=((8, 1.0),)))
    assert caught.value.param == "logit_bias"
