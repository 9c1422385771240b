"""Models of random weights for serving benchmarks: published shapes, decay parameters drawn to published statistics.

They are written to a directory with a tokenizer of words, once, and loaded from there like any other model. What such a
model says means nothing; its text gives the same tokens again, so that a next turn finds the end of the reply.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    KimiLinearConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3NextConfig,
)

from benchmarks.random_models import three_to_one
from benchmarks.serve_decay import Horizons, horizon_of, softplus_bias
from holdover.arch.registry import architecture_of, gate_from_config, layout_from_config
from holdover.errors import HoldoverError
from holdover.retention.decay import LayerDecay, ModelDecay

CONTEXT = 16_384
_SPECIAL = ("[UNK]", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for message in messages %}<|im_start|> {{ message['role'] }} {{ message['content'] }} <|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)
# tokens that stand for something else than words are left unlikely: a word's logits are this many deviations wide
_SPREAD = 3.0
_MULTIPLE = 128


@dataclass(frozen=True)
class Shape:
    """A published shape, with fewer layers.

    Attributes:
        config: its configuration, for so many layers and tokens of vocabulary.
        layers: of the benchmark's model.
        in_full: of the published model.
        horizons: how its units' horizons are distributed.
        windows: W_max of the paper's operating point, and a second one.
        shares: state budgets, as shares of the trace's dense working set, fixed by simulation before any server ran:
            where arms were predicted to differ most under the paper's order of eviction, and two smaller ones.
        note: how the shape differs from what was published, beside its layers and its vocabulary.
    """

    config: Callable[[int, int], PreTrainedConfig]
    layers: int
    in_full: int
    horizons: Horizons
    windows: tuple[int, int]
    shares: tuple[float, ...]
    note: str


# of every shape; 2 is what ends a reply
_ALIKE: dict[str, Any] = {
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 2,
}


def _kda(layers: int, vocabulary: int, *, hidden: int, heads: int, mlp: int, attention_heads: int) -> PreTrainedConfig:
    return KimiLinearConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=attention_heads,
        num_key_value_heads=attention_heads,
        layer_types=three_to_one(layers),
        mlp_layer_types=["dense"] * layers,
        linear_num_heads=heads,
        **_ALIKE,
    )


def _kimi_linear(layers: int, vocabulary: int) -> PreTrainedConfig:
    return _kda(layers, vocabulary, hidden=2304, heads=32, mlp=9216, attention_heads=32)


def _kimi_k3(layers: int, vocabulary: int) -> PreTrainedConfig:
    return _kda(layers, vocabulary, hidden=7168, heads=96, mlp=9216, attention_heads=96)


def _qwen3_next(layers: int, vocabulary: int) -> PreTrainedConfig:
    return Qwen3NextConfig(
        vocab_size=vocabulary,
        intermediate_size=11 * 512,
        num_hidden_layers=layers,
        layer_types=three_to_one(layers),
        mlp_only_layers=list(range(layers)),
        **_ALIKE,
    )


_DENSE = "a dense MLP as wide as the active experts"
# medians of the one-step decay as printed (§3.2); other shares solve Eq. 6 for the printed ratios of §5.3, with the
# bytes of the whole model's conv states; shares within heads and layers follow Figures 6 and 8
SHAPES = {
    "kimi-linear": Shape(
        _kimi_linear,
        layers=8,
        in_full=27,
        horizons=Horizons(
            ((1, 1), (horizon_of(0.471), 0.5), (16, 0.357), (64, 0.1116), (128, 0.0353), (512, 0.0016), (4096, 0)),
            of_head=0.82,
            of_layer=0.08,
        ),
        windows=(16, 64),
        shares=(0.5, 0.375, 0.25),
        note=_DENSE,
    ),
    "qwen3-next": Shape(
        _qwen3_next,
        layers=8,
        in_full=48,
        horizons=Horizons(
            ((2, 1), (16, 0.907), (64, 0.752), (128, 0.616), (horizon_of(0.969), 0.5), (512, 0.388), (65536, 0)),
            of_head=0.7,
            of_layer=0.2,
        ),
        windows=(64, 128),
        shares=(0.67, 0.5, 0.25),
        note=_DENSE,
    ),
    "kimi-k3": Shape(
        _kimi_k3,
        layers=4,
        in_full=93,
        horizons=Horizons(
            ((4, 1), (64, 0.608), (horizon_of(0.942), 0.5), (128, 0.48), (512, 0.262), (65536, 0)),
            of_head=0.4,
            of_layer=0.1,
        ),
        windows=(64, 128),
        shares=(0.625, 0.375, 0.25),
        note="Kimi-Linear's softplus gate in place of the bounded one, and a narrower dense MLP for its experts",
    ),
}


def drawn_decay(name: str, vocabulary: int) -> ModelDecay:
    """Decay parameters of a shape's model, without the model."""
    shape = SHAPES[name]
    config = shape.config(shape.layers, vocabulary).to_dict() | {"dtype": "bfloat16"}
    layout = layout_from_config(config)
    drawn = shape.horizons.draw(layout.state.layers)
    # as the files have them
    layers = (
        LayerDecay(torch.zeros(layer.heads), softplus_bias(horizons).to(torch.bfloat16))
        for layer, horizons in zip(layout.state.layers, drawn, strict=True)
    )
    return ModelDecay(architecture_of(config).name, layout, gate_from_config(config), "drawn", tuple(layers))


def word_tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    """A token for each word, whose text is the words with blanks between them."""
    known = [*_SPECIAL, *dict.fromkeys(["user", "assistant", "system", *words])]
    known += [f"word{i}" for i in range(-len(known) % _MULTIPLE)]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token=_SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=_SPECIAL[0],
        eos_token=_SPECIAL[2],
        additional_special_tokens=list(_SPECIAL[1:2]),
        chat_template=_TEMPLATE,
    )


def write_model(name: str, folder: Path, words: list[str], device: str, *, shape: Shape | None = None) -> Path:
    """Write a model of a shape unless it is there; the weights are the same on the same kind of device.

    Args:
        name: of `SHAPES`.
        folder: where to.
        words: vocabulary.
        device: where weights are drawn.
        shape: another shape under that name (tests).

    Raises:
        HoldoverError: another model is there.
    """
    chosen, tokenizer = shape or SHAPES[name], word_tokenizer(words)
    config: Any = chosen.config(chosen.layers, len(tokenizer))
    if folder.exists():
        _check(folder, json.loads(config.to_json_string()))
        return folder
    # several processes may do so at a time: what stands there is always whole
    part = folder.with_name(f"{folder.name}.{os.getpid()}")
    layout = layout_from_config(config.to_dict(), dtype="bfloat16")
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    architecture, parameters = architecture_of(config.to_dict()), dict(model.named_parameters())
    with torch.no_grad():
        for layer, horizons in zip(layout.state.layers, chosen.horizons.draw(layout.state.layers), strict=True):
            names = architecture.loaded.under(architecture.prefix(layer.index, parameters, "loaded"))
            if names.a_log is not None:
                parameters[names.a_log].zero_()
            bias = parameters[names.dt_bias]
            bias.copy_(softplus_bias(horizons).view(bias.shape))
        head = model.get_output_embeddings().weight
        head.normal_(std=_SPREAD / config.hidden_size**0.5)
        head[: len(_SPECIAL)].zero_()
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    (part / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}), encoding="utf-8")
    try:
        part.rename(folder)
    except OSError:
        shutil.rmtree(part)
    return folder


def _check(folder: Path, wanted: dict[str, Any]) -> None:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HoldoverError(f"{folder} is there and holds no model: remove it, or choose another folder") from error
    names = [name for name, value in wanted.items() if found.get(name) != value and name != "transformers_version"]
    if names:
        raise HoldoverError(
            f"{folder} holds another model, by {', '.join(names)} in config.json: remove it, or choose another folder"
        )
