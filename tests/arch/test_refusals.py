"""What is refused, and what each message says."""

from contextlib import suppress
from typing import Any

import pytest

from holdover.arch.registry import gate_from_config, layout_from_config
from holdover.errors import ConfigError, UnsupportedArchitectureError
from tests.arch.fixtures import CONFIGS, published


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "jamba"}, "Mamba-1"),
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "Mamba-1"),
        ({"model_type": "falcon_mamba"}, "Mamba-1"),
        ({"architectures": ["JambaForCausalLM"]}, "Mamba-1"),
        ({"model_type": "zamba"}, "Mamba-1"),
        ({"model_type": "minimax"}, "cannot resume"),
        ({"model_type": "minimax_text_01", "architectures": ["MiniMaxText01ForCausalLM"]}, "cannot resume"),
        ({"model_type": "recurrent_gemma"}, "cannot resume"),
        ({"model_type": "llama"}, "no recurrent layer"),
        ({"model_type": "some_new", "layer_types": ["full_attention", "sliding_attention"]}, "no recurrent layer"),
        ({"model_type": "some_vlm", "text_config": {"model_type": "qwen3"}}, "no recurrent layer"),
        ({"model_type": "bert_2027"}, "unknown architecture bert_2027"),
        ({"model_type": "some_vlm", "vision_config": {}, "llm_config": {}}, "some_vlm takes images; .* text"),
        ({"model_type": "some_alm", "audio_config": {"x": 1}}, "some_alm takes audio; .* text"),
        ({}, "neither model_type nor architectures"),
    ],
)
def test_unsupported(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=reason) as raised:
        layout_from_config(config)
    message = str(raised.value)
    assert "Supported: Qwen3_5ForCausalLM" in message
    assert "KimiLinearForCausalLM" in message
    assert "GraniteMoeHybridForCausalLM" in message
    assert "Zamba2ForCausalLM" in message
    # read from files, but not run
    assert "Rwkv6ForCausalLM" not in message


def test_a_hybrid_with_attention_only() -> None:
    config = published("granite-4.0-h-tiny") | {"layer_types": ["attention"] * 40}
    with pytest.raises(UnsupportedArchitectureError, match="no recurrent layer"):
        layout_from_config(config)


def test_lightning_attention_under_the_name_of_ling_3() -> None:
    config = published("ling-3.0-flash") | {"architectures": ["BailingMoeV2_5ForCausalLM"]}
    del config["kda_safe_gate"], config["kda_lower_bound"]
    for read in (layout_from_config, gate_from_config):
        with pytest.raises(UnsupportedArchitectureError, match="lightning attention"):
            read(config)


# (fixture, changes, what the message must name); None as a change removes the key; a dot leads into a section
MALFORMED: list[tuple[str, dict[str, Any], str]] = [
    ("kimi-linear-48b-a3b", {"kv_lora_rank": None}, "kv_lora_rank is missing"),
    ("kimi-linear-48b-a3b", {"kv_lora_rank": 0}, "kv_lora_rank is 0; wanted an integer of at least 1"),
    ("kimi-linear-48b-a3b", {"kv_lora_rank": "512"}, "kv_lora_rank is '512'"),
    ("kimi-linear-48b-a3b", {"kv_lora_rank": True}, "kv_lora_rank is True"),
    ("kimi-linear-48b-a3b", {"linear_attn_config": None}, "neither layer_types nor linear_attn_config.kda_layers"),
    ("kimi-linear-48b-a3b", {"linear_attn_config": [1]}, r"linear_attn_config is \[1\]; wanted an object"),
    (
        "kimi-linear-48b-a3b",
        {"linear_attn_config.num_heads": None},
        "linear_attn_config.num_heads nor linear_num_heads",
    ),
    ("kimi-linear-48b-a3b", {"linear_attn_config.kda_layers": [0]}, "kda_layers is 0; wanted layer numbers from 1"),
    ("kimi-linear-48b-a3b", {"linear_attn_config.kda_layers": [28]}, "kda_layers is 28"),
    (
        "kimi-linear-48b-a3b",
        {"linear_attn_config.kda_layers": [1, 1]},
        "kda_layers is 1; wanted every layer listed once",
    ),
    ("kimi-linear-48b-a3b", {"linear_attn_config.kda_layers": [4]}, "full_attn_layers is 4; wanted every layer listed"),
    ("kimi-linear-48b-a3b", {"linear_attn_config.kda_layers": [1]}, r"layers \[2, 3, 5"),
    ("kimi-linear-48b-a3b", {"linear_attn_config.short_conv_kernel_size": 1}, "short_conv_kernel_size is 1"),
    ("kimi-linear-48b-a3b", {"linear_attn_config.gate_lower_bound": 5.0}, "gate_lower_bound is 5.0"),
    ("kimi-linear-48b-a3b", {"mla_use_nope": False}, "mla_use_nope is False"),
    ("kimi-linear-48b-a3b", {"num_hidden_layers": -1}, "num_hidden_layers is -1"),
    ("kimi-linear-48b-a3b", {"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000"),
    ("kimi-linear-48b-a3b", {"model_max_length": None}, "max_position_embeddings or model_max_length is missing"),
    ("kimi-linear-48b-a3b", {"dtype": "int3"}, "dtype is 'int3'; wanted one of float64, float32"),
    ("kimi-linear-48b-a3b", {"model_type": 7}, "model_type is 7; wanted a string"),
    ("kimi-linear-48b-a3b", {"architectures": "Kimi"}, "architectures is 'Kimi'; wanted a list"),
    ("qwen3_5-27b", {"text_config": 3}, "text_config is 3; wanted an object"),
    ("qwen3_5-27b", {"text_config.linear_num_key_heads": 7}, "linear_num_value_heads is 48; wanted a multiple of"),
    ("qwen3_5-27b", {"text_config.num_key_value_heads": 5}, "num_attention_heads is 24; wanted a multiple of"),
    ("qwen3_5-27b", {"text_config.layer_types": ["linear_attention"]}, "layer_types .* 64 entries .* not 1"),
    ("qwen3_5-27b", {"text_config.layer_types": ["rwkv"] * 64}, "layer_types is 'rwkv'; wanted entries out of"),
    ("qwen3_5-27b", {"text_config.layer_types": [[]] * 64}, r"layer_types is \[\]; wanted entries out of"),
    (
        "qwen3_5-27b",
        {"text_config.layer_types": None, "text_config.full_attention_interval": None},
        "layer_types and full_attention_interval are missing",
    ),
    ("qwen3_5-27b", {"text_config.head_dim": 1.5}, "text_config.head_dim is 1.5"),
    ("qwen3_5-27b", {"text_config.rope_parameters.partial_rotary_factor": 0.001}, "partial_rotary_factor is 0.001"),
    ("qwen3_5-27b", {"text_config.rope_parameters.partial_rotary_factor": 2}, "partial_rotary_factor is 2"),
    ("qwen3_5-27b", {"text_config.rope_parameters.rope_theta": -1}, "rope_theta is -1"),
    ("qwen3_5-27b", {"text_config.rope_parameters.rope_theta": float("nan")}, "rope_theta is nan"),
    ("ling-3.0-flash", {"layer_group_size": 5}, "layer_group_size is 5; wanted a divisor of num_hidden_layers"),
    ("ling-3.0-flash", {"kda_lower_bound": 0}, "kda_lower_bound is 0.0; wanted a negative number"),
    ("ling-3.0-flash", {"kda_safe_gate": 1}, "kda_safe_gate is 1; wanted true or false"),
    ("glm-5.3-flash", {"text_config.qk_rope_head_dim": 64}, "qk_rope_head_dim is 64; wanted 0"),
    ("glm-5.3-flash", {"text_config.linear_attn_config.safe_gate": False}, "safe_gate is False; wanted true"),
    ("olmo-hybrid-7b", {"layer_types": ["mamba", "moe"] * 16}, "layer_types is 'moe'; wanted entries out of"),
    ("olmo-hybrid-7b", {"linear_num_value_heads": 31}, "linear_num_value_heads is 31; wanted a multiple of"),
    ("olmo-hybrid-7b", {"rope_parameters.rope_theta": "long"}, "rope_theta is 'long'; wanted a finite number"),
    ("bamba-9b", {"attn_layer_indices": [9, 32]}, "attn_layer_indices is 32; wanted layer indices from 0 to 31"),
    ("bamba-9b", {"attn_layer_indices": [True]}, "attn_layer_indices is True"),
    ("bamba-9b", {"mamba_n_groups": 3}, "mamba_n_heads is 128; wanted a multiple of mamba_n_groups"),
    ("nemotron-h-8b", {"hybrid_override_pattern": "M-X*"}, "hybrid_override_pattern is 'M-X.'; wanted one letter"),
    ("nemotron-h-8b", {"hybrid_override_pattern": ""}, "hybrid_override_pattern is ''; wanted one letter"),
    ("nemotron-h-8b", {"hybrid_override_pattern": None}, "layers_block_type and hybrid_override_pattern are missing"),
    ("nemotron-h-8b", {"layers_block_type": ["mamba", "hybrid"]}, "layers_block_type is 'hybrid'; wanted entries"),
    ("nemotron-h-8b", {"n_groups": 7}, "mamba_num_heads is 128; wanted a multiple of n_groups"),
    ("falcon-h1-7b", {"mamba_d_ssm": 3000}, "mamba_d_head is 128; wanted 125|mamba_n_heads is 24"),
    ("falcon-h1-7b", {"mamba_d_head": 64}, r"mamba_d_head is 64; wanted 128, or auto \(mamba_d_ssm / heads\)"),
    ("zamba2-2.7b", {"layers_block_type": ["hybrid"]}, "layers_block_type .* 54 entries"),
    ("zamba2-2.7b", {"n_mamba_heads": 81}, "n_mamba_heads is 81; wanted a divisor of mamba_expand"),
    ("zamba2-2.7b", {"use_mem_rope": "yes"}, "use_mem_rope is 'yes'; wanted true or false"),
    ("rwkv6-finch-1b6", {"head_size": None}, "head_size is missing"),
    ("rwkv6-finch-1b6", {"head_size": 60}, "attention_hidden_size is 2048; wanted a multiple of head_size"),
    ("granite-4.0-h-tiny", {"layer_types": None}, "layer_types .* missing"),
    ("granite-4.0-h-tiny", {"mamba_n_groups": 5}, "mamba_n_heads is 48; wanted a multiple of mamba_n_groups"),
    ("granite-4.0-h-tiny", {"mamba_n_heads": 47}, "mamba_n_heads is 47; wanted a divisor"),
    ("granite-4.0-h-tiny", {"mamba_d_head": 32}, "mamba_d_head is 32; wanted 64"),
    ("granite-4.0-h-tiny", {"mamba_d_head": "wide"}, "mamba_d_head is 'wide'"),
    ("granite-4.0-h-tiny", {"num_attention_heads": 16, "hidden_size": 1544}, "mamba_n_heads is 48|hidden_size is 1544"),
    ("granite-4.0-h-tiny", {"position_embedding_type": "learned"}, "position_embedding_type is 'learned'"),
]


@pytest.mark.parametrize(("name", "changes", "message"), MALFORMED)
def test_malformed(name: str, changes: dict[str, Any], message: str) -> None:
    config = published(name)
    for path, value in changes.items():
        *sections, key = path.split(".")
        section = config
        for part in sections:
            section = section[part]
        if value is None:
            del section[key]
        else:
            section[key] = value
    # one message, not one of its special cases
    with pytest.raises(ConfigError, match=message) as raised:
        layout_from_config(config)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("limit", [[0.0], "wide", [1.0, 0.5], [-1.0, 2.0], [None, 1.0]])
def test_malformed_gate(limit: object) -> None:
    with pytest.raises(ConfigError, match="time_step_limit"):
        gate_from_config(published("granite-4.0-h-tiny") | {"time_step_limit": limit})


@pytest.mark.parametrize("floor", [-1.0, "low", float("nan")])
@pytest.mark.parametrize("name", ["nemotron-h-8b", "zamba2-2.7b"])
def test_malformed_step_floor(name: str, floor: object) -> None:
    with pytest.raises(ConfigError, match="time_step_min"):
        gate_from_config(published(name) | {"time_step_min": floor})


def test_gate_limits_are_read() -> None:
    gate = gate_from_config(published("granite-4.0-h-tiny") | {"time_step_limit": [0.001, 0.1]})
    assert (gate.dt_min, gate.dt_max) == (0.001, 0.1)


def test_a_host_dtype_that_is_none() -> None:
    with pytest.raises(ConfigError, match="dtype is 'int8'"):
        layout_from_config(published("granite-4.0-h-tiny"), dtype="int8")


def test_not_an_object() -> None:
    with pytest.raises(ConfigError, match="wanted an object"):
        layout_from_config([])  # type: ignore[arg-type]


WEIRD = [
    None,
    True,
    0,
    -1,
    1,
    3,
    10**30,
    0.5,
    float("inf"),
    "",
    "auto",
    "bfloat16",
    [],
    [None],
    [1, "x"],
    {},
    {"a": []},
]


def _places(value: object, place: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every key of nested objects, as a path."""
    if not isinstance(value, dict):
        return []
    return [path for key, held in value.items() for path in ((*place, key), *_places(held, (*place, key)))]


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.json")))
def test_no_value_of_any_key_fails_in_another_way(name: str) -> None:
    for *sections, key in _places(published(name)):
        for value in WEIRD:
            config = published(name)
            section = config
            for part in sections:
                section = section[part]
            section[key] = value
            # a layout or a clear error; anything else fails the test
            with suppress(ConfigError):
                assert layout_from_config(config).state.checkpoint_bytes > 0
            with suppress(ConfigError):
                gate_from_config(config)
