"""What a simulation replays: conversations of a frozen trace or requests of a block-hash trace, for one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdover.arch.layout import ModelLayout
from holdover.arch.registry import layout_from_config
from holdover.engine.hf.tokenizer import Tokenizer
from holdover.errors import ConfigError
from holdover.evaluation.traces.block_prompts import block_exchanges
from holdover.evaluation.traces.blocks import BLOCK, BlockTrace, is_block_trace, read_blocks
from holdover.evaluation.traces.exchanges import Exchange
from holdover.evaluation.traces.prompts import exchanges_of
from holdover.evaluation.traces.trace import read_trace
from holdover.retention.decay import ModelDecay, read_decay
from holdover.weights.source import resolve


@dataclass(frozen=True)
class Work:
    """A model without its weights, and what is asked of it.

    Attributes:
        layout: the model's, in the dtype it runs in.
        decay: its decay parameters.
        dialogues: conversations, in the order in which they start.
        digest: of the trace.
        passed_over: what of the file is not in it, in words; empty if all is.
    """

    layout: ModelLayout
    decay: ModelDecay
    dialogues: Sequence[Sequence[Exchange]]
    digest: str
    passed_over: str = ""


def read_work(path: Path, model: str | None, dtype: str, requests: int | None = None, block: int | None = None) -> Work:
    """Read a trace for a model; its rows say of which kind it is.

    Args:
        path: the trace.
        model: name or directory; the one that a frozen trace was made for if None.
        dtype: that the model runs in.
        requests: most requests to take of a block-hash trace; None for all.
        block: tokens of its blocks; None for 512.

    Raises:
        ConfigError: the trace names no model, or is not of the kind that the other arguments are for.
        HoldoverError: the trace or the model cannot be used.
    """
    if not is_block_trace(path):
        frozen = read_trace(path)
        if requests is not None or block is not None:
            raise ConfigError(f"{path} is a frozen trace: --requests and --block are for traces of block hashes")
        files = resolve(model or frozen.model)
        tokenizer = Tokenizer(files.path)
        dialogues = exchanges_of(frozen, tokenizer, tokenizer.end_tokens)
        return Work(layout_from_config(files.config, dtype=dtype), read_decay(files), dialogues, frozen.digest)
    if model is None:
        raise ConfigError(f"{path} is a trace of block hashes, which names no model: say --model")
    files = resolve(model)
    layout = layout_from_config(files.config, dtype=dtype)
    trace = read_blocks(path, context=layout.max_context, block=block or BLOCK, limit=requests)
    exchanges = block_exchanges(trace, layout.vocab_size)
    return Work(layout, read_decay(files), [[one] for one in exchanges], trace.digest, _passed_over(trace, layout))


def _passed_over(trace: BlockTrace, layout: ModelLayout) -> str:
    said = {
        f"{trace.skipped} rows that are no requests": trace.skipped,
        f"{trace.too_long} longer than the model's context of {layout.max_context} tokens": trace.too_long,
        "a last row that was cut off": trace.is_truncated,
    }
    left = ", ".join(text for text, count in said.items() if count)
    return f"{len(trace.requests)} requests taken; passed over: {left}" if left else ""
