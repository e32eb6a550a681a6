"""`fdmath bench distributed` on one rank and two, as small as it goes."""

from fdmath.bench.distributed import Work, measure
from fdmath.bench.distributed_command import as_the_formula


def test_everything_is_measured_and_every_rank_sends_what_the_formula_says():
    cluster, rows = measure(Work(keys=64, rows=8, dim=8, head_dim=8), (2,), rounds=1)
    assert {row["ranks"] for row in rows} == {1, 2}
    assert all(row["seconds"] > 0 for row in rows) and all(as_the_formula(row) for row in rows)
    assert cluster.latency > 0 and cluster.bandwidth > 0 and 0 <= cluster.overlap <= 1
