"""Treated states in every architecture's cache: kept is exact, and the rougher the treatment, the further off."""

import pytest
import torch

from training.forwards import FORWARDS
from training.model import build
from training.state_check import TREATMENTS, Reader


@pytest.mark.parametrize("architecture", FORWARDS)
def test_treated_states_change_what_follows(architecture):
    model = build(architecture, 300, "micro").eval()
    ids = torch.randint(0, 300, (100,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.inference_mode():
        for parameter in model.parameters():
            parameter *= 4.0 if parameter.ndim == 2 else 1.0
        logits = model(input_ids=torch.tensor([ids])).logits[0, 70:-1]
        whole = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[71:]), reduction="none")
        reader = Reader(model, ids[:70])
        found = {name: reader.losses(ids[70:], treat) for name, treat in TREATMENTS.items()}
    assert torch.allclose(found["kept"], whole, atol=1e-3)
    gaps = [(found[name] - whole).abs().mean().item() for name in ("8 bits", "4 bits", "zero")]
    assert 0 < gaps[0] < gaps[1] < gaps[2]
