"""What `holdover simulate` predicts for measured servers, and for those that were not measured."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from benchmarks import common
from benchmarks.common import Row
from benchmarks.serve_grid import Arm, Setup, groups, setup_of
from benchmarks.serve_models import SHAPES, drawn_decay, word_tokenizer
from benchmarks.serve_traces import PRESETS, RECORDING, SOURCE, frozen, words
from holdover.arch.layout import ModelLayout
from holdover.arch.registry import layout_from_config
from holdover.engine.hf.tokenizer import Tokenizer
from holdover.engine.options import EngineOptions
from holdover.errors import ConfigError, HoldoverError
from holdover.evaluation.simulate.costs import Costs, costs_of
from holdover.evaluation.simulate.simulate import Prediction, simulate
from holdover.evaluation.traces.exchanges import Exchange
from holdover.evaluation.traces.prompts import exchanges_of
from holdover.prefix.eviction import Eviction
from holdover.retention import RetentionPlan
from holdover.retention.decay import ModelDecay, read_decay
from holdover.weights.source import resolve

# W_max of the paper's grid (App. C.3)
WINDOWS = (16, 64, 128, 512)
ARMS: tuple[Arm, ...] = ("nr", "wr")
# budgets below those that are measured, for other orders of eviction
_SMALLER = (1 / 8, 1 / 4)


@dataclass(frozen=True)
class Simulated:
    """A model without its weights, and what is asked of it.

    Attributes:
        layout: in the dtype that it ran in.
        decay: its decay parameters.
        dialogues: every conversation's exchanges.
        costs: of its forwards and its server.
        about: what the results say of it.
    """

    layout: ModelLayout
    decay: ModelDecay
    dialogues: list[list[Exchange]]
    costs: Costs
    about: dict[str, Any]

    def predict(self, setup: Setup) -> Prediction | None:
        """One server; None where its budget is too small."""
        requests = self.about["trace"]["requests"]
        plan = None if setup.w_max is None else RetentionPlan.of(self.decay, setup.w_max)
        options = EngineOptions(
            state_budget=int(setup.share * requests * self.layout.state.checkpoint_bytes),
            kv_budget=self.about["kv_budget"],
            max_running=setup.server_limit,
            chunk_size=self.about["chunk_size"],
            plan=plan,
            element=setup.element,
            refresh=setup.refresh,
            eviction=setup.eviction,
            decode="dense",
        )
        clients = self.about["scale"]["clients"]
        try:
            return simulate(self.layout, options, self.dialogues, clients=clients, costs=self.costs)
        except ConfigError:
            return None


def simulated(about: dict[str, Any], recording: Path | None = None) -> Simulated:
    """What a file of results says of a model, made again.

    Args:
        about: the model and its trace.
        recording: what it was asked, unless that comes with Holdover or was pasted together.

    Raises:
        HoldoverError: the recording is missing, or the trace that is made of it is another one.
    """
    name = about["name"]
    costs, told = costs_of(about["costs"]), _recording(about["trace"]["source"], recording)
    with tempfile.TemporaryDirectory() as folder:
        if name in SHAPES:
            known = word_tokenizer(words(told))
            known.save_pretrained(folder)
            path, decay = Path(folder), drawn_decay(name, len(known))
            layout = decay.layout
        else:
            files = resolve(name)
            path, decay = files.path, read_decay(files)
            layout = layout_from_config(files.config, dtype=costs.dtype)
        trace = frozen(name, path, PRESETS[about["trace"]["preset"]], told, words_only=name in SHAPES)
        if trace.digest != about["trace"]["digest"]:
            raise HoldoverError(f"the trace of {name} was {about['trace']['digest']}, and is {trace.digest} here")
        tokenizer = Tokenizer(path)
        dialogues = exchanges_of(trace, tokenizer, tokenizer.end_tokens)
        if name not in SHAPES:
            dialogues = [[unrepeated(exchange) for exchange in dialogue] for dialogue in dialogues]
        return Simulated(layout, decay, dialogues, costs, about)


def _recording(source: str, given: Path | None) -> Path | None:
    """The recording of that name; None for pasted conversations."""
    if source == SOURCE:
        return None
    if source == RECORDING.name:
        return RECORDING
    if given is None:
        raise HoldoverError(f"{source} was asked, which does not come with Holdover: say where it is with --recording")
    return given


def unrepeated(exchange: Exchange) -> Exchange:
    """The same with a reply that the next prompt does not begin with, so that the turn resumes at a message boundary.

    What a bundled model says at a temperature of 1 is rarely tokenised as it was generated: within a few tokens its
    text, sent back, gives others. A shape's tokens are words, which are the same again.
    """
    first, *rest = exchange.reply
    return replace(exchange, reply=(abs(first - 1), *rest))


def predicted(rows: Sequence[Row], models: Sequence[dict[str, Any]], recording: Path | None = None) -> list[Row]:
    """The rows of servers on one device with what the simulation says of each, by the costs of the row's own call."""
    made = {(about["name"], about["call"]): simulated(about, recording) for about in models if "costs" in about}
    found: dict[tuple[Setup, str], dict[str, Any]] = {}
    servers = [(setup, call) for setup, call in groups(rows) if setup.ranks == 1 and (setup.model, call) in made]
    with common.progress("simulating", len(servers)) as advance:
        for setup, call in servers:
            prediction = made[setup.model, call].predict(setup)
            if prediction is not None:
                found[setup, call] = asdict(prediction)
            advance()
    return [row | ({"predicted": p} if (p := found.get((setup_of(row), row["call"]))) else {}) for row in rows]


def filled(rows: Sequence[Row], models: Sequence[dict[str, Any]], recording: Path | None = None) -> list[Row]:
    """What a call did not measure, simulated: the rest of the paper's grid, and other orders of eviction.

    Every row says that it is simulated.
    """
    measured, jobs = groups(rows), []
    for about in (about for about in models if "costs" in about):
        made = simulated(about, recording)
        wanted = dict.fromkeys([*_grid(about), *_orders(about)])
        jobs += [partial(_filled, made, setup) for setup in wanted if (setup, about["call"]) not in measured]
    found = []
    with common.progress("simulating the grid", len(jobs)) as advance:
        for job in jobs:
            found += job()
            advance()
    return found


def _grid(about: dict[str, Any]) -> Iterator[Setup]:
    scale = about["scale"]
    points = [(share, scale["limits"][0]) for share in scale["shares"]]
    points += [(scale["shares"][0], limit) for limit in scale["limits"][1:]]
    for share, limit in points:
        yield Setup(about["name"], "dense", None, share, limit)
        for w_max in WINDOWS:
            yield from (Setup(about["name"], arm, w_max, share, limit) for arm in ARMS)


def _orders(about: dict[str, Any]) -> Iterator[Setup]:
    """The dense arm and the chosen one under every order of eviction, at smaller budgets as well."""
    scale, orders = about["scale"], get_args(Eviction)
    for share in sorted({*_SMALLER, *scale["shares"]}):
        dense = Setup(about["name"], "dense", None, share, scale["limits"][0])
        chosen = replace(dense, arm="nr", w_max=scale["windows"][0], element=scale["element"])
        yield from (replace(setup, eviction=one) for setup in (dense, chosen) for one in orders)


def _filled(made: Simulated, setup: Setup) -> list[Row]:
    prediction = made.predict(setup)
    about = {"call": made.about["call"], "simulated": True}
    return [] if prediction is None else [asdict(setup) | about | asdict(prediction)]
