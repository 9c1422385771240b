"""Worker processes of one group, and the bundled model's recurrent layers sharded over them."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from holdover.arch.architecture import Architecture, Gate
from holdover.arch.layout import RecurrentLayer, StateLayout
from holdover.arch.registry import architecture_of, gate_from_config, layout_from_config
from holdover.ops.conv import naive as naive_conv
from holdover.ops.conv import torch as conv
from holdover.ops.norm import gated_rms_norm, rms_norm
from holdover.ops.recurrence.gates import softplus_gate
from holdover.ops.recurrence.gdn import naive as naive_gdn
from holdover.ops.recurrence.gdn import torch as gdn
from holdover.retention import RetentionPlan
from holdover.retention.coupled import permute_coupled
from holdover.retention.horizon import DEFAULT_EPSILON, DEFAULT_GATE_INPUT, static_horizons
from holdover.retention.placement import Placement
from holdover.weights.bundled import DEFAULT_MODEL
from holdover.weights.read import read_tensors, tensor_names
from holdover.weights.source import resolve

# for one group of workers, its start included; a collective that hangs ends sooner and says so
DEADLINE = 120.0
_COLLECTIVE = timedelta(seconds=60)

Results = dict[str, Tensor]

# imports what takes long once; workers are then forked from it
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__, "pytest"])


def run_ranks(work: Callable[..., Results], ranks: int, *args: Any) -> list[Results]:
    """Run ``work(rank, ranks, *args)`` in one process per rank of a gloo group; what each rank returned.

    Fails as soon as one rank does. No process outlives the call.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = [
            _PROCESSES.Process(target=_enter, args=(work, rank, ranks, folder, args), daemon=True)
            for rank in range(ranks)
        ]
        try:
            for process in processes:
                process.start()
            _join(processes, folder)
        finally:
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join()
        return [load_file(folder / f"{rank}.safetensors") for rank in range(ranks)]


def _enter(work: Callable[..., Results], rank: int, ranks: int, folder: Path, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", f"file://{folder}/group", _COLLECTIVE, ranks, rank)
        save_file(work(rank, ranks, *args), folder / f"{rank}.safetensors")
        dist.destroy_process_group()
    except BaseException:
        (folder / f"{rank}.error").write_text(traceback.format_exc())
        raise


def _join(processes: Sequence[BaseProcess], folder: Path) -> None:
    end = time.monotonic() + DEADLINE
    running = {process.sentinel: process for process in processes}
    while running:
        for sentinel in wait(list(running), timeout=max(0.0, end - time.monotonic())) or [None]:
            assert sentinel is not None, f"{len(running)} ranks are still running after {DEADLINE:.0f} s"
            process = running.pop(sentinel)
            process.join()
            errors = [error.read_text() for error in sorted(folder.glob("*.error"))]
            assert process.exitcode == 0, f"a rank ended with {process.exitcode}\n" + "\n".join(errors)


@dataclass(frozen=True)
class Model:
    """What the recurrent layers of a model need, in fp32.

    Attributes:
        architecture: names of its parameters.
        layout: its recurrent state.
        gate: constants of its decay gate.
        embedding: ``[vocabulary, hidden]``.
        norms: weight of the norm before each recurrent layer ``[hidden]``.
        mixers: parameters of each recurrent layer, by their names below the layer's prefix.
        eps: added by norms.
    """

    architecture: Architecture
    layout: StateLayout
    gate: Gate
    embedding: Tensor
    norms: list[Tensor]
    mixers: list[dict[str, Tensor]]
    eps: float


@cache
def bundled_model() -> Model:
    """The bundled model from its files."""
    files = resolve(DEFAULT_MODEL)
    architecture = architecture_of(files.config)
    layout = layout_from_config(files.config, dtype="float32").state
    prefixes = [f"model.layers.{layer.index}." for layer in layout.layers]
    root = architecture.loaded.a_log.split(".")[0]
    names = [name for name in tensor_names(files) if name.startswith(tuple(f"{prefix}{root}." for prefix in prefixes))]
    norms = [f"{prefix}input_layernorm.weight" for prefix in prefixes]
    tensors = read_tensors(files, [*names, *norms, "model.embed_tokens.weight"])
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    mixers = [
        {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}{root}.")}
        for prefix in prefixes
    ]
    return Model(
        architecture,
        layout,
        gate_from_config(files.config),
        tensors["model.embed_tokens.weight"],
        [tensors[name] for name in norms],
        mixers,
        files.config["rms_norm_eps"],
    )


def plan_of(model: Model, w_max: int) -> RetentionPlan:
    """The plan that the model's own horizons give."""
    gate_input = DEFAULT_GATE_INPUT[model.gate.form]
    names = model.architecture.loaded
    horizons = [
        static_horizons(mixer[names.a_log], mixer[names.dt_bias], layer, model.gate, gate_input=gate_input)
        for layer, mixer in zip(model.layout.layers, model.mixers, strict=True)
    ]
    facts = {"gate": model.gate.form, "gate_input": gate_input, "epsilon": DEFAULT_EPSILON}
    return RetentionPlan.select(horizons, w_max, model="bundled", layout=model.layout, **facts)  # type: ignore[arg-type]


class Ops(NamedTuple):
    """How a stack computes.

    Attributes:
        dtype: of state and activations.
        convolve: pool, slots, x and weight to outputs; advances the pool.
        recur: pool, slots, q, k, v, log decay and beta to outputs; advances the pool.
    """

    dtype: torch.dtype
    convolve: Callable[..., Tensor]
    recur: Callable[..., Tensor]


def _fast_convolution(pool: Tensor, slots: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return conv.sequence(pool, slots, x, weight, None, "silu")


def _naive_convolution(pool: Tensor, slots: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    out, pool[slots] = naive_conv.convolution(pool[slots], x, weight, None, "silu")
    return out


def _naive_recurrence(pool: Tensor, slots: Tensor, *inputs: Tensor) -> Tensor:
    out, pool[slots] = naive_gdn.recurrence(pool[slots], *inputs)
    return out


FAST = Ops(torch.float32, _fast_convolution, gdn.sequence)
NAIVE = Ops(torch.float64, _naive_convolution, _naive_recurrence)


class Stack:
    """A model's recurrent layers, each with its norm and residual, or the part of one rank; holds one sequence.

    Args:
        model: the whole model.
        plan: units that `retained` and `restore` are about.
        heads: value heads of each layer that this stack computes, in its order.
        ops: how it computes.
        reduce: sums a layer's output over the ranks, in place.
    """

    def __init__(
        self,
        model: Model,
        plan: RetentionPlan,
        heads: Sequence[Tensor],
        ops: Ops,
        reduce: Callable[[Tensor], object] = lambda x: None,
    ) -> None:
        self.model, self.ops, self.reduce = model, ops, reduce
        self.temporal, self.conv, self.masks, self.mixers = [], [], [], []
        for layer, mixer, mask, mine in zip(model.layout.layers, model.mixers, plan.retained, heads, strict=True):
            shard = permute_coupled(mixer, model.architecture, layer, mine)
            self.mixers.append({name.partition(".")[2]: tensor.to(ops.dtype) for name, tensor in shard.items()})
            channels = len(self.mixers[-1]["conv1d.weight"])
            self.temporal.append(torch.zeros(1, len(mine), layer.d_k, layer.d_v, dtype=ops.dtype))
            self.conv.append(torch.zeros(1, layer.conv_width - 1, channels, dtype=ops.dtype))
            self.masks.append(mask[mine])

    @classmethod
    def whole(cls, model: Model, plan: RetentionPlan) -> Stack:
        """The plain float64 reference in one process, heads in their own order."""
        return cls(model, plan, [torch.arange(layer.heads) for layer in model.layout.layers], NAIVE)

    @classmethod
    def shard(cls, model: Model, plan: RetentionPlan, placement: Placement, rank: int) -> Stack:
        """What one rank computes, summed over the default group."""
        layers = range(len(model.layout.layers))
        heads = [placement.permutation(layer).view(placement.ranks, -1)[rank] for layer in layers]
        return cls(model, plan, heads, FAST, dist.all_reduce)

    def run(self, tokens: Tensor) -> Tensor:
        """Advance the state by ``tokens [T]``; hidden states ``[T, hidden]``."""
        x = F.embedding(tokens, self.model.embedding).to(self.ops.dtype)[None]
        for position, layer in enumerate(self.model.layout.layers):
            normed = rms_norm(x, 1 + self.model.norms[position], self.model.eps).to(self.ops.dtype)
            mixed = self._mix(position, layer, normed)
            self.reduce(mixed)
            x = x + mixed
        return x[0]

    def _mix(self, position: int, layer: RecurrentLayer, x: Tensor) -> Tensor:
        weights, slots = self.mixers[position], torch.zeros(1, dtype=torch.int64)
        values = self.temporal[position].shape[1] * layer.d_v
        qkv = F.linear(x, weights["in_proj_qkv.weight"])
        qkv = self.ops.convolve(self.conv[position], slots, qkv, weights["conv1d.weight"].squeeze(1))
        keys = (qkv.shape[-1] - values) // 2
        q, k, v = (
            part.unflatten(-1, (-1, width))
            for part, width in zip(qkv.split([keys, keys, values], -1), (layer.d_k, layer.d_k, layer.d_v), strict=True)
        )
        beta = F.linear(x, weights["in_proj_b.weight"]).sigmoid()
        decay = softplus_gate(F.linear(x, weights["in_proj_a.weight"]), weights["A_log"], weights["dt_bias"])
        out = self.ops.recur(self.temporal[position], slots, q, k, v, decay, beta)
        z = F.linear(x, weights["in_proj_z.weight"]).view_as(out)
        out = gated_rms_norm(out, z, weights["norm.weight"], self.model.eps)
        return F.linear(out.flatten(-2), weights["out_proj.weight"])

    def retained(self) -> Tensor:
        """Copy of the retained units in local order ``[n, d_k * d_v]``."""
        return torch.cat([state[0][mask].flatten(1) for state, mask in zip(self.temporal, self.masks, strict=True)])

    def history(self) -> list[Tensor]:
        """Copy of the conv states."""
        return [history.clone() for history in self.conv]

    def restore(self, units: Tensor, history: Sequence[Tensor]) -> None:
        """Overwrite the whole state: retained units from ``units``, the others zero, and the conv states."""
        counts = [int(mask.sum()) for mask in self.masks]
        for state, mask, part in zip(self.temporal, self.masks, units.split(counts), strict=True):
            state.zero_()
            state[0, mask] = part.unflatten(1, state.shape[2:])
        for target, source in zip(self.conv, history, strict=True):
            target.copy_(source)

    def poison(self) -> None:
        """Make the whole state NaN."""
        for tensor in (*self.temporal, *self.conv):
            tensor.fill_(torch.nan)
