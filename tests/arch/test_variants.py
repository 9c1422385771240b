"""What a configuration can switch within an architecture, each switch run once beside the unmodified model."""

import pytest

from holdover.errors import UnsupportedArchitectureError
from tests.arch.table import ARCHITECTURES
from tests.engine.harness import Bench, assert_greedy, host_of, prompt_of

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# row of the table, what its configuration has instead
VARIANTS = [
    ("qwen3_next_moe", {"linear_num_key_heads": 4}),
    ("olmo_hybrid", {"rope_parameters": _ROPE}),
    ("olmo_hybrid", {"linear_allow_neg_eigval": False, "linear_num_key_heads": 8}),
    ("bailing_hybrid_moe", {"kda_safe_gate": False}),
    ("bailing_hybrid_moe", {"kda_lower_bound": -2.0, "q_lora_rank": 24}),
    ("bamba", {"mamba_n_groups": 1, "mamba_proj_bias": True}),
    ("bamba", {"time_step_limit": (0.01, 0.05), "mamba_conv_bias": False}),
    ("nemotron_h_moe", {"time_step_min": 0.01, "use_bias": True, "n_groups": 1}),
    ("falcon_h1", {"mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    ("falcon_h1", {"mamba_rms_norm": True, "mamba_norm_before_gate": True, "mamba_n_groups": 1}),
    ("zamba2", {"use_mem_rope": False, "use_shared_attention_adapter": False, "num_mem_blocks": 1}),
    ("zamba2", {"use_long_context": True, "mamba_ngroups": 1}),
]


def add_variant(row: str, changes: dict, monkeypatch: pytest.MonkeyPatch) -> str:
    """A row of the table for this test: ``row`` with ``changes``."""
    name, config = f"{row} with {changes}", type(ARCHITECTURES[row]())
    kept = {key: value for key, value in ARCHITECTURES[row]().to_dict().items() if key not in changes}
    monkeypatch.setitem(ARCHITECTURES, name, lambda: config(**kept, **changes))
    assert ARCHITECTURES[name]().to_dict() != ARCHITECTURES[row]().to_dict()
    return name


@pytest.mark.parametrize(("row", "changes"), VARIANTS, ids=lambda x: x if isinstance(x, str) else ",".join(x))
def test_variant(row: str, changes: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    name = add_variant(row, changes, monkeypatch)
    bench = Bench(name)
    first = bench.serve(prompt_of(37), tokens=3, request={"checkpoint_at": (21,)})
    assert_greedy(name, first)
    # several tokens from the cached state
    again = bench.serve((*prompt_of(21), *prompt_of(9, seed=1)), tokens=3)
    assert again.cache.state_depth == 21
    assert_greedy(name, again)


@pytest.mark.parametrize(("row", "key"), [("qwen3_5", "hidden_act"), ("nemotron_h_moe", "mamba_hidden_act")])
def test_an_activation_that_no_convolution_here_has(row: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedArchitectureError, match="layer 0 puts gelu on its convolution"):
        host_of(add_variant(row, {key: "gelu"}, monkeypatch))
