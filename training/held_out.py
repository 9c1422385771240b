"""Loss on held-out text: ``python -m training.held_out assets/models/tiny-gdn --json held_out.json``.

Rows of ``--length`` tokens from ``training/data/tokens/held_out.bin`` (documents that training never saw).
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from training.data import DATA


@torch.inference_mode()
def held_out_loss(path: Path, rows: int, length: int, tokens: Path, batch: int = 4) -> dict[str, float | int]:
    """Mean cross entropy (nats a token) of evenly spaced rows, predicting every token but a row's first."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    text = np.memmap(tokens, np.uint16, "r")
    starts = np.linspace(0, len(text) - length - 1, rows).astype(int)
    total = 0.0
    for at in range(0, rows, batch):
        ids = torch.from_numpy(np.stack([text[s : s + length] for s in starts[at : at + batch]]).astype(np.int64))
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)
        total += torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="sum").item()
    mean = total / (rows * (length - 1))
    return {"rows": rows, "length": length, "loss": mean, "perplexity": math.exp(mean)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Loss on held-out text.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--tokens", type=Path, default=DATA / "tokens" / "held_out.bin")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = held_out_loss(options.model, options.rows, options.length, options.tokens)
    print(json.dumps(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
