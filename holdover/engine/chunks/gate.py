"""The quality gate of chunk reuse: what composing prompts was measured to cost, and how they are served therefore.

A gate is one JSON file beside the model, or in the user's directory. Its checksum refuses a file that was cut, damaged
or edited by hand; it does not say who made it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from holdover.chunks import ChunkOptions
from holdover.engine.chunks.request import SEAMS, Window
from holdover.engine.chunks.settings import ChunkSettings
from holdover.errors import GateError
from holdover.files import replacing
from holdover.retention.plan_file import BESIDE, user_plans

if TYPE_CHECKING:
    from holdover.engine.hf.loader import Loaded

# what an operator says: compose if a gate passed on these weights, compose in any case, or refuse chunks
ChunkMode = Literal["auto", "on", "off"]

GATE_NAME = "chunks.json"
VERSION = 1
_FORMAT = "holdover.chunk-gate"


@dataclass(frozen=True)
class ChunkPoint:
    """One measured way to compose prompts.

    Attributes:
        selector: which tokens of chunks were recomputed.
        initialiser: which recurrent state prompts began with.
        ratio: share of the chunks' tokens that the selector might choose.
        window: what recomputed tokens saw in their conv windows.
        recomputed: share that was in fact recomputed, seams included.
        mean_kl: mean per-token KL from the distribution after a full prefill, in nats.
        low: lower end of its 95 % interval; whole contexts were resampled.
        high: upper end.
        p95_kl: 95th percentile of the KL over all tokens.
        first_kl: mean KL at the first token behind the query.
        cost: mean number of tokens run before the query, a probe of some layers counting as their share.
        ms: median milliseconds from chunks that are there to a state that the query can run from.
    """

    selector: str
    initialiser: str
    ratio: float
    window: Window
    recomputed: float
    mean_kl: float
    low: float
    high: float
    p95_kl: float
    first_kl: float
    cost: float
    ms: float


@dataclass(frozen=True)
class ChunkGate:
    """What calibration found on real text.

    Attributes:
        model_digest: digest of all the weights that were measured.
        dtype: what the model ran in.
        text_digest: digest of the text.
        budget: largest acceptable P95 KL, in nats.
        contexts: prompts measured.
        chunks: chunks of each.
        tokens: tokens of a chunk.
        query: tokens of a query.
        following: tokens behind it whose distributions were compared.
        full_ms: median milliseconds of the same contexts prefilled in full.
        versions: of the software that measured.
        chosen: the point to serve with.
        sweep: every point measured.
    """

    model_digest: str
    dtype: str
    text_digest: str
    budget: float
    contexts: int
    chunks: int
    tokens: int
    query: int
    following: int
    full_ms: float
    versions: Mapping[str, str]
    chosen: ChunkPoint
    sweep: tuple[ChunkPoint, ...]

    @property
    def passed(self) -> bool:
        """Whether the chosen point meets the budget."""
        return self.chosen.p95_kl <= self.budget

    def check(self, model_digest: str) -> None:
        """Verify that these weights may be served by it.

        Raises:
            GateError: it is of other weights, or did not pass.
        """
        if self.model_digest != model_digest:
            raise GateError("it was measured on other weights: run holdover chunks calibrate")
        if not self.passed:
            raise GateError(f"P95 KL {self.chosen.p95_kl:.3g} is above its budget of {self.budget:g}")

    def applied(self, settings: ChunkSettings) -> ChunkSettings:
        """``settings`` with chunks and compositions as they were measured."""
        point, kept = self.chosen, settings.extras
        needed = extras_for([point.initialiser], [point.window])
        extras = ChunkOptions(
            kept.transitions or needed.transitions, kept.bodies or needed.bodies, kept.inputs or needed.inputs
        )
        return replace(
            settings,
            tokens=self.tokens,
            extras=extras,
            selector=point.selector,
            initialiser=point.initialiser,
            ratio=point.ratio,
            window=point.window,
        )


@dataclass(frozen=True)
class Gated:
    """A decision, with what the operator should hear of it.

    Attributes:
        settings: what to serve with.
        note: where they come from, or why prompts are not composed.
        warnings: gates that were passed over, and why.
    """

    settings: ChunkSettings
    note: str
    warnings: tuple[str, ...] = ()


def gate_chunks(loaded: Loaded, settings: ChunkSettings, mode: ChunkMode) -> Gated:
    """Decide how an engine serves prompts over chunks.

    Args:
        loaded: the model.
        settings: what the operator says of chunks otherwise.
        mode: ``auto`` to compose as a gate says that passed on exactly these weights, and to prefill in full where
            there is none; ``on`` to compose as ``settings`` say; ``off`` to refuse chunks.
    """
    if mode == "off":
        return Gated(replace(settings, use="refuse"), "off: marked parts are refused")
    if mode == "on":
        return Gated(replace(settings, use="compose"), f"on, whatever it costs: {_words(settings)}")
    passed_over = []
    for path in [] if loaded.files is None else find_gates(loaded.files.path, loaded.model_digest):
        try:
            gate = read_gate(path)
            gate.check(loaded.model_digest)
        except GateError as error:
            passed_over.append(f"{path} was passed over: {error}")
        else:
            chosen = replace(gate.applied(settings), use="compose")
            return Gated(chosen, f"{path}: {_words(chosen)}, {_verdict(gate)}", tuple(passed_over))
    why = "no gate passed for these weights (holdover chunks calibrate makes one)"
    return Gated(replace(settings, use="full", why=why), f"prefilled in full: {why}", tuple(passed_over))


def extras_for(initialisers: Collection[str], windows: Collection[Window] = ()) -> ChunkOptions:
    """What has to be kept of chunks so that prompts can begin with these states, and recomputed tokens see so far."""
    return ChunkOptions(transitions="exact" in initialisers, bodies=SEAMS in initialisers, inputs="context" in windows)


def find_gates(model_dir: Path, model_digest: str) -> list[Path]:
    """Where gates of a model are: in the folder ``holdover`` of its own, then in the user's directory."""
    places = (model_dir / BESIDE / GATE_NAME, user_gate(model_digest))
    return [place for place in places if place.is_file()]


def user_gate(model_digest: str) -> Path:
    """Path of a model's gate in the user's directory, which is that of plans."""
    return user_plans() / f"{model_digest[:32]}.{GATE_NAME}"


def read_gate(path: Path) -> ChunkGate:
    """The gate at ``path``.

    Raises:
        GateError: there is none, or it is damaged, edited, of another version, or something else.
    """
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GateError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise _damaged(path) from error
    if not isinstance(whole, dict) or whole.get("format") != _FORMAT:
        raise GateError(f"{path} is no gate of chunk reuse: make one with holdover chunks calibrate")
    if whole.get("version") != VERSION:
        raise GateError(
            f"{path} has version {whole.get('version')!r} and this Holdover reads {VERSION}: upgrade it, or make the "
            "gate again"
        )
    try:
        fields = whole["gate"]
        if whole["checksum"] != _checksum(fields):
            raise _damaged(path)
        return _gate(fields)
    except (KeyError, TypeError) as error:
        raise _damaged(path) from error


def write_gate(gate: ChunkGate, path: Path) -> None:
    """Write ``gate``, replacing what is at ``path`` only once the new file is whole.

    Raises:
        GateError: it cannot be written there.
    """
    fields = json.loads(json.dumps(asdict(gate)))
    whole = {"format": _FORMAT, "version": VERSION, "gate": fields, "checksum": _checksum(fields)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise GateError(
            f"{path} cannot be written ({error.strerror or error}): choose another file with -o; one that is found by "
            f"itself is {user_gate(gate.model_digest)}"
        ) from error


def _gate(fields: dict[str, Any]) -> ChunkGate:
    points = {"chosen": ChunkPoint(**fields["chosen"]), "sweep": tuple(ChunkPoint(**one) for one in fields["sweep"])}
    return ChunkGate(**(fields | points))


def _checksum(fields: Any) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _damaged(path: Path) -> GateError:
    return GateError(f"{path} is damaged or was edited: make it again with holdover chunks calibrate")


def _words(settings: ChunkSettings) -> str:
    return f"selector {settings.selector}, initialiser {settings.initialiser}, ratio {settings.ratio:g}"


def _verdict(gate: ChunkGate) -> str:
    point = gate.chosen
    return f"KL to a full prefill {point.mean_kl:.2g} mean, {point.p95_kl:.2g} P95, budget {gate.budget:g}"
