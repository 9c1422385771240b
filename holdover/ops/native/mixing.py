"""One token through a recurrent layer between its projections, in one call.

What it computes is the convolution under SiLU, the decay's gate, the recurrence and the gated norm, each by the C
function that also runs by itself. At small batches the calls between them would cost more than they do.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from holdover.ops.native.arguments import check_pool, check_shapes, room, rows, threads
from holdover.ops.native.convolution import WIDEST
from holdover.ops.native.library import Convolution, Gates, Norm, Recurrence, Timed, call
from holdover.ops.native.library import Mixing as Arguments
from holdover.ops.native.parameters import GatedNorm, Gating, check_parameter
from holdover.ops.native.recurrence import Family


@dataclass(frozen=True)
class Mixing:
    """A layer's parameters, fp32 on the CPU; what is None is not computed.

    Attributes:
        family: GDN and KDA convolve queries, keys and values side by side; Mamba-2 x, B and C.
        sizes: heads of the state, key heads, rows ``d_k`` of a head's state and its columns ``d_v``.
        weight: the convolution's ``[C, W]``, contiguous tap by tap.
        conv_bias: ``[C]``.
        gating: without it, decays and strengths are given as the recurrence takes them.
        norm: of the readouts.
        rate: Mamba-2's ``a [H]``.
        skip: Mamba-2's ``d [H]``.

    Raises:
        ValueError: parameters do not fit each other.
    """

    family: Family
    sizes: tuple[int, int, int, int]
    weight: Tensor
    conv_bias: Tensor | None = None
    gating: Gating | None = None
    norm: GatedNorm | None = None
    rate: Tensor | None = None
    skip: Tensor | None = None

    def __post_init__(self) -> None:
        heads, key_heads, _, d_v = self.sizes
        channels, width = self.weight.shape
        if not key_heads or heads % key_heads:
            raise ValueError(f"{heads} heads, want a multiple of the {key_heads} key heads")
        if not 1 <= width <= WIDEST:
            raise ValueError(f"{width} taps, want 1 to {WIDEST}")
        if channels != 2 * self._keys + self._values:
            raise ValueError(f"{channels} channels, want {2 * self._keys + self._values}")
        if any((x is not None) != (self.family is Family.MAMBA2) for x in (self.rate, self.skip)):
            raise ValueError("a rate and a skip are Mamba-2's, which wants both")
        if self.family is Family.KDA and self.gating is not None:
            raise ValueError("a gating gives one decay a head, and KDA wants one a key channel")
        check_parameter(self.weight.mT, width, channels)
        check_parameter(self.conv_bias, channels)
        for x in (self.rate, self.skip, *((self.gating.bias, self.gating.rate) if self.gating else ())):
            check_parameter(x, heads)
        if self.norm is not None:
            check_parameter(self.norm.weight, d_v)

    def step(
        self,
        histories: Tensor,
        states: Tensor,
        slots: Tensor,
        channels: Tensor,
        decay: Tensor,
        strength: Tensor | None = None,
        gate: Tensor | None = None,
    ) -> Tensor:
        """Advance ``slots [B]`` of both pools by one token.

        Args:
            histories: the convolution's pool, as `holdover.ops.native.convolution.step` takes it.
            states: the recurrence's pool.
            slots: int64 ``[B]``, distinct.
            channels: what is convolved ``[B, C]``.
            decay: with a gating raw ``[B, H]``; else log decay ``[B, H]``, of KDA ``[B, H, d_k]``.
            strength: likewise ``[B, H]``; None for Mamba-2, whose decay's gate gives it.
            gate: the norm's ``[B, H * d_v]``; None without a norm.

        Returns:
            fp32 ``[B, H * d_v]``.

        Raises:
            ValueError: a tensor is not of the shape that the others ask for; nothing was written.
            IndexError: a slot is not in a pool; likewise.
        """
        (heads, _, d_k, d_v), (total, width), batch = self.sizes, self.weight.shape, len(channels)
        if (strength is None) != (self.family is Family.MAMBA2) or (gate is None) != (self.norm is None):
            raise ValueError("a strength is for GDN and KDA, a gate for a norm; want both where they are used")
        per_head = (batch, heads)
        decays = (*per_head, d_k) if self.family is Family.KDA and self.gating is None else per_head
        channels, decay = rows(channels, 1), rows(decay, len(decays) - 1)
        given, wanted = [channels, decay], [(batch, total), decays]
        if strength is not None:
            strength = rows(strength, 1)
            given, wanted = [*given, strength], [*wanted, per_head]
        if gate is not None:
            gate = rows(gate, 1)
            given, wanted = [*given, gate], [*wanted, (batch, self._values)]
        check_shapes(given, wanted)
        check_pool(histories, slots, batch, (width - 1, total))
        check_pool(states, slots, batch, (heads, d_k, d_v))

        convolved, gated = room(batch, total), room(2, batch, heads)
        out = room(batch, self._values)
        read = out if self.norm is None else room(batch, self._values)
        call(
            Arguments(
                self._convolution(histories, slots, channels, convolved),
                self._gates(decay, strength, gated),
                self._recurrence(states, slots, convolved, self._gated(decay, strength, gated), read),
                self._norm(read, gate, out),
            )
        )
        return out

    @property
    def _keys(self) -> int:
        return self.sizes[1] * self.sizes[2]

    @property
    def _values(self) -> int:
        return self.sizes[0] * self.sizes[3]

    def _convolution(self, histories: Tensor, slots: Tensor, channels: Tensor, out: Tensor) -> Convolution:
        batch, total = channels.shape
        return Convolution(
            histories.data_ptr(),
            slots.data_ptr(),
            histories.stride(0),
            batch,
            1,
            self.weight.shape[1],
            total,
            threads(batch * total),
            True,
            channels.data_ptr(),
            channels.stride(0),
            0,
            self.weight.data_ptr(),
            _address(self.conv_bias),
            out.data_ptr(),
        )

    def _gates(self, decay: Tensor, strength: Tensor | None, out: Tensor) -> Gates:
        own = self.gating
        # without rows it does nothing
        if own is None:
            return Gates()
        return Gates(
            *decay.shape,
            decay.data_ptr(),
            _address(strength),
            decay.stride(0),
            0 if strength is None else strength.stride(0),
            own.bias.data_ptr(),
            _address(own.rate),
            own.low,
            own.high,
            own.scale,
            out[0].data_ptr(),
            out[1].data_ptr(),
        )

    def _gated(self, decay: Tensor, strength: Tensor | None, gated: Tensor) -> tuple[Timed, Timed]:
        """Decays and write strengths as the recurrence takes them."""
        decays, strengths = (decay, strength) if self.gating is None else (gated[0], gated[1])
        # Mamba-2's step size is both
        if strength is None or strengths is None:
            strengths = decays
        return Timed(decays.data_ptr(), decays.stride(0), 0), Timed(strengths.data_ptr(), strengths.stride(0), 0)

    def _recurrence(
        self, states: Tensor, slots: Tensor, convolved: Tensor, gated: tuple[Timed, Timed], out: Tensor
    ) -> Recurrence:
        (batch, total), start = convolved.shape, convolved.data_ptr()
        keys, values = self._keys, self._values
        starts = (values + keys, values, 0) if self.family is Family.MAMBA2 else (0, keys, 2 * keys)
        return Recurrence(
            states.data_ptr(),
            slots.data_ptr(),
            states.stride(0),
            batch,
            1,
            *self.sizes,
            self.family,
            threads(batch * values * self.sizes[2]),
            *(Timed(start + 4 * at, total, 0) for at in starts),
            *gated,
            _address(self.rate),
            _address(self.skip),
            out.data_ptr(),
        )

    def _norm(self, read: Tensor, gate: Tensor | None, out: Tensor) -> Norm:
        if self.norm is None or gate is None:
            return Norm()
        return Norm(
            len(read),
            self.sizes[0],
            self.sizes[3],
            1,
            self.norm.activation,
            read.data_ptr(),
            gate.data_ptr(),
            read.stride(0),
            gate.stride(0),
            self.norm.weight.data_ptr(),
            self.norm.eps,
            out.data_ptr(),
        )


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
