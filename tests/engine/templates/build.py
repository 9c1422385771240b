"""Engines on tiny random models, with tokenizers that carry a chat template, and conversations for them.

The templates are written for these tests, each to the rule of the one that its family was published with: what of
earlier turns it renders again, and how. Their wording is shorter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from holdover.arch.registry import layout_from_config
from holdover.engine.engine import Engine
from holdover.engine.hf.host import HostModel
from holdover.engine.hf.loader import Loaded
from holdover.engine.hf.tokenizer import Tokenizer
from holdover.engine.options import EngineOptions
from holdover.engine.sampling import SamplingDefaults
from holdover.prefix.policies import DEFAULT_POLICY, CheckpointPolicy
from tests.arch.table import ARCHITECTURES, _randomise
from tests.engine.harness import budgets
from tests.server.tiny import build_tokenizer

CONTEXT, VOCAB = 2048, 384
_THINK = ("<think>", "</think>")
_KIMI = (
    *("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)


@dataclass(frozen=True)
class Form:
    """A chat template and whose it is.

    Attributes:
        name: its file.
        row: row of the architecture table.
        special: its special tokens, beside those of ChatML.
        knows_tools: whether it renders calls.
        options: variables that it is given.
    """

    name: str
    row: str
    special: tuple[str, ...] = ()
    knows_tools: bool = True
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return (Path(__file__).parent / f"{self.name}.jinja").read_text(encoding="utf-8").removesuffix("\n")


FORMS = {
    "qwen3_5": Form("qwen3_5", "qwen3_5", _THINK),
    "qwen3_5-no-thinking": Form("qwen3_5", "qwen3_5", _THINK, options={"enable_thinking": False}),
    "qwen3_next": Form("qwen3_next", "qwen3_next_moe", _THINK),
    "qwen3_coder": Form("qwen3_coder", "qwen3_next_moe"),
    "kimi_linear": Form("kimi_linear", "kimi_linear", _KIMI),
    "granite_hybrid": Form(
        "granite_hybrid", "granite_hybrid", ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>")
    ),
    "nemotron_h": Form("nemotron_h", "nemotron_h_moe", ("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>")),
    "olmo_hybrid": Form("olmo_hybrid", "olmo_hybrid"),
    "bailing_hybrid": Form("bailing_hybrid", "bailing_hybrid_moe", ("<role>", "</role>", "<|role_end|>")),
    "bailing_hybrid-thinking": Form(
        "bailing_hybrid",
        "bailing_hybrid_moe",
        ("<role>", "</role>", "<|role_end|>"),
        options={"enable_thinking": True},
    ),
    "falcon_h1": Form("falcon_h1", "falcon_h1"),
    "bamba": Form("bamba", "bamba", knows_tools=False),
    "zamba2": Form("zamba2", "zamba2", knows_tools=False),
}
FORMS = {name: form for name, form in FORMS.items() if form.row in ARCHITECTURES}


@cache
def host_of(row: str) -> HostModel:
    """A random model of a row; the same size for all tokenizers, so that forms of one family share it."""
    config = ARCHITECTURES[row]()
    config.vocab_size, config.max_position_embeddings = VOCAB, CONTEXT
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        _randomise(model)
    return HostModel(model.eval(), layout_from_config(model.config.to_dict(), dtype="float32"))


def tokenizer_of(form: Form, folder: Path) -> Tokenizer:
    """The tokenizer of a form, kept in ``folder``."""
    build_tokenizer(form.text, form.special).save_pretrained(folder)
    return Tokenizer(folder)


def build_engine(form: Form, folder: Path, policy: CheckpointPolicy = DEFAULT_POLICY) -> Engine:
    """An engine of a random model of the form's family; ``folder`` is for its tokenizer."""
    tokenizer, host = tokenizer_of(form, folder), host_of(form.row)
    loaded = Loaded(
        name=form.name,
        host=host,
        tokenizer=tokenizer,
        model_digest=form.name,
        dtype="float32",
        defaults=SamplingDefaults(),
        end_tokens=tokenizer.end_tokens,
    )
    sizes = budgets(host.layout, slots=24, rows=4 * CONTEXT)
    return Engine(loaded, EngineOptions(**sizes, policy=policy, chunk_size=256, poison=True, decode="dense"))


RAIN = {
    "type": "function",
    "function": {
        "name": "rain",
        "description": "Will it rain?",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def conversation(form: Form, *, system: bool, tools: bool) -> list[dict[str, Any]]:
    """Turns of a user with replies between them that think, and call tools twice if there are any."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}] if system else []
    messages += [_user("Will it rain in Oslo?")]
    if tools:
        for number, city in enumerate(("Oslo", "Bergen")):
            name = f"functions.rain:{number}"
            call = {"id": name, "type": "function", "function": {"name": "rain", "arguments": {"city": city}}}
            messages += [
                _assistant(f"Ask for {city}.", "", tool_calls=[call]),
                {"role": "tool", "tool_call_id": name, "content": f"no rain in {city}"},
            ]
    return [
        *messages,
        _assistant("Nothing says so.", "No, it stays dry."),
        _user("And the cat?"),
        _assistant("Cats like the mat.", "It sat on the mat."),
        _user("Thanks."),
    ]


def prompts(messages: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What a client sends: the conversation up to each message that wants a reply."""
    return [messages[: i + 1] for i, message in enumerate(messages) if message["role"] in ("user", "tool")]


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(thought: str, text: str, **further: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "reasoning_content": thought, **further}
