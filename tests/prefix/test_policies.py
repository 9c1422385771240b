import pytest

from holdover.prefix.policies import (
    ALIGNMENT,
    DEFAULT_POLICY,
    AnyOf,
    BranchPoint,
    EndOfRequest,
    EveryN,
    MessageBoundaries,
    NoCheckpoints,
    Prompt,
    PromptOnly,
    PromptTail,
    Wanted,
)


@pytest.mark.parametrize(
    ("policy", "prompt", "depths"),
    [
        (NoCheckpoints(), Prompt(200, 0, 100, (50,), (60,)), set()),
        (EndOfRequest(), Prompt(200, 0, 100, (50,), (60,)), set()),
        (MessageBoundaries(), Prompt(200, 0, 0, (50, 120)), {120}),
        (MessageBoundaries(), Prompt(200, 0, 0), set()),
        (PromptTail(), Prompt(200, 0, 0), {192}),
        (PromptTail(), Prompt(192, 0, 0), {128}),
        (PromptTail(), Prompt(193, 0, 0), {192}),
        (PromptTail(), Prompt(30, 0, 0), {29}),
        (PromptTail(), Prompt(193, 64, 64), {192}),
        (PromptTail(), Prompt(193, 65, 65), set()),
        (BranchPoint(), Prompt(200, 64, 100), {100}),
        (BranchPoint(), Prompt(200, 100, 100), set()),
        (EveryN(64), Prompt(200, 0, 0), {64, 128, 192}),
        (EveryN(64), Prompt(128, 0, 0), {64, 128}),
        (EveryN(64), Prompt(63, 0, 0), set()),
        (Wanted(), Prompt(200, 0, 0, (), (7, 9)), {7, 9}),
        (PromptOnly(), Prompt(200, 0, 0), {200}),
        (AnyOf((Wanted(), PromptOnly())), Prompt(200, 0, 0, (), (7,)), {7, 200}),
        (AnyOf(()), Prompt(200, 0, 0, (), (7,)), set()),
    ],
)
def test_depths_to_stop_at_during_prefill(policy, prompt, depths):
    assert set(policy.prompt_depths(prompt)) == depths


@pytest.mark.parametrize("length", [1, ALIGNMENT, ALIGNMENT + 1, 1000])
def test_default_policy_lets_an_identical_prompt_resume_within_one_alignment(length):
    usable = [depth for depth in DEFAULT_POLICY.prompt_depths(Prompt(length, 0, 0)) if 0 < depth < length]
    assert length - max(usable, default=0) <= ALIGNMENT


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (NoCheckpoints(), ()),
        (EveryN(3), (3, 6)),
        (EveryN(3, decode=False), ()),
        (AnyOf((EveryN(3), EveryN(2))), (2, 3, 4, 6)),
    ],
)
def test_depths_kept_while_decoding(policy, kept):
    assert tuple(depth for depth in range(1, 7) if policy.during_decode(depth)) == kept


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (NoCheckpoints(), False),
        (EndOfRequest(), True),
        (PromptOnly(), False),
        (EveryN(3), False),
        (AnyOf((PromptOnly(), EndOfRequest())), True),
        (AnyOf((PromptOnly(),)), False),
        (DEFAULT_POLICY, True),
    ],
)
def test_whether_a_sequence_that_ends_is_kept(policy, kept):
    assert policy.at_end() is kept
