"""How far a composed context is from the true one, layer by layer: its state and rows, and what the query reads."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from holdover.chunks import state_errors
from holdover.chunks.diagnosis import relative_error
from holdover.engine.chunks.probe import attention_layers
from holdover.engine.step import Span
from holdover.evaluation.chunks.view import Side, View

# of recurrent layers, the state in front of the query; of attention layers, the context's rows (their two planes), and
# what the query's tokens get of them
STATE, ATTENDED = "state", "attended"
_PLANES = {"heads": ("keys", "values"), "latent": ("latents", "rotary keys")}

# relative errors by part and layer
LayerErrors = dict[str, dict[int, float]]


class Depth:
    """Compares what is composed of one case with the truth.

    Args:
        view: the case. The query is run over the true context here, on the work slot.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        view.tiers.native.pool.copy(view.true.slot, view.work)
        self._attended = _attended(view, Side(view.work, view.true.rows))

    def errors(self) -> LayerErrors:
        """Relative errors of what was composed last, which is used up."""
        view, planes = self._view, self._view.runner.kv.planes
        pool, end = view.tiers.native.pool, view.assembly.query.start
        found: LayerErrors = {STATE: state_errors(pool, view.made.slot, view.true.slot).layers}
        for layer in attention_layers(view.runner):
            for name, plane in zip(_PLANES[layer.kind], planes(layer.index), strict=True):
                made, true = (plane[side.rows[:end].to(plane.device)] for side in (view.made, view.true))
                found.setdefault(name, {})[layer.index] = relative_error(made, true)
        for index, read in _attended(view, view.made).items():
            found.setdefault(ATTENDED, {})[index] = relative_error(read, self._attended[index])
        return found


def _attended(view: View, side: Side) -> Mapping[int, Tensor]:
    """Readouts of the query's tokens ``[Q, heads, d_v]`` by layer. Mutates the slot and the query's rows."""
    found: dict[int, Tensor] = {}

    def tap(layer: int, name: str, x: torch.Tensor) -> None:
        if name == "attended":
            found[layer] = x[0].clone()

    query = view.assembly.query
    span = Span(side.slot, view.assembly.tokens[query.start :], query.start, side.rows[: query.stop])
    view.runner.run([span], tap=tap)
    return found
