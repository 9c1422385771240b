"""The scheduler's half: which entry a request resumes from, and which states are kept."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdover.integrations.vllm.connector.catalogue import Catalogue, Place
from holdover.integrations.vllm.connector.metadata import Blocks, Load, Save, StepPlan, StepReport
from holdover.integrations.vllm.connector.prefixes import Prefixes
from holdover.integrations.vllm.connector.setup import Setup
from holdover.state import EXACT, Lineage
from holdover.store.folder_index import FolderIndex
from holdover.store.spill import EntryName

# a request whose cache salt is this, or begins with it and a colon, gets exact states only
EXACT_SALT = "exact"
# tokens that a restore must spare, and by which a request's end must be deeper than the entry that it continues, in
# models whose blocks are not shorter
LEAST = 64
# ends at which every computed token is one of the request's
_ENDED = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")


@dataclass
class _Tracked:
    """What is known of one unfinished request."""

    request: Any
    prefixes: Prefixes
    losses: int = 0
    outcome: str | None = None
    found: EntryName | None = None


class TierScheduler:
    """Decides; touches no bytes.

    Args:
        setup: the tier.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._block_size = setup.groups.block_size
        self._least = min(LEAST, self._block_size)
        directory = setup.config.spill_dir
        self.catalogue = Catalogue(
            [FolderIndex(directory / setup.folder(rank)) if directory else None for rank in range(setup.ranks)]
        )
        self.counters: Counter[str] = Counter()
        self._tracked: dict[str, _Tracked] = {}
        # losses in the past of states that vLLM's own cache may hold, where there are any
        self._losses: dict[Place, int] = {}
        self._loads: list[Load] = []
        self._ends: list[Save] = []
        self._epoch = b""

    def lookup(self, request: Any, computed: int) -> int:
        """Tokens beyond ``computed``, a multiple of the block size, that a request can take from the tier."""
        tracked = self._track(request)
        tracked.found, tracked.outcome = None, self._bar(request)
        tracked.losses = self._losses_at(tracked.prefixes, computed, request.num_tokens)
        if tracked.outcome is not None:
            return 0
        # the last token is left to compute
        first, last = computed + self._least, request.num_tokens - 1
        if last < first:
            tracked.outcome = "miss_not_needed" if computed else "miss_short"
            return 0
        depths = sorted((depth for depth in self.catalogue.depths() if first <= depth <= last), reverse=True)
        name = self.catalogue.deepest((depth, tracked.prefixes.key(depth)) for depth in depths)
        tracked.found, tracked.outcome = name, "miss_absent" if name is None else "hit"
        return 0 if name is None else name.depth - computed

    def admit(self, request: Any, block_ids: Sequence[Sequence[int]], external: int) -> None:
        """Blocks were allocated for a request, of which ``external`` tokens are to be loaded."""
        tracked = self._track(request)
        if tracked.outcome == "hit" and not external:
            # vLLM has something within a block that is deeper
            tracked.outcome = "miss_not_needed"
        if tracked.outcome is not None:
            self.counters[tracked.outcome] += 1
            tracked.outcome = None
        if external and tracked.found is not None:
            name, above = tracked.found, tracked.found.depth - external
            blocks = self._blocks(block_ids, above, name.depth, self._state_blocks(block_ids, name.depth))
            self._loads.append(Load(request.request_id, name, above, blocks))
            self.counters["hit_tokens"] += external
            tracked.losses = name.losses + self._setup.losses
            self._remember((name.depth, name.key), tracked.losses)

    def plan(self, block_state: Any) -> StepPlan:
        """What the worker is to do in the step that is being scheduled.

        Args:
            block_state: vLLM's ``KVConnectorBlockState``: the boundary states that the step leaves, in exact blocks.
        """
        plan = StepPlan(self._ends, self._loads)
        self._ends, self._loads = [], []
        for request_id, offers in (block_state.boundary_state_offloads if block_state is not None else {}).items():
            tracked = self._tracked.get(request_id)
            block_ids = block_state.get_block_ids(request_id)
            if tracked is None or block_ids is None:
                continue
            for depth, state in sorted(_by_depth(offers).items()):
                # a boundary counts where every group has it
                if state.keys() == self._setup.groups.recurrent_groups:
                    plan.saves += self._save(tracked, depth, state, block_ids)
        return plan

    def finish(self, request: Any, block_ids: Sequence[Sequence[int]]) -> bool:
        """A request has ended: keep the state that it leaves, which the next turn of its conversation resumes from.

        Returns:
            Whether its blocks are to be held back until the worker has read them.
        """
        tracked = self._tracked.pop(request.request_id, None)
        depth = request.num_computed_tokens
        if not self._setup.config.ends or tracked is None or request.status.name not in _ENDED:
            return False
        saves = self._save(tracked, depth, self._state_blocks(block_ids, depth), block_ids, least=self._least)
        self._ends += [replace(save, ended=request.request_id) for save in saves]
        return bool(saves)

    def absorb(self, report: StepReport) -> None:
        """Take note of what the worker did."""
        self.catalogue.absorb(report)

    def reset(self) -> None:
        """From now on nothing is found that was kept before: vLLM's weights may have changed."""
        self._epoch = uuid.uuid4().bytes
        self._losses.clear()
        # whoever goes on does so under new keys
        self._tracked.clear()

    def _track(self, request: Any) -> _Tracked:
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            namespace = self._epoch + (request.cache_salt or "").encode()
            prefixes = Prefixes(namespace, request.all_token_ids, self._block_size)
            tracked = self._tracked[request.request_id] = _Tracked(request, prefixes)
        return tracked

    def _bar(self, request: Any) -> str | None:
        """Why a request may not use the tier."""
        if request.mm_features or request.prompt_embeds is not None:
            return "miss_inputs"
        if request.lora_request is not None:
            return "miss_adapter"
        if request.skip_reading_prefix_cache:
            return "miss_not_wanted"
        if not self._setup.is_lossless and _wants_exact(request):
            return "miss_exact"
        return None

    def _save(
        self,
        tracked: _Tracked,
        depth: int,
        state: dict[int, int],
        block_ids: Sequence[Sequence[int]],
        least: int = 0,
    ) -> list[Save]:
        skipped = self._bar_save(tracked, depth)
        if skipped is not None:
            self.counters[skipped] += 1
            return []
        key, parent = tracked.prefixes.key, self._parent(tracked, depth)
        if depth < parent + least:
            self.counters["save_near"] += 1
            return []
        name = EntryName(depth, key(depth), parent, key(parent), tracked.losses)
        self.catalogue.announce(name)
        self._remember((depth, name.key), tracked.losses)
        self.counters["save"] += 1
        lineage = Lineage("nr", tracked.losses) if tracked.losses else EXACT
        return [Save(name, lineage, self._blocks(block_ids, parent, depth, state))]

    def _parent(self, tracked: _Tracked, depth: int) -> int:
        """Depth of the deepest entry that one at ``depth`` can continue; 0 for none."""
        above = sorted((d for d in self.catalogue.depths() if d < depth), reverse=True)
        return next((d for d in above if self.catalogue.kept((d, tracked.prefixes.key(d)))), 0)

    def _bar_save(self, tracked: _Tracked, depth: int) -> str | None:
        """Why a state is not kept."""
        if len(tracked.request.all_token_ids) < depth:
            return "save_unknown_tokens"
        bar = self._bar(tracked.request)
        if bar is not None and bar != "miss_not_wanted":
            return bar.replace("miss", "save")
        if self._setup.packed_above >= depth:
            return "save_not_forgotten"
        kept = self.catalogue.kept((depth, tracked.prefixes.key(depth)))
        return "save_present" if kept is not None and kept.losses <= tracked.losses else None

    def _remember(self, place: Place, losses: int) -> None:
        self._losses.pop(place, None)
        if losses:
            self._losses[place] = losses
        # vLLM holds no more states than it has blocks
        if len(self._losses) > self._setup.groups.num_blocks:
            del self._losses[next(iter(self._losses))]

    def _losses_at(self, prefixes: Prefixes, computed: int, tokens: int) -> int:
        """Losses in what a request takes from vLLM's cache: up to ``computed``, or further into the next block."""
        reach = range(computed, min(computed + self._block_size, tokens))
        depths = {depth for depth, _ in self._losses if depth in reach}
        return max((self._losses.get((depth, prefixes.key(depth)), 0) for depth in depths), default=0)

    def _state_blocks(self, block_ids: Sequence[Sequence[int]], depth: int) -> dict[int, int]:
        last = (depth - 1) // self._block_size
        return {group: block_ids[group][last] for group in self._setup.groups.recurrent_groups}

    def _blocks(self, block_ids: Sequence[Sequence[int]], above: int, depth: int, state: dict[int, int]) -> Blocks:
        first, end = above // self._block_size, -(-depth // self._block_size)
        rows = {group: list(block_ids[group][first:end]) for group in self._setup.groups.attention_groups}
        return Blocks(state, rows)


def _by_depth(offers: Sequence[tuple[int, int, int]]) -> Mapping[int, dict[int, int]]:
    """Blocks by group, by depth, from vLLM's ``(group, block, tokens)``."""
    found: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for group, block, depth in offers:
        found[depth][group] = block
    return found


def _wants_exact(request: Any) -> bool:
    return (request.cache_salt or "").partition(":")[0] == EXACT_SALT
