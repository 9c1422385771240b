"""What ``holdover bench serve`` found: every request of every run, as a table and as a file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from holdover.errors import EndpointError
from holdover.report.tables import Table

if TYPE_CHECKING:
    from holdover.evaluation.serve.counters import Counters
    from holdover.evaluation.serve.drive import Measured
    from holdover.evaluation.serve.summary import Summary
    from holdover.evaluation.traces.trace import Trace


@dataclass
class Run:
    """One pass over the trace.

    Attributes:
        seed: of its requests.
        measured: those that were answered.
        counters: what the server counted meanwhile, or None.
        is_cold: whether it began with an empty cache, as far as is known.
    """

    seed: int
    measured: list[Measured] = field(default_factory=list)
    counters: Counters | None = None
    is_cold: bool = False


@dataclass
class Results:
    """Everything that was measured.

    Attributes:
        trace: what was sent.
        url: to whom.
        arm: what it is called.
        clients: conversations under way at a time.
        server_limit: requests that the server runs together, as the user says.
        model: name that it serves.
        runs: those of which a request was answered.
    """

    trace: Trace
    url: str
    arm: str
    clients: int
    server_limit: int | None
    model: str
    runs: list[Run] = field(default_factory=list)

    def facts(self, failure: EndpointError | None) -> dict[str, Any]:
        """As one JSON object: a row for each run, and every request."""
        return {
            "trace": self.trace.digest,
            "preset": self.trace.preset,
            "url": self.url,
            "complete": failure is None,
            "failure": None if failure is None else str(failure),
            "rows": [self._row(run) for run in self.runs],
            "mean": None if (whole := self._mean()) is None else asdict(whole),
            "requests": [{"seed": run.seed} | asdict(one) for run in self.runs for one in run.measured],
        }

    def table(self) -> Table:
        """One row for each run, and their mean."""
        columns = ("seed", "requests", "hit", "TTFT", "P95", "E2E", "P95", "slots", "evicted", "restored")
        rows = [(str(run.seed), *_cells(_summary(run)), *_counted(run.counters)) for run in self.runs]
        mean = self._mean()
        if mean is not None and len(self.runs) > 1:
            rows.append(("mean", *_cells(mean), "", "", ""))
        title = f"{self.arm or self.model}, {self.clients} clients, times in ms"
        return Table(title, columns, tuple(rows))

    def notes(self) -> list[str]:
        """What a reader of the figures has to know."""
        every = [one for run in self.runs for one in run.measured]
        found = []
        if any(one.prompt_tokens is None for one in every):
            found.append("the server sends no usage: hits are unknown")
        elif any(one.cached_tokens is None for one in every):
            found.append("the server does not say how many prompt tokens were cached: hits are unknown")
        if others := sum(one.is_as_frozen is False for one in every):
            found.append(f"{others} first prompts have other lengths than the trace says: is it of another model?")
        if any(not run.is_cold for run in self.runs[1:]):
            found.append("the server's cache was not emptied between runs: later ones find what earlier ones left")
        return found

    def _row(self, run: Run) -> dict[str, Any]:
        counters = {} if run.counters is None else asdict(run.counters)
        named = {"model": self.model, "arm": self.arm, "concurrency": self.clients, "server_limit": self.server_limit}
        return named | {"seed": run.seed, "slots": None} | asdict(_summary(run)) | counters

    def _mean(self) -> Summary | None:
        from holdover.evaluation.serve.summary import mean_of

        return mean_of([_summary(run) for run in self.runs]) if self.runs else None


def _summary(run: Run) -> Summary:
    from holdover.evaluation.serve.summary import summarise

    return summarise(run.measured)


def _cells(one: Summary) -> tuple[str, ...]:
    times = (one.ttft_mean_ms, one.ttft_p95_ms, one.e2e_mean_ms, one.e2e_p95_ms)
    return (f"{one.requests:g}", "-" if one.hit is None else f"{one.hit:.3f}", *(f"{ms:,.1f}" for ms in times))


def _counted(counters: Counters | None) -> tuple[str, str, str]:
    if counters is None:
        return "-", "-", "-"
    return f"{counters.slots:,}", f"{counters.states_evicted:,}", f"{sum(counters.restores.values()):,}"
