"""A frozen trace in AIPerf's ``multi_turn`` format: a load generator that keeps the model's replies in the history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdover.evaluation.traces.trace import Dialogue, Trace, sampling_seed


def write_aiperf(trace: Trace, path: Path, *, seed: int, temperature: float) -> None:
    """Write one run of a trace, a conversation a line, for AIPerf's chat endpoint.

    AIPerf 0.13 refuses the file where a system message is empty, and leaves an empty reply of the model out of the
    history.

    Args:
        trace: the trace.
        path: file to write.
        seed: of the run.
        temperature: that requests are sampled at.
    """
    lines = (
        {"session_id": dialogue.id, "turns": list(_turns(dialogue, seed, temperature))} for dialogue in trace.dialogues
    )
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def _turns(dialogue: Dialogue, seed: int, temperature: float) -> Iterator[dict[str, Any]]:
    # a leading turn of a system message, with nothing but its text, is put in front of every request
    yield from ({"role": message["role"], "text": message["content"]} for message in dialogue.opening())
    for number, turn in enumerate(dialogue.turns):
        drawn = {"seed": sampling_seed(seed, dialogue.id, number), "temperature": temperature, "ignore_eos": True}
        # recorded questions may be empty: "text" must not be, one of "texts" may
        yield {"texts": [turn.text], "output_length": turn.max_tokens, "extra": drawn}
