"""Re-rotation against direct rotation at the target, by definition and by the host's own code."""

from __future__ import annotations

import pytest
import torch
from transformers import BailingHybridConfig, GraniteMoeHybridConfig, Qwen3_5TextConfig
from transformers.models.bailing_hybrid.modeling_bailing_hybrid import (
    BailingHybridRotaryEmbedding,
    apply_rotary_pos_emb_interleave,
)
from transformers.models.granitemoehybrid import modeling_granitemoehybrid as granite
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

from holdover.arch.layout import Rotary
from holdover.errors import ConfigError
from holdover.ops.rotary import frequencies, rerotate
from tests.helpers import assert_close

HEADS, WIDTH = 2, 32
FAR = 262_000
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096}
SCALINGS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": YARN,
    "yarn-plain": {**YARN, "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn-steep": {**YARN, "beta_fast": 1.0, "beta_slow": 1.0, "truncate": False},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}


def rotated(keys: torch.Tensor, positions: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    """The definition, one pair and one token at a time, in float64."""
    out, half = keys.double().clone(), len(freqs)
    for n, position in enumerate(positions.tolist()):
        for i, frequency in enumerate(freqs):
            angle = (torch.tensor(float(position)) * frequency).double()
            x, y = keys[n, :, i].double(), keys[n, :, half + i].double()
            out[n, :, i] = x * angle.cos() - y * angle.sin()
            out[n, :, half + i] = y * angle.cos() + x * angle.sin()
    return out


def places(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(n)
    return torch.randint(0, 512, (n,), generator=g), torch.randint(0, FAR, (n,), generator=g)


@pytest.mark.parametrize("dims", [2, 8, 32])
def test_equals_direct_rotation_in_float64(dims: int) -> None:
    freqs = frequencies(Rotary(dims, 10_000.0))
    keys, (source, target) = torch.randn(9, HEADS, WIDTH, dtype=torch.float64), places(9)
    moved = rerotate(rotated(keys, source, freqs), source, target, freqs)
    assert_close("keys", moved, rotated(keys, target, freqs), 1e-12)
    assert torch.equal(moved[..., dims:], keys[..., dims:])


def test_there_and_back_is_where_it_was() -> None:
    freqs = frequencies(Rotary(WIDTH, 1e6))
    keys, (source, target) = torch.randn(5, HEADS, WIDTH, dtype=torch.float64), places(5)
    assert_close("keys", rerotate(rerotate(keys, source, target, freqs), target, source, freqs), keys, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_move_keeps_every_bit(dtype: torch.dtype) -> None:
    keys, (source, _) = torch.randn(5, HEADS, WIDTH).to(dtype), places(5)
    assert torch.equal(rerotate(keys, source, source, frequencies(Rotary(16, 1e4))), keys)


def test_bfloat16_is_rounded_once() -> None:
    freqs = frequencies(Rotary(WIDTH, 1e4))
    keys, (source, target) = torch.randn(7, HEADS, WIDTH).bfloat16(), places(7)
    exact = rerotate(keys.double(), source, target, freqs)
    moved = rerotate(keys, source, target, freqs)
    assert moved.dtype is torch.bfloat16
    assert_close("keys", moved, exact, 2**-8)


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("partial", [0.25, 1.0])
def test_equals_the_host_at_far_positions(name: str, partial: float) -> None:
    """The host rotates in fp32 by fp32 angles: frequencies must agree to the last bit. YaRN's constant moves along."""
    rope = {"rope_theta": 1e7, "partial_rotary_factor": partial, "mrope_section": [2, 1, 1], **SCALINGS[name]}
    config = Qwen3_5TextConfig(head_dim=WIDTH, rope_parameters=rope, max_position_embeddings=FAR)
    host = qwen.Qwen3_5TextRotaryEmbedding(config)
    freqs = frequencies(Rotary(int(WIDTH * partial), 1e7, rope["rope_type"]), config.rope_parameters)
    assert torch.equal(freqs, host.inv_freq)
    keys, (source, target) = torch.randn(11, HEADS, WIDTH), places(11)

    def direct(positions: torch.Tensor) -> torch.Tensor:
        cos, sin = host(keys, positions[None, None].expand(3, 1, -1))
        return qwen.apply_rotary_pos_emb(keys[None], keys[None], cos, sin, unsqueeze_dim=2)[1][0]

    assert_close("keys", rerotate(direct(source), source, target, freqs), direct(target), 2e-6)


def test_granite_with_positions() -> None:
    config = GraniteMoeHybridConfig(hidden_size=64, num_attention_heads=2, position_embedding_type="rope")
    host = granite.GraniteMoeHybridRotaryEmbedding(config)
    keys, (source, target) = torch.randn(6, HEADS, WIDTH), places(6)

    def direct(positions: torch.Tensor) -> torch.Tensor:
        cos, sin = host(keys, positions[None])
        return granite.apply_rotary_pos_emb(keys[None], keys[None], cos, sin, unsqueeze_dim=2)[1][0]

    freqs = frequencies(Rotary(WIDTH, config.rope_parameters["rope_theta"]))
    assert_close("keys", rerotate(direct(source), source, target, freqs), direct(target), 2e-6)


def test_interleaved_weights_are_cached_in_halves() -> None:
    """Latent attention's shared key part: the model pairs neighbours, what is cached pairs halves."""
    config = BailingHybridConfig(qk_rope_head_dim=WIDTH)
    host = BailingHybridRotaryEmbedding(config)
    keys, (source, target) = torch.randn(6, 1, WIDTH), places(6)

    def cached(positions: torch.Tensor) -> torch.Tensor:
        cos, sin = host(keys, positions[None])
        return apply_rotary_pos_emb_interleave(keys[None], keys[None], cos, sin, unsqueeze_dim=2)[1][0]

    freqs = frequencies(Rotary(WIDTH, config.rope_parameters["rope_theta"]))
    assert_close("keys", rerotate(cached(source), source, target, freqs), cached(target), 2e-6)


def test_one_position_off_is_noticed() -> None:
    freqs = frequencies(Rotary(WIDTH, 1e4))
    keys, (source, target) = torch.randn(6, HEADS, WIDTH), places(6)
    right, wrong = (rerotate(keys, source, t, freqs) for t in (target, target + 1))
    assert (right - wrong).norm() / right.norm() > 0.1


@pytest.mark.parametrize("scaling", ["dynamic", "longrope", "proportional"])
def test_refuses_what_depends_on_the_length(scaling: str) -> None:
    with pytest.raises(ConfigError, match=scaling):
        frequencies(Rotary(8, 1e4, scaling), {"factor": 2.0})


@pytest.mark.parametrize("scaling", ["linear", "yarn", "llama3"])
def test_refuses_missing_factors(scaling: str) -> None:
    with pytest.raises(ConfigError, match=r"rope_parameters\.factor is missing"):
        frequencies(Rotary(8, 1e4, scaling))
