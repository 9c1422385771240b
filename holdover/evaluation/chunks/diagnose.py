"""How far constructed states are from the true ones, before anything is run again (LinearKV, Fig. 3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from holdover.chunks import StateErrors
from holdover.engine.chunks.gate import extras_for
from holdover.engine.host import Host
from holdover.evaluation.chunks.bench import Workbench
from holdover.evaluation.chunks.case import Case

# by initialiser, one entry a context
Diagnosis = Mapping[str, Sequence[StateErrors]]


def diagnose(host: Host, cases: Sequence[Case], initialisers: Sequence[str]) -> Iterator[Diagnosis]:
    """Construct the state of every context; yields all errors so far after each.

    With ``seams`` the first tokens of chunks are run, since they are part of the construction.

    Args:
        host: the model.
        cases: contexts of chunks alone.
        initialisers: as a request names them.
    """
    bench = Workbench(host, cases, extras_for(initialisers))
    found: dict[str, list[StateErrors]] = {name: [] for name in initialisers}
    for number, case in enumerate(cases):
        bench.open(case, number)
        for name, errors in found.items():
            bench.compose((), name)
            errors.append(bench.errors())
        yield found


def mean_errors(errors: Sequence[StateErrors]) -> StateErrors:
    """Each layer's mean over the contexts."""
    return StateErrors({layer: fmean(one.layers[layer] for one in errors) for layer in errors[0].layers})
