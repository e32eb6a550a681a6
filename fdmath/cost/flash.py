"""What FlashAttention-1 and -2 do, in closed form: each law is a function, its docstring the law.

Counts are those of one head of one sequence, integers; `fdmath.cost.counts` counts the same while the algorithms run.
Nq queries, N keys, d = dim numbers a query and a key, w = width numbers a value, blocks of Br = block_m queries and
Bc = block_n keys, T_r = ⌈Nq/Br⌉, T_c = ⌈N/Bc⌉. All raise ValueError for a count below its least value.
"""

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from fdmath.cost.decode import check_counts


@dataclass(frozen=True)
class Grid:
    """The blocks of one head's scores, and how much of them is computed.

    causal is bottom-right aligned, query i sees key j iff j ≤ i + N − Nq. As everywhere a single query sees every key.
    """

    queries: int
    keys: int
    block_m: int = 128
    block_n: int = 128
    causal: bool = False

    def __post_init__(self):
        check_counts(0, queries=self.queries, keys=self.keys)
        check_counts(1, block_m=self.block_m, block_n=self.block_n)

    @property
    def row_blocks(self):
        """T_r = ⌈Nq/Br⌉: what the forward's thread blocks share out."""
        return -(-self.queries // self.block_m)

    @property
    def column_blocks(self):
        """T_c = ⌈N/Bc⌉: what the backward's thread blocks share out."""
        return -(-self.keys // self.block_n)

    def blocks(self):
        """The blocks that are "full", "masked" and "skipped": of Br = Bc and Nq = N = T·Br T(T−1)/2, T, T(T−1)/2.

        A row block whose queries are i₀ … i₁ − 1 computes the blocks of the first i₁ + N − Nq keys, and none of them
        is masked that ends within the first i₀ + 1 + N − Nq. Source: claims:B21.
        """
        kinds = Counter()
        for start, stop in self._rows():
            computed, free = self._columns(stop), self._seen(start + 1)
            full = self.column_blocks if free == self.keys else free // self.block_n
            kinds.update(full=full, masked=computed - full, skipped=self.column_blocks - computed)
        return kinds

    @property
    def row_visits(self):
        """Σ over the computed blocks of their rows: Nq·T_c where none is skipped."""
        return sum((stop - start) * self._columns(stop) for start, stop in self._rows())

    @property
    def column_visits(self):
        """Σ over the computed blocks of their keys: T_r·N where none is skipped."""
        return sum(self._keys(stop) for _, stop in self._rows())

    @property
    def area(self):
        """Σ over the computed blocks of their scores: Nq·N where none is skipped."""
        return sum((stop - start) * self._keys(stop) for start, stop in self._rows())

    @property
    def visits(self):
        """The number of blocks that are computed: T_r·T_c where none is skipped."""
        return sum(self._columns(stop) for _, stop in self._rows())

    def _rows(self):
        """(first query, the one after the last) of each row block."""
        return [(i, min(i + self.block_m, self.queries)) for i in range(0, self.queries, self.block_m)]

    def _seen(self, queries):
        """The keys that the last of the first `queries` queries sees."""
        hides = self.causal and self.queries > 1
        return min(self.keys, max(0, queries + self.keys - self.queries)) if hides else self.keys

    def _columns(self, stop):
        """The column blocks that a row block ending before query `stop` computes."""
        return -(-self._seen(stop) // self.block_n)

    def _keys(self, stop):
        """The keys of these column blocks."""
        return min(self._columns(stop) * self.block_n, self.keys)


def forward_matmul_flop(grid, dim, width):
    """2·(d + w) for each computed score: two products. Full: 2·Nq·N·(d + w). Source: document B; claims:B65."""
    return 2 * (dim + width) * grid.area


def backward_matmul_flop(grid, dim, width):
    """2·(3d + 2w) for each computed score: five products, S and its gradients with d, P·do and do·vᵀ with w.

    With w = d that is 2.5 times the forward. Source: document B; claims:B65.
    """
    return 2 * (3 * dim + 2 * width) * grid.area


def forward_exponentials(grid):
    """One for each computed score and one for each row of a computed block, the rescaling: Nq·N + Nq·T_c in full.

    Source: document B, Algorithm 1, lines 10 to 12.
    """
    return grid.area + grid.row_visits


def forward_multiplications(grid, width):
    """w + 1 for each row of a computed block: acc and l are rescaled. Full: Nq·T_c·(w + 1). Source: claims:B08."""
    return grid.row_visits * (width + 1)


def forward_divisions(grid, width):
    """Nq·w: o is divided once, whatever the number of blocks. Source: document B, Algorithm 1, line 14; claims:B07."""
    return grid.queries * width


def flash1_exponentials(grid):
    """One for each computed score and two for each row of a computed block, the two corrections."""
    return grid.area + 2 * grid.row_visits


def flash1_multiplications(grid, width, divide="sum"):
    """2w + 2 for each row of a computed block: the sums and the two parts; "parts": w + 2, and one a computed score."""
    check_divide(divide)
    if divide == "parts":
        return grid.row_visits * (width + 2) + grid.area
    return grid.row_visits * (2 * width + 2)


def flash1_divisions(grid, width, divide="sum"):
    """For each row of a computed block: w ("sum"), 2w ("parts", the document's 2·Br·d) or 2 ("factors").

    Source: claims:B02, B09.
    """
    return grid.row_visits * {"sum": width, "parts": 2 * width, "factors": 2}[check_divide(divide)]


def backward_exponentials(grid):
    """One for each computed score: P = exp(S − lse) has one reference for all blocks. Source: claims:B14."""
    return grid.area


def backward_multiplications(grid, width):
    """One for each computed score, P ∘ (dP − delta), and Nq·w for delta itself."""
    return grid.area + grid.queries * width


def forward_traffic(grid, dim, width):
    """(read, written) numbers of each tensor in FlashAttention-2: q once, k and v for each row block that sees them.

    k: T_r·N·d in full; o and lse written once, never read. Source: document B; claims:B24, B30, B31.
    """
    return (Counter(q=grid.queries * dim, k=grid.column_visits * dim, v=grid.column_visits * width),
            Counter(o=grid.queries * width, lse=grid.queries))


def flash1_traffic(grid, dim, width):
    """(read, written) numbers of each tensor in FlashAttention-1: k and v once; q, o, m, l for each column block.

    o is read and written Nq·w·T_c times in full. Source: Dao et al. 2022, Algorithm 1; claims:B30, B31.
    """
    back = Counter(o=grid.row_visits * width, m=grid.row_visits, l=grid.row_visits)
    return Counter(q=grid.row_visits * dim, k=grid.keys * dim, v=grid.keys * width) + back, back


def backward_traffic(grid, dim, width, by="columns"):
    """(read, written, added) numbers of each tensor in the backward, dlse and delta among them.

    by="columns": k, v once, q, do, lse, delta for each column block, and dq added T_c·Nq·d times in full;
    by="rows": q, do once, the others for each row block, dk and dv added T_r·N·(d + w) times in full, twice as much
    where Nq = N, Br = Bc and w = d. Source: document B, Algorithm 2; claims:B38, B40.
    """
    delta = Counter(do=grid.queries * width, o=grid.queries * width, dlse=grid.queries)
    shared = Counter(lse=grid.row_visits, delta=grid.row_visits)
    if by == "columns":
        moved = Counter(k=grid.keys * dim, v=grid.keys * width, q=grid.row_visits * dim, do=grid.row_visits * width)
        written, added = Counter(dk=grid.keys * dim, dv=grid.keys * width), Counter(dq=grid.row_visits * dim)
    elif by == "rows":
        moved = Counter(k=grid.column_visits * dim, v=grid.column_visits * width,
                        q=grid.queries * dim, do=grid.queries * width)
        written = Counter(dq=grid.queries * dim)
        added = Counter(dk=grid.column_visits * dim, dv=grid.column_visits * width)
    else:
        raise ValueError(f'by must be "columns" or "rows"; got {by!r}')
    return delta + shared + moved, written + Counter(delta=grid.queries), added


def elementwise_price(device):
    """The FLOP that tensor cores do while one is done beside them: 16 on an A100, 14.8 on an H100 or H200.

    A division or an exponential takes several, and exponentials have a unit of their own. Source: claims:B10, B11.
    """
    return Fraction(device.tensor_flops, device.fp32_flops)


def loop_order_ratio(blocks):
    """(3T + 2)/(2T + 2): numbers of q, k, v, o that FlashAttention-1 moves over those of FlashAttention-2.

    Of T blocks of rows and of keys, w = d, nothing masked. Source: claims:B34.
    """
    check_counts(1, blocks=blocks)
    return Fraction(3 * blocks + 2, 2 * blocks + 2)


def skipped_share(blocks):
    """(T − 1)/(2T): the share of T × T blocks that a causal mask lets one skip. Source: claims:B21."""
    check_counts(1, blocks=blocks)
    return Fraction(blocks - 1, 2 * blocks)


def causal_speedup(blocks):
    """2T/(T + 1): blocks without a mask over blocks computed with a causal one, the most that skipping gains.

    1.71 at T = 6, 1.8 at 9, 1.97 at 64, 1 for decoding. Source: claims:B23 (document B: "1.7 to 1.8").
    """
    check_counts(1, blocks=blocks)
    return Fraction(2 * blocks, blocks + 1)


def check_divide(divide):
    """`divide` itself, if it is "sum", "parts" or "factors"; ValueError otherwise."""
    if divide not in ("sum", "parts", "factors"):
        raise ValueError(f'divide must be "sum", "parts" or "factors"; got {divide!r}')
    return divide
