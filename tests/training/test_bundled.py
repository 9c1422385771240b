"""The bundled model: complete, small, and it recalls."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.training import MODEL
from training.model import horizons
from training.score import answer_all, cases, transformers_engine
from training.state_check import TREATMENTS, Reader


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL)


def test_it_loads_whole():
    model, info = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16, output_loading_info=True)
    assert not any(info.values())
    assert model.config.architectures == ["Qwen3_5ForCausalLM"]
    assert (MODEL / "model.safetensors").stat().st_size <= 12 * 2**20
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_it_stops_at_the_ends(tokenizer):
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    stops = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert model.generation_config.eos_token_id == stops
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"


def test_its_horizons_span_orders_of_magnitude():
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    spread = torch.cat(list(horizons(model).values()))
    assert spread.quantile(0.1) < 100
    assert spread.quantile(0.9) > 1000


def test_treated_states_change_what_follows():
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    ids = torch.arange(300, 400).tolist()
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0, 70:-1]
        whole = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[71:]), reduction="none")
        reader = Reader(model, ids[:70])
        found = {name: reader.losses(ids[70:], treat) for name, treat in TREATMENTS.items()}
    assert torch.allclose(found["kept"], whole, atol=1e-3)
    gaps = [(found[name] - whole).abs().mean().item() for name in ("8 bits", "4 bits", "zero")]
    assert 0 < gaps[0] < gaps[1] < gaps[2]


def test_it_recalls(tokenizer):
    torch.set_num_threads(1)
    found = cases(tokenizer, 20, seed=11, data=None, lengths=(256,), tasks=("recall", "needle"))[:10]
    answers = answer_all(found, transformers_engine(MODEL, tokenizer, "cpu"), tokenizer, 4096)
    assert sum(given == case.answers for case, given in zip(found, answers, strict=True)) >= 9
