"""Train and save the byte-level BPE tokenizer that all bundled models share.

    python -m training.tokenizer        # reads training/data/clean, writes training/data/tokenizer

4,096 tokens; digits are always single tokens, so a number's tokens do not depend on its neighbours; the chat
template is ChatML without any conditional content, so a conversation's rendering plus a reply is always a textual
prefix of the next turn's rendering.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from training.data import DATA, row_text, rows

VOCABULARY = 4096
START, END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# tools, which the model never saw, so that programs which use them can be tried with it
CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\\n' }}{% if messages[0]['role'] == 'system' %}"
    "{{ messages[0]['content'] + '\\n\\n' }}{% set messages = messages[1:] %}{% endif %}{{ 'Functions:\\n' }}"
    "{% for tool in tools %}{{ (tool | tojson) + '\\n' }}{% endfor %}"
    '{{ \'A call is written as <tool_call>{"name": ..., "arguments": {...}}</tool_call>.<|im_end|>\\n\' }}{% endif %}'
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '\\n<tool_call>\\n{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' }}"
    "{% set arguments = call['function']['arguments'] %}"
    "{% if arguments is string %}{{ arguments }}{% else %}{{ arguments | tojson }}{% endif %}"
    "{{ '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def render(messages: Sequence[dict[str, str]], add_generation_prompt: bool = False) -> str:
    """The chat template without tools: the same text as ``apply_chat_template(..., tokenize=False)``, much faster."""
    text = "".join(f"{START}{m['role']}\n{m['content']}{END}\n" for m in messages)
    return text + (f"{START}assistant\n" if add_generation_prompt else "")


def _corpus(megabytes: float) -> Iterator[str]:
    """A shuffled share of the clean text, then samples of the tasks, so that their words get whole tokens."""
    from training.tasks import TASKS, Sampler

    documents = rows("train")
    random.Random(2).shuffle(documents)
    size = 0
    for row in documents:
        text = row_text(row)
        size += len(text)
        if size > megabytes * 1e6:
            break
        yield text
    sampler = Sampler(filler=["It was a quiet day."], count=lambda text: len(text) // 3)
    rng = random.Random(3)
    for _ in range(3000):
        sample = sampler.make(rng.choice(list(TASKS)), rng, budget=500, turns=4)
        yield "\n".join(m["content"] for m in sample.messages)


def train(out: Path, megabytes: float = 30.0) -> PreTrainedTokenizerFast:
    """Train on ``megabytes`` of text and write the tokenizer's files to ``out``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(megabytes), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END_OF_TEXT,
        extra_special_tokens=[START],
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(out)
    return fast


if __name__ == "__main__":
    trained = train(DATA / "tokenizer")
    print(f"{len(trained)} tokens written to {DATA / 'tokenizer'}")
