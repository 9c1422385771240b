"""bf16: a resumed run is the uncached one to within the dtype, and equal where noise decides nothing."""

import pytest
import torch

from holdover.prefix.policies import Wanted
from tests.arch.table import ARCHITECTURES
from tests.engine.harness import Bench, distributions, prompt_of

PROMPT, FORCED = prompt_of(80), prompt_of(12, seed=5)


def run(name: str, *, chunk: int = 64, resume_at: int = 0) -> torch.Tensor:
    """Distributions along `FORCED` after `PROMPT`, whose first ``resume_at`` tokens come from the cache."""
    bench = Bench(name, dtype="bfloat16", chunk=chunk, policy=Wanted())
    if resume_at:
        bench.serve(PROMPT, tokens=1, request={"checkpoint_at": (resume_at,)})
    output = bench.serve(PROMPT, tokens=len(FORCED), forced=FORCED)
    assert output.cache.state_depth == resume_at
    return distributions(output.logprobs)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_resumed_equals_uncached(name: str) -> None:
    uncached = run(name)
    # what another order of the same sums does
    noise = max((run(name, chunk=chunk) - uncached).abs().max() for chunk in (48, 23))
    top = uncached.topk(2).values
    decided = top[:, 0] - top[:, 1] > 2 * noise
    for depth in (64, 41):
        resumed = run(name, resume_at=depth)
        assert (uncached.exp() * (uncached - resumed)).sum(-1).mean() <= 1e-3
        assert torch.equal(uncached.argmax(-1)[decided], resumed.argmax(-1)[decided])
        if depth == 64:
            # the recurrences' chunk: the same sums in the same order
            assert torch.equal(uncached, resumed)
    # routers flip on noise, so that it decides much in a mixture of experts
    assert "moe" in name or decided.float().mean() > 0.5
