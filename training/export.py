"""Make a loadable model directory from a run: ``python -m training.export --run training/runs/gdn --out DIR``.

Writes config, generation config, bf16 weights, tokenizer and chat template; ``card.py`` writes the model card.  The
run's folder needs its ``config.json`` and ``weights.safetensors``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from training.data import DATA
from training.model import CONTEXT, tied
from training.tokenizer import CHAT_TEMPLATE, END, END_OF_TEXT


def export(run: Path, out: Path, tokenizer_at: Path = DATA / "tokenizer") -> None:
    """Write everything that ``from_pretrained`` needs to ``out``."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_at)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(run))
    missing, unexpected = model.load_state_dict(load_file(run / "weights.safetensors"), strict=False)
    if unexpected or set(missing) - ({"lm_head.weight"} if tied(model) else set()):
        raise ValueError(f"weights do not fit: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    model = model.to(torch.bfloat16)
    stops = tokenizer.convert_tokens_to_ids([END, END_OF_TEXT])
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = stops, stops[1]
    model.generation_config = GenerationConfig(eos_token_id=stops, pad_token_id=stops[1], do_sample=False)
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.model_max_length = CONTEXT
    tokenizer.save_pretrained(out)
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    settings = json.loads((out / "tokenizer_config.json").read_text("utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that older releases know too
    for local in ("is_local", "local_files_only"):
        settings.pop(local, None)
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    (out / "model.safetensors").chmod(0o644)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make a loadable model directory from a run.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    export(options.run, options.out)
