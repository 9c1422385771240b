"""What is made of two engines' measurements."""

import pytest

# a source distribution comes without the benchmarks
gain = pytest.importorskip("benchmarks.vllm_gpu").gain
compare = pytest.importorskip("benchmarks.vllm_gpu_tokens").compare


def answer(ids: list[int], *logprobs: dict[str, float]) -> dict[str, object]:
    return {"ids": ids, "logprobs": list(logprobs)}


def test_answers_are_compared_up_to_the_first_difference() -> None:
    reference = [
        answer([5, 6, 7], {"5": -0.1, "9": -3.0}, {"6": -0.50, "8": -0.75}, {"7": -0.2}),
        answer([1, 2, 3], {"1": -0.5}, {"2": -0.25}, {"3": -1.0}),
    ]
    other = [
        answer([5, 8, 1], {"5": -0.2, "9": -3.0}, {"8": -0.51, "6": -0.75}, {"1": -0.2}),
        answer([1, 2, 4], {"1": -0.5}, {"2": -0.75}, {"4": -0.9}),
    ]
    found = compare(reference, other)
    assert (found["positions"], found["differ"], found["unlisted"], found["gap"]) == (5, 2, 1, 0.25)
    assert found["drift"] == pytest.approx(0.1)
    assert found["drift_max"] == 0.5


def test_equal_answers_have_no_gap() -> None:
    one = [answer([5], {"5": -0.1})]
    assert compare(one, one) == {"positions": 1, "differ": 0, "gap": None, "unlisted": 0, "drift": 0, "drift_max": 0}


@pytest.mark.parametrize("overhead", [0.0, 0.25])
def test_a_gain_is_measured_by_its_bound(overhead: float) -> None:
    stock, own = {"kernel_ms": 4.0, "update_ms": 2.0}, {"kernel_ms": 3.0 + overhead, "update_ms": 1.0}
    found = gain(stock, own, [5.0, 6.0], [4.0, 4.0])
    assert found["kernel_ratio"] == 2
    assert found["bound"] == pytest.approx(4 / 3)
    # the bound is reached where nothing but the recurrence changed
    assert found["reached"] == pytest.approx(3 / (3 + overhead))
    assert found["tpot_speedup"] == pytest.approx(1.375)
    assert found["tpot_min_speedup"] == 1.25
