"""How the kernels cut queries and sequences: by shapes alone, so that one captured launch serves every length."""

from __future__ import annotations

from dataclasses import dataclass

# programs that keep a large GPU busy
BUSY = 512
# parts of a sequence that are combined at once
MOST_PARTS = 128
# tokens from which on one program would be the last to finish in a batch of shorter sequences
LONGEST = 8192
# the least that a tensor core's product takes on each side
LEAST = 16
# blocks of keys and values that a program holds: it works on one, and two are on their way
BUFFERS = 3
# bytes of those, which leave room for a second program in 227 KiB of shared memory
HELD = 112 << 10
# elements of a program's output: 128 registers a thread
OUTPUT = 16384


@dataclass(frozen=True)
class Shapes:
    """What a launch depends on.

    Attributes:
        batch: sequences.
        kv_heads: heads of keys and values.
        queries: of one sequence and KV head: its query heads times the new tokens.
        span: most tokens that the queries of one sequence see.
        key_columns: width of a key, padded.
        value_columns: width of a value, padded.
        shared: the key's first part is the value.
        itemsize: bytes of an element in the products.
    """

    batch: int
    kv_heads: int
    queries: int
    span: int
    key_columns: int
    value_columns: int
    shared: bool
    itemsize: int


@dataclass(frozen=True)
class Tiling:
    """Block sizes of a launch.

    Attributes:
        block: tokens read at once; a power of two.
        rows: queries of a program; a power of two.
        parts: equal parts that a sequence is cut into, each of whole blocks.
        longest: tokens of a part at most, a multiple of ``block``; longer sequences have more parts.
        warps: of a program.
        stages: of the pipeline.
    """

    block: int
    rows: int
    parts: int
    longest: int
    warps: int
    stages: int

    def splits(self, span: int) -> int:
        """Programs that share one sequence of up to ``span`` tokens."""
        return max(self.parts, _cdiv(span, self.longest))


def padded(width: int) -> int:
    """Smallest power of two that is no less than ``width`` and can be a side of a product."""
    return max(LEAST, 1 << (width - 1).bit_length())


def choose(shapes: Shapes) -> Tiling:
    """Enough parts to fill the GPU, all queries of a KV head in one program, blocks that leave room for a second one.

    In fp32 there is no tensor core: smaller tiles keep the unrolled products short.
    """
    single = shapes.itemsize == 4
    rows = min(padded(shapes.queries), LEAST if single else 64, max(LEAST, OUTPUT // shapes.value_columns))
    columns = shapes.key_columns + (0 if shapes.shared else shapes.value_columns)
    held = BUFFERS * columns * shapes.itemsize  # bytes for each token of a block
    block = LEAST if single else 64
    while block > LEAST and block * held > HELD:
        block //= 2
    buffers = BUFFERS if block * held <= HELD else 2
    programs = shapes.batch * shapes.kv_heads * _cdiv(shapes.queries, rows)
    parts = min(_cdiv(BUSY, programs), MOST_PARTS, _cdiv(shapes.span, block))
    longest = _cdiv(max(LONGEST, _cdiv(shapes.span, MOST_PARTS)), block) * block
    # numbers of rows are asked for two blocks ahead of the keys and values, and those two ahead of their products
    return Tiling(block, rows, parts, longest, warps=4, stages=2 * buffers - 1)


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)
