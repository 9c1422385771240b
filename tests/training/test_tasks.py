"""The generators: fixed by their seed, answerable from the context, within their length."""

import random
import re

import pytest
from transformers import AutoTokenizer

from tests.training import MODEL
from training.score import answer_all, cases, interval, table
from training.tasks import NOISE, SCORED, TASKS, Sampler
from training.tokenizer import render


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def sampler(tokenizer):
    return Sampler(NOISE, lambda text: len(tokenizer.encode(text)))


@pytest.mark.parametrize("task", [*TASKS, "notes", "chat", "sentence"])
def test_a_seed_fixes_the_sample(sampler, task):
    def draw(seed):
        return sampler.make(task, random.Random(seed), 300, turns=3)

    assert draw(5) == draw(5)
    assert any(draw(5) != draw(seed) for seed in range(6, 12))


def pieces(task, answer):
    return answer.split(", ") if task == "multiquery" else [answer]


@pytest.mark.parametrize("task", [task for task in TASKS if task != "count"])
def test_answers_stand_in_the_context(sampler, task):
    for seed in range(20):
        messages = sampler.make(task, random.Random(seed), 400).messages
        context, answer = messages[-2]["content"], messages[-1]["content"]
        assert answer
        assert all(piece in context for piece in pieces(task, answer))


def test_counts_are_right(sampler):
    for seed in range(20):
        question, answer = (m["content"] for m in sampler.make("count", random.Random(seed), 200).messages[-2:])
        word = re.search(r"(?:the word|does) (\w+) (?:appear|stand|in)", question).group(1)
        assert len(re.findall(rf"\b{word}\b", question)) - 1 == int(answer)


def test_updates_ask_for_the_latest_value(sampler):
    for seed in range(20):
        context, answer = (m["content"] for m in sampler.make("update", random.Random(seed), 300).messages[-2:])
        facts = [line for line in re.split(r"\n|(?<=\.) ", context) if answer in line]
        assert facts


def test_turns_keep_one_context(sampler):
    sample = sampler.make("multikey", random.Random(0), 500, turns=4)
    users = [m["content"] for m in sample.messages if m["role"] == "user"]
    assert len(users) == 4
    assert all(len(user) < 120 for user in users[1:])


def test_cases_keep_their_length(tokenizer):
    found = cases(tokenizer, 10, seed=3, data=None, lengths=(256, 512))
    assert {case.task for case in found} == {*SCORED, "multiturn"}
    for case in found:
        assert len(tokenizer.encode(render(case.messages))) <= case.length
    again = cases(tokenizer, 10, seed=3, data=None, lengths=(512,), tasks=("needle",))
    assert again == [case for case in found if (case.task, case.length) == ("needle", 512)]


def test_a_conversation_is_a_prefix_of_its_next_turn(tokenizer, sampler):
    messages = sampler.make("recall", random.Random(1), 200, turns=3).messages
    assert tokenizer.apply_chat_template(messages, tokenize=False) == render(messages)
    for end in range(2, len(messages), 2):
        prompt = tokenizer.apply_chat_template(messages[: end - 1], tokenize=False, add_generation_prompt=True)
        following = tokenizer.apply_chat_template(messages[: end + 1], tokenize=False, add_generation_prompt=True)
        assert following.startswith(prompt + messages[end - 1]["content"] + "<|im_end|>\n")
        ids, more = tokenizer.encode(prompt), tokenizer.encode(following)
        assert more[: len(ids)] == ids


def test_digits_are_single_tokens(tokenizer):
    assert tokenizer.tokenize("48213") == list("48213")
    assert tokenizer.decode(tokenizer.encode("Zoë pays 12 €.\n")) == "Zoë pays 12 €.\n"


def test_scoring_counts_whole_conversations(tokenizer):
    found = cases(tokenizer, 12, seed=3, data=None, lengths=(256,), tasks=("needle", "multiturn"))
    answers = {render(case.messages[: at + 1]): m for case in found for at, m in enumerate(case.messages)}
    histories = []

    def oracle(prompts, room):
        texts = [tokenizer.decode(ids).removesuffix("<|im_start|>assistant\n") for ids in prompts]
        histories.extend(texts)
        rights = [
            next(m for text, m in answers.items() if text.startswith(t) and m["role"] == "assistant") for t in texts
        ]
        return [[*tokenizer.encode(m["content"]), tokenizer.eos_token_id, 5] for m in rights]

    given = answer_all(found, oracle, tokenizer, 4096)
    scores = table(found, given)
    assert scores["needle"]["256"]["exact"] == scores["multiturn"]["all"]["exact"] == 1.0
    assert len(histories) == sum(len(case.answers) for case in found)
    given[0][0] += "x"
    assert table(found, given)["needle"]["256"]["exact"] < 1


def test_the_interval_holds_the_proportion():
    low, high = interval(95, 100)
    assert low == pytest.approx(0.888, abs=1e-3)
    assert high == pytest.approx(0.978, abs=1e-3)
