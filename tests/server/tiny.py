"""A random model in a directory as users have them, with a tokenizer and a chat template, made in a second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from tests.arch.table import ARCHITECTURES

START, END = "<|im_start|>", "<|im_end|>"
CONTEXT = 1024
# a turn never reaches back into the one before it: what was rendered once is a prefix of every later rendering
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' and not loop.first %}{{ raise_exception('system comes first') }}{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT = "the cat sat on the mat and the dog sat on the cat, then user and assistant said hello to the system"


def save(folder: Path, seed: int = 0, *, template: str = TEMPLATE, special: Sequence[str] = ()) -> Path:
    """Write the model's files; the same seed gives the same model.

    Args:
        folder: where to.
        seed: of the weights.
        template: chat template.
        special: further special tokens.
    """
    tokenizer = build_tokenizer(template, special)
    config = ARCHITECTURES["qwen3_5"]()
    config.num_hidden_layers, config.layer_types = 2, ["linear_attention", "full_attention"]
    config.vocab_size = len(tokenizer)
    config.max_position_embeddings = CONTEXT
    config.eos_token_id = tokenizer.eos_token_id
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def build_tokenizer(template: str, special: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Bytes, a few words, and marks; a line break is a token of its own."""
    bpe = Tokenizer(models.BPE())
    # a line break is a token of its own, whatever follows it
    lines = pre_tokenizers.Split(Regex("\n"), "isolated")
    bpe.pre_tokenizer = pre_tokenizers.Sequence([lines, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    marks = [START, END, *special]
    trainer = trainers.BpeTrainer(
        vocab_size=318 + len(marks), special_tokens=marks, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator([_TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, chat_template=template)
