"""The part of a model that one rank computes and keeps: heads, layout, plan and codec, all from one placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdover.arch.layout import ModelLayout, RecurrentLayer, StateLayout
from holdover.codec import Codec
from holdover.engine.memory import free_memory
from holdover.engine.parallel.codec import ExchangedCodec, ShardCodec
from holdover.engine.parallel.ranks import Ranks
from holdover.errors import ConfigError
from holdover.retention import Element, RetentionPlan
from holdover.retention.coupled import bundle_size
from holdover.retention.placement import Placement, PlacementMode, place
from holdover.store.exchange import Exchange


@dataclass(frozen=True, eq=False)
class Shard:
    """One rank's part of every recurrent layer. Attention, MLPs and KV rows are whole on every rank.

    Attributes:
        ranks: the group.
        heads: value heads that this rank computes, int64 ``[H / P]`` per recurrent layer, in stack order, ascending.
        plan: the whole model's plan, or None for dense checkpoints.
        placement: who computes and stores what the plan retains; None without a plan.
    """

    ranks: Ranks
    heads: tuple[Tensor, ...]
    plan: RetentionPlan | None = None
    placement: Placement | None = None

    @classmethod
    def of(cls, layout: StateLayout, ranks: Ranks, plan: RetentionPlan | None, mode: PlacementMode) -> Shard:
        """This rank's part.

        Args:
            layout: the whole model's state.
            ranks: the group.
            plan: what checkpoints retain. Without one, ranks keep equally much and there is nothing to balance.
            mode: who computes and who stores it.

        Raises:
            ConfigError: the ranks cannot share the layers' heads.
            PlanError: the plan was made for another layout.
        """
        check_degree(layout, ranks.size)
        placement = None if plan is None else place(plan, layout, ranks.size, mode)
        positions = range(len(layout.layers))
        orders = (
            [torch.arange(layer.heads) for layer in layout.layers]
            if placement is None
            else [placement.permutation(position) for position in positions]
        )
        heads = tuple(order.view(ranks.size, -1)[ranks.rank] for order in orders)
        return cls(ranks, heads, plan, placement)

    @property
    def note(self) -> str:
        """What is placed where, for the operator."""
        if self.placement is None:
            return "every rank keeps what it computes: without a plan there is nothing to balance"
        mode, why = self.placement.mode, self.placement.note
        total = sum(self.placement.computed)
        moved = f"{self.placement.remote_units / total:.1%} of retained units move" if total else "nothing is retained"
        return f"placement {mode}, {moved}" + (f"; {why}" if why else "")

    def cut(self, layout: ModelLayout) -> ModelLayout:
        """The model's layout with this rank's part of its recurrent state."""
        return replace(layout, state=self.cut_state(layout.state))

    def cut_state(self, whole: StateLayout) -> StateLayout:
        """This rank's part of the whole model's recurrent state."""
        layers = [_cut_layer(layer, len(heads)) for layer, heads in zip(whole.layers, self.heads, strict=True)]
        return replace(whole, layers=tuple(layers))

    def free_memory(self, device: torch.device) -> int:
        """Bytes that every rank can allocate: ranks of one machine share its memory, and each has its own GPU."""
        sharers = self.ranks.local if device.type == "cpu" else 1
        return self.ranks.least(free_memory(device) // sharers)

    def codec(self, local: StateLayout, element: Element) -> Codec:
        """What packs this rank's part of a checkpoint.

        Args:
            local: this rank's part of the state.
            element: how numbers are stored.
        """
        plan = None if self.plan is None else cut_plan(self.plan, local, self.heads)
        if self.placement is None or self.placement.mode == "off":
            return ShardCodec(local, plan, element=element, whole=self.plan)
        exchange = Exchange(self.placement, self.ranks.rank, device=self.ranks.device)
        return ExchangedCodec(local, plan, element=element, whole=self.plan, exchange=exchange, ranks=self.ranks)


def check_degree(layout: StateLayout, ranks: int) -> None:
    """Check that bundles of heads can be dealt to so many ranks equally, in every layer.

    Raises:
        ConfigError: they cannot; the message names the degrees that can.
    """
    counts = [layer.heads // bundle_size(layer) for layer in layout.layers]
    if any(count % ranks for count in counts):
        valid = [str(p) for p in range(1, min(counts) + 1) if not any(count % p for count in counts)]
        raise ConfigError(
            f"{ranks} ranks cannot share the model's {min(counts)} bundles of heads equally (heads of one key head or "
            f"group stay together): --nproc-per-node may be {', '.join(valid)}"
        )


def cut_plan(plan: RetentionPlan, local: StateLayout, heads: Sequence[Tensor]) -> RetentionPlan:
    """What a plan says of some heads of each layer.

    Args:
        plan: of the whole model.
        local: the state of the heads alone.
        heads: int64 per recurrent layer.
    """

    def of_heads(values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(
            x.unflatten(0, (-1, layer.units // layer.heads))[own].flatten()
            for x, layer, own in zip(values, local.layers, heads, strict=True)
        )

    return replace(
        plan,
        layout=local.shape_digest,
        quality=None,
        horizons=of_heads(plan.horizons),
        retained=of_heads(plan.retained),
    )


def _cut_layer(layer: RecurrentLayer, heads: int) -> RecurrentLayer:
    # a single key head, or group, is on every rank
    keys = layer.key_heads if layer.key_heads == 1 else layer.key_heads * heads // layer.heads
    return replace(layer, heads=heads, key_heads=keys, conv_channels=heads * layer.d_v + 2 * keys * layer.d_k)
