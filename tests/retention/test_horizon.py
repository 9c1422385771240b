"""Static horizons against numbers worked out by hand, a direct float64 evaluation of Eq. 2 and 3, and their order."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdover.arch.architecture import Gate
from holdover.arch.layout import GateForm, RecurrentLayer
from holdover.errors import PlanError
from holdover.retention.horizon import DEFAULT_GATE_INPUT, LONGEST_HORIZON, is_calibrated, static_horizons

GDN = RecurrentLayer(0, "gdn", 3, 1, 8, 16, "head", 64, 4)
KDA = RecurrentLayer(0, "kda", 2, 2, 4, 4, "channel", 24, 4)
RWKV = RecurrentLayer(0, "rwkv6", 2, 2, 4, 4, "channel", 16, 2, "exponential")
BOUNDED = Gate("bounded", lower_bound=-5.0)
GATES = {"softplus": Gate(), "bounded": BOUNDED, "exponential": Gate("exponential")}
LN1000 = math.log(1000.0)


def one(form: GateForm, a_log: float, dt_bias: float, *, gate: Gate | None = None, **options: float) -> float:
    """The horizon of a single unit."""
    layer = RecurrentLayer(0, "gdn", 1, 1, 1, 1, "head", 3, 4, form)
    scale = None if form == "exponential" else torch.tensor([a_log], dtype=torch.float64)
    bias = torch.tensor([dt_bias], dtype=torch.float64)
    gate_input = options.pop("gate_input", DEFAULT_GATE_INPUT[form])
    return static_horizons(scale, bias, layer, gate or GATES[form], gate_input=gate_input, **options).item()


@pytest.mark.parametrize(
    ("form", "a_log", "dt_bias", "options", "expected"),
    [
        # softplus(0) = ln 2
        ("softplus", 0.0, 0.3, {}, LN1000 / math.log(2)),
        ("softplus", math.log(4.0), 0.3, {}, LN1000 / (4 * math.log(2))),
        # softplus(20) = 20 to nine digits
        ("softplus", 0.0, 20.3, {}, LN1000 / 20),
        ("softplus", 0.0, 0.3, {"epsilon": 0.5}, 1.0),
        ("softplus", 0.0, 0.0, {"gate_input": 0.0}, LN1000 / math.log(2)),
        # sigmoid(0) = 1/2, whatever the scale
        ("bounded", 0.0, -0.8, {}, LN1000 / 2.5),
        ("bounded", 3.0, -0.8, {}, LN1000 / 2.5),
        # sigmoid(ln 3) = 3/4 and sigmoid(2 ln 3) = 9/10
        ("bounded", 0.0, math.log(3.0) - 0.8, {}, LN1000 / 3.75),
        ("bounded", math.log(2.0), math.log(3.0) - 0.8, {}, LN1000 / 4.5),
        ("exponential", 0.0, 0.0, {}, LN1000),
        ("exponential", 0.0, -math.log(10.0), {}, 10 * LN1000),
    ],
)
def test_by_hand(form: GateForm, a_log: float, dt_bias: float, options: dict[str, float], expected: float) -> None:
    assert one(form, a_log, dt_bias, **options) == pytest.approx(expected, rel=1e-6)


def test_mamba2_clamps_its_step() -> None:
    gate = Gate(dt_min=0.01, dt_max=0.1)
    assert one("softplus", 0.0, 5.0, gate=gate) == pytest.approx(LN1000 / 0.1, rel=1e-6)
    assert one("softplus", 0.0, -50.0, gate=gate) == pytest.approx(LN1000 / 0.01, rel=1e-6)
    inside = math.log(math.expm1(0.05)) + 0.3
    assert one("softplus", 0.0, inside, gate=gate) == pytest.approx(LN1000 / 0.05, rel=1e-6)


def test_the_default_inputs_are_the_papers() -> None:
    assert (DEFAULT_GATE_INPUT["softplus"], DEFAULT_GATE_INPUT["bounded"]) == (-0.3, 0.8)
    assert {name for name in ("qwen3_next", "kimi_linear", "qwen3_5", "rwkv6") if is_calibrated(name)} == {
        "qwen3_next",
        "kimi_linear",
    }


def test_a_head_has_one_scale_and_a_channel_its_own_bias() -> None:
    a_log = torch.tensor([0.0, math.log(2.0)])
    dt_bias = torch.tensor([0.3, 1.3, 2.3, 3.3, 0.3, 1.3, 2.3, 3.3])
    horizons = static_horizons(a_log, dt_bias, KDA, Gate(), gate_input=-0.3)
    assert horizons.shape == (8,)
    assert horizons.dtype == torch.float32
    torch.testing.assert_close(horizons[:4], 2 * horizons[4:])
    assert horizons[1].item() == pytest.approx(LN1000 / math.log1p(math.e), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_published_shapes_and_dtypes(dtype: torch.dtype) -> None:
    a_log, dt_bias = torch.tensor([0.5, -1.0]).to(dtype), torch.linspace(-3, 1, 8).to(dtype)
    shaped = static_horizons(a_log.view(1, 1, 2, 1), dt_bias.view(2, 4), KDA, Gate(), gate_input=-0.3)
    exact = static_horizons(a_log.double(), dt_bias.double(), KDA, Gate(), gate_input=-0.3)
    assert torch.equal(shaped, exact)
    time_decay = dt_bias.view(1, 1, 8)
    assert static_horizons(None, time_decay, RWKV, GATES["exponential"], gate_input=0.0).shape == (8,)


finite = st.floats(-20, 20)


@given(form=st.sampled_from(list(GATES)), a_log=st.floats(-4, 4), x=st.floats(-8, 8), epsilon=st.floats(1e-6, 0.9))
def test_epsilon_is_left_after_one_horizon(form: GateForm, a_log: float, x: float, epsilon: float) -> None:
    """Eq. 2 evaluated directly: the decay, applied for one horizon, leaves epsilon."""
    amplitude = math.exp(a_log)
    log_decay = {
        "softplus": -amplitude * math.log1p(math.exp(x)),
        "bounded": -5.0 / (1.0 + math.exp(-amplitude * x)),
        "exponential": -math.exp(x),
    }[form]
    horizon = one(form, a_log, x, gate_input=0.0, epsilon=epsilon)
    if horizon < LONGEST_HORIZON:
        assert math.log(epsilon) == pytest.approx(horizon * log_decay, rel=1e-6)
    else:
        assert math.log(epsilon) / log_decay >= LONGEST_HORIZON * (1 - 1e-6)


@given(form=st.sampled_from(list(GATES)), a_log=finite, low=finite, step=st.floats(0, 20))
def test_a_larger_bias_or_input_forgets_no_later(form: GateForm, a_log: float, low: float, step: float) -> None:
    horizon = one(form, a_log, low)
    assert one(form, a_log, low + step) <= horizon
    assert one(form, a_log, low, gate_input=DEFAULT_GATE_INPUT[form] + step) <= horizon


@given(dt_bias=finite, low=finite, step=st.floats(0, 20))
def test_a_larger_scale_forgets_no_later_with_a_softplus_gate(dt_bias: float, low: float, step: float) -> None:
    assert one("softplus", low + step, dt_bias) <= one("softplus", low, dt_bias)


@given(a_log=finite, dt_bias=finite)
def test_a_bounded_gate_has_a_shortest_horizon(a_log: float, dt_bias: float) -> None:
    assert one("bounded", a_log, dt_bias) >= LN1000 / 5.0 * (1 - 1e-6)


@given(
    form=st.sampled_from(list(GATES)),
    a_log=st.floats(-3e38, 3e38),
    dt_bias=st.floats(-3e38, 3e38),
    gate_input=st.sampled_from([-0.3, 0.0, 0.8]),
)
def test_horizons_are_always_finite(form: GateForm, a_log: float, dt_bias: float, gate_input: float) -> None:
    assert 0 <= one(form, a_log, dt_bias, gate_input=gate_input) <= LONGEST_HORIZON


def test_the_ends() -> None:
    # a decay that rounds to one, and one that underflows
    assert one("softplus", -50.0, -50.0) == LONGEST_HORIZON
    assert one("softplus", 0.0, -2000.0) == LONGEST_HORIZON
    assert one("bounded", 5.0, -2000.0) == LONGEST_HORIZON
    assert one("exponential", 0.0, -900.0) == LONGEST_HORIZON
    assert one("softplus", 500.0, 0.0) == 0.0
    assert one("exponential", 0.0, 900.0) == 0.0


@pytest.mark.parametrize(
    ("a_log", "dt_bias", "gate", "options", "message"),
    [
        (torch.zeros(2), torch.zeros(3), Gate(), {}, r"A_log has 2 entries \(shape \[2\]\); wanted 3"),
        (torch.zeros(3), torch.zeros(3, 2), Gate(), {}, r"dt_bias has 6 entries \(shape \[3, 2\]\); wanted 3"),
        (torch.zeros(3), torch.tensor([0.0, math.nan, 0.0]), Gate(), {}, "dt_bias has entries that are not finite"),
        (torch.tensor([0.0, math.inf, 0.0]), torch.zeros(3), Gate(), {}, "A_log has entries that are not finite"),
        (None, torch.zeros(3), Gate(), {}, "a softplus gate needs A_log"),
        (torch.zeros(3), torch.zeros(3), Gate("bounded"), {}, "needs its lower bound"),
        (torch.zeros(3), torch.zeros(3), Gate(), {"epsilon": 1.0}, "epsilon is 1.0"),
        (torch.zeros(3), torch.zeros(3), Gate(), {"epsilon": 0.0}, "epsilon is 0.0"),
        (torch.zeros(3), torch.zeros(3), Gate(), {"gate_input": math.inf}, "gate_input inf"),
    ],
)
def test_refused(
    a_log: torch.Tensor | None, dt_bias: torch.Tensor, gate: Gate, options: dict[str, float], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        static_horizons(a_log, dt_bias, GDN, gate, **{"gate_input": -0.3, **options})
