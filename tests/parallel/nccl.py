"""One rank of an engine over GPUs, under torchrun; or, without it, the engine of one process that it is compared with.

A conversation on the bundled model in every placement; what was answered is written as JSON.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from holdover import Engine, SamplingParams
from holdover.engine.parallel.ranks import Ranks
from holdover.engine.request import Output
from holdover.weights.bundled import DEFAULT_MODEL
from tests.parallel.cases import MODES

PROMPT = "The history of the town begins with a market, held where two roads meet. " * 20
FURTHER = " Later it grew"
TOKENS = 40
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "device": "cuda",
    "state_budget": 64 << 20,
    "kv_budget": 64 << 20,
    "plan": "auto",
    "refresh": "suffix",
}


def main(target: Path, *, is_alone: bool) -> None:
    found = {}
    with nullcontext() if is_alone else Ranks.join("cuda") as ranks:
        for mode in MODES:
            placed = {} if ranks is None else {"ranks": ranks, "placement": mode}
            engine = Engine.from_pretrained(DEFAULT_MODEL, **OPTIONS, **placed)
            if ranks is not None and not ranks.leads:
                engine.follow()
                continue
            with engine:
                found[mode] = [report(output) for output in conversation(engine)]
                engine.core.check_integrity()
    if found:
        target.write_text(json.dumps(found))


def conversation(engine: Engine) -> list[Output]:
    """A prompt, and its continuation, which resumes where the first one ended."""
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, logprobs=5, ignore_eos=True)
    first = engine.generate([PROMPT], params)[0]
    further = engine.loaded.tokenizer.encode(FURTHER)
    following = [*first.prompt_token_ids, *first.token_ids, *further]
    return [first, engine.generate([following], params)[0]]


def report(output: Output) -> dict[str, Any]:
    """What is compared of one answer."""
    return {
        "tokens": output.token_ids,
        "logprobs": [entry.logprob for entry in output.logprobs or ()],
        "depth": output.cache.state_depth,
        "tier": output.cache.tier,
        "refresh_tokens": output.cache.refresh_tokens,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_alone="--alone" in sys.argv)
