"""Layouts of published models: the numbers one can look up, and both forms of a configuration."""

import json

import pytest
from transformers import AutoConfig

from holdover.arch.architecture import Gate
from holdover.arch.layout import AttentionLayer, RecurrentLayer, Rotary
from holdover.arch.registry import ARCHITECTURES, architecture_of, gate_from_config, layout_from_config
from tests.arch.fixtures import CONFIGS, published
from tests.arch.table import ARCHITECTURES as TABLE

# the host's library has no class for the two
KNOWN = sorted({path.stem for path in CONFIGS.glob("*.json")} - {"kimi-k3", "rwkv6-finch-1b6"})


def test_kimi_linear_48b() -> None:
    layout = layout_from_config(published("kimi-linear-48b-a3b"))
    state, kv = layout.state, layout.kv
    assert layout.architecture == "kimi_linear"
    assert (layout.num_layers, layout.vocab_size, layout.max_context) == (27, 163840, 1_048_576)
    assert [layer.index for layer in kv.layers] == [3, 7, 11, 15, 19, 23, 26]
    assert len(state.layers) == 20
    assert state.layers[0] == RecurrentLayer(0, "kda", 32, 32, 128, 128, "channel", 12_288, 4)
    assert state.temporal_bytes == 41_943_040
    assert state.conv_bytes == 1_474_560
    assert state.units_per_layer == (4096,) * 20
    assert kv.layers[0] == AttentionLayer(3, "latent", 1, 512, 64, 32)
    assert kv.bytes_per_token == 7 * 576 * 2


def test_qwen3_5_27b() -> None:
    layout = layout_from_config(published("qwen3_5-27b"))
    assert layout.architecture == "qwen3_5"
    assert (layout.num_layers, layout.vocab_size, layout.max_context) == (64, 248320, 262144)
    assert len(layout.state.layers) == 48
    assert layout.state.layers[3] == RecurrentLayer(4, "gdn", 48, 16, 128, 128, "head", 10_240, 4)
    assert [layer.index for layer in layout.kv.layers] == list(range(3, 64, 4))
    assert layout.kv.layers[0] == AttentionLayer(3, "heads", 4, 256, 256, 24, Rotary(64, 1e7))


@pytest.mark.parametrize(
    ("name", "heads", "conv", "kv_heads", "query_heads"),
    [("granite-4.0-h-tiny", 48, 3328, 4, 12), ("granite-4.0-h-small", 128, 8448, 8, 32)],
)
def test_granite_4_h(name: str, heads: int, conv: int, kv_heads: int, query_heads: int) -> None:
    layout = layout_from_config(published(name))
    assert layout.architecture == "granite_hybrid"
    assert len(layout.state.layers) == 36
    assert layout.state.layers[0] == RecurrentLayer(0, "mamba2", heads, 1, 128, 64, "head", conv, 4)
    assert [layer.index for layer in layout.kv.layers] == [5, 15, 25, 35]
    assert layout.kv.layers[0] == AttentionLayer(5, "heads", kv_heads, 128, 128, query_heads)


def test_kimi_k3() -> None:
    config = published("kimi-k3")
    layout = layout_from_config(config)
    assert (layout.num_layers, len(layout.state.layers), len(layout.kv.layers)) == (93, 69, 24)
    kda = RecurrentLayer(0, "kda", 96, 96, 128, 128, "channel", 36_864, 4, "bounded")
    assert layout.state.layers[0] == kda
    assert layout.state.units_per_layer == (12_288,) * 69
    assert layout.state.temporal_bytes == 434_110_464
    assert layout.state.conv_bytes == 15_261_696
    assert gate_from_config(config) == Gate("bounded", lower_bound=-5.0)
    # the wrapper alone says enough where the text part does not name its type
    del config["text_config"]["model_type"], config["text_config"]["architectures"]
    assert layout_from_config(config) == layout


def test_qwen3_next_80b() -> None:
    layout = layout_from_config(published("qwen3-next-80b-a3b"))
    assert layout.architecture == "qwen3_next"
    assert (layout.num_layers, layout.vocab_size, layout.max_context) == (48, 151_936, 262_144)
    assert len(layout.state.layers) == 36
    assert layout.state.layers[3] == RecurrentLayer(4, "gdn", 32, 16, 128, 128, "head", 8192, 4)
    assert layout.state.temporal_bytes == 75_497_472
    assert layout.state.conv_bytes == 1_769_472
    assert [layer.index for layer in layout.kv.layers] == list(range(3, 48, 4))
    assert layout.kv.layers[0] == AttentionLayer(3, "heads", 2, 256, 256, 16, Rotary(64, 1e7))


def test_ling_3_flash() -> None:
    config = published("ling-3.0-flash")
    layout = layout_from_config(config)
    assert layout.architecture == "bailing_hybrid"
    assert len(layout.state.layers) == 35
    assert layout.state.layers[0] == RecurrentLayer(0, "kda", 32, 32, 128, 128, "channel", 12_288, 4, "bounded")
    assert [layer.index for layer in layout.kv.layers] == list(range(5, 42, 6))
    assert layout.kv.layers[0] == AttentionLayer(5, "latent", 1, 512, 64, 32, Rotary(64, 6e6))
    assert gate_from_config(config) == Gate("bounded", lower_bound=-5.0)
    assert gate_from_config(config | {"kda_safe_gate": False}) == Gate()
    # a fraction of the head dimension that the recurrent layers have
    assert layout_from_config(config | {"partial_rotary_factor": 0.5}) == layout


def test_glm_5_3_flash() -> None:
    config = published("glm-5.3-flash")
    layout = layout_from_config(config)
    assert layout.architecture == "glm5_next"
    assert (len(layout.state.layers), len(layout.kv.layers)) == (34, 11)
    assert layout.state.layers[3] == RecurrentLayer(4, "kda", 64, 64, 128, 128, "channel", 24_576, 4, "bounded")
    assert layout.kv.layers[0] == AttentionLayer(3, "latent", 1, 512, 0, 64)
    assert gate_from_config(config) == Gate("bounded", lower_bound=-5.0)
    del config["text_config"]["layer_types"]
    assert layout_from_config(config) == layout


def test_rwkv6_finch() -> None:
    config = published("rwkv6-finch-1b6")
    layout = layout_from_config(config)
    assert layout.architecture == "rwkv6"
    assert (layout.num_layers, layout.kv.layers, layout.kv.bytes_per_token) == (24, (), 0)
    assert layout.state.layers[5] == RecurrentLayer(5, "rwkv6", 32, 32, 64, 64, "channel", 4096, 2, "exponential")
    assert layout.state.temporal_bytes == 24 * 32 * 64 * 64 * 4
    # the last input of the time mix and of the channel mix
    assert layout.state.conv_bytes == 24 * 2 * 2048 * 2
    assert gate_from_config(config) == Gate("exponential")


def test_olmo_hybrid_7b() -> None:
    config = published("olmo-hybrid-7b")
    layout = layout_from_config(config)
    assert layout.architecture == "olmo_hybrid"
    assert len(layout.state.layers) == 24
    assert layout.state.layers[3] == RecurrentLayer(4, "gdn", 30, 30, 96, 192, "head", 11_520, 4)
    # a base that is null is no rotation, one that is missing is the host's default
    assert layout.kv.layers[0] == AttentionLayer(3, "heads", 30, 128, 128, 30)
    for rope in (None, {"rope_type": "default"}):
        assert layout_from_config(config | {"rope_parameters": rope}).kv.layers[0].rotary == Rotary(128, 1e4)
    del config["layer_types"]
    assert layout_from_config(config) == layout


def test_bamba_9b() -> None:
    layout = layout_from_config(published("bamba-9b"))
    assert layout.architecture == "bamba"
    assert len(layout.state.layers) == 29
    assert layout.state.layers[9] == RecurrentLayer(10, "mamba2", 128, 1, 128, 64, "head", 8448, 4)
    assert [layer.index for layer in layout.kv.layers] == [9, 18, 27]
    assert layout.kv.layers[0] == AttentionLayer(9, "heads", 8, 128, 128, 32, Rotary(64, 1e4))


def test_nemotron_h_8b() -> None:
    config = published("nemotron-h-8b")
    layout = layout_from_config(config)
    assert layout.architecture == "nemotron_h"
    assert (layout.num_layers, len(layout.state.layers)) == (52, 24)
    assert layout.state.layers[1] == RecurrentLayer(2, "mamba2", 128, 8, 128, 64, "head", 10_240, 4)
    assert [layer.index for layer in layout.kv.layers] == [7, 18, 29, 40]
    assert layout.kv.layers[0] == AttentionLayer(7, "heads", 8, 128, 128, 32)
    # the host reads the floor alone, not the limits beside it
    assert gate_from_config(config) == Gate(dt_min=0.001)
    # experts for MLPs, and a number of layers that the host ignores
    config |= {"hybrid_override_pattern": config["hybrid_override_pattern"].replace("-", "E"), "num_hidden_layers": 3}
    assert layout_from_config(config) == layout


def test_falcon_h1_7b() -> None:
    layout = layout_from_config(published("falcon-h1-7b"))
    assert layout.architecture == "falcon_h1"
    # both in every layer
    assert layout.num_layers == len(layout.state.layers) == len(layout.kv.layers) == 44
    assert layout.state.layers[0] == RecurrentLayer(0, "mamba2", 24, 1, 256, 128, "head", 3584, 4)
    assert layout.kv.layers[0] == AttentionLayer(0, "heads", 2, 128, 128, 12, Rotary(128, 1e11))


def test_zamba2_2_7b() -> None:
    config = published("zamba2-2.7b")
    layout = layout_from_config(config)
    assert layout.architecture == "zamba2"
    assert layout.num_layers == len(layout.state.layers) == 54
    assert layout.state.layers[6] == RecurrentLayer(6, "mamba2", 80, 1, 64, 64, "head", 5248, 4)
    # layers that share weights do not share a cache
    assert [layer.index for layer in layout.kv.layers] == [6, 12, 18, 24, 30, 36, 42, 47, 51]
    assert layout.kv.layers[0] == AttentionLayer(6, "heads", 32, 160, 160, 32)
    assert gate_from_config(config) == Gate(dt_min=0.001)
    long = layout_from_config(config | {"use_long_context": True, "use_mem_rope": True})
    assert (layout.max_context, long.max_context) == (4096, 16_384)
    assert long.kv.layers[0].rotary == Rotary(160, 1e4)


def test_what_the_embedded_host_runs() -> None:
    """Exactly what the table has a row for."""
    assert {name for name, row in ARCHITECTURES.items() if row.hosted} == {
        architecture_of(config().to_dict()).name for config in TABLE.values()
    }


@pytest.mark.parametrize("name", KNOWN)
def test_saved_by_the_host_gives_the_same_layout(name: str, tmp_path) -> None:
    expected = layout_from_config(published(name))
    config = AutoConfig.from_pretrained(CONFIGS / f"{name}.json")
    for form, native in (("whole", config), ("text", config.get_text_config())):
        native.save_pretrained(tmp_path / form)
        saved = json.loads((tmp_path / form / "config.json").read_text())
        assert layout_from_config(saved) == expected
        gate_from_config(saved)


@pytest.mark.parametrize("name", KNOWN)
def test_the_raw_dict_of_the_host_gives_the_same_layout(name: str) -> None:
    config = AutoConfig.from_pretrained(CONFIGS / f"{name}.json")
    assert layout_from_config(config.to_dict()) == layout_from_config(published(name))
    assert architecture_of(config.to_dict()) is architecture_of(published(name))


def test_dtype_of_the_host_changes_conv_and_kv_only() -> None:
    config = published("kimi-linear-48b-a3b")
    bf16, fp32 = layout_from_config(config), layout_from_config(config, dtype="float32")
    assert (bf16.dtype, fp32.dtype) == ("bfloat16", "bfloat16")
    assert fp32.state.temporal_bytes == bf16.state.temporal_bytes
    assert fp32.state.conv_bytes == 2 * bf16.state.conv_bytes
    assert fp32.kv.bytes_per_token == 2 * bf16.kv.bytes_per_token
    assert fp32.state.digest != bf16.state.digest
    assert fp32.kv.digest != bf16.kv.digest


def test_older_keys_mean_the_same() -> None:
    config = published("qwen3_5-27b")
    text = config["text_config"]
    del text["layer_types"], text["rope_parameters"], text["dtype"]
    text |= {"rope_theta": 10_000_000, "partial_rotary_factor": 0.25, "torch_dtype": "torch.bfloat16"}
    assert layout_from_config(config) == layout_from_config(published("qwen3_5-27b"))

    granite = published("granite-4.0-h-tiny")
    granite["layers_block_type"] = granite.pop("layer_types")
    granite["mamba_d_head"] = "auto"
    assert layout_from_config(granite) == layout_from_config(published("granite-4.0-h-tiny"))


def test_rope_scaling_is_kept() -> None:
    config = published("qwen3_5-27b")
    config["text_config"]["rope_parameters"] |= {"rope_type": "yarn", "factor": 4.0}
    assert layout_from_config(config).kv.layers[0].rotary == Rotary(64, 1e7, "yarn")
