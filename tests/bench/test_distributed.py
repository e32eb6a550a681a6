"""`fdmath bench distributed`, without ranks: parameters from given times, formulas beside a row, the command."""

import json
import socket

import pytest

pytest.importorskip("torch")

from fdmath.bench import command, distributed, distributed_command
from fdmath.bench.distributed import ALL, MESSAGES, PART, TREES, Work
from fdmath.cost.distributed import Cluster

WORK = Work(q_heads=2, kv_heads=1, dim=2, keys=64, rows=8, heads=1, head_dim=1)


def times(latency=1.0, bandwidth=2.0**20, hidden=0.0):
    """The times of one rank and two, in powers of two: start 2 s, read 1 kB/s, 64 FLOP/s, `hidden` of a message."""
    share = WORK.share_bytes(2)
    messages = {f"message, {count}": ([99.0, latency + count / bandwidth], count, 0)
                for count in (*MESSAGES[1:], share)}
    messages[f"message, {MESSAGES[0]}"] = ([latency], 64, 0)
    block, transfer = 2 + share / 1024, latency + share / bandwidth
    two = {"ring, one query": ([2 * block + transfer - hidden * min(block, transfer)], share, 0)}
    one = {ALL: ([2 + 1024 / 1024, 50.0], 24, 0), PART: ([2 + 128 / 1024], 24, 0),
           "ring, all keys": ([2 + 4 * 64 / 64], 0, 0)}
    return {1: one, 2: two | messages}


@pytest.mark.parametrize("hidden", [0.0, 0.5, 1.0])
def test_the_parameters_are_those_that_made_the_times(hidden):
    assert WORK.cache_bytes() == 1024
    cluster = distributed.cluster_of(WORK, times(hidden=hidden))
    assert (cluster.latency, cluster.bandwidth, cluster.start, cluster.read) == (1.0, 2.0**20, 2.0, 1024.0)
    assert (cluster.flops, cluster.overlap) == (64.0, hidden)


def test_a_row_has_its_formula_and_its_prediction():
    cluster = Cluster(1.0, 4.0, 2.0, 8.0, 16.0)
    found = distributed.row(WORK, cluster, 2, "ring, one query", [3.0, 1.0, 2.0], 512, 600)
    assert [found[name] for name in ("seconds", "least", "most")] == [2, 1, 3]
    assert [found[name] for name in ("sent", "wired", "formula")] == [512, 600, 512]
    assert found["predicted"] == 2 * (2 + 512 / 8) + (1 + 512 / 4) - min(66, 129)
    sizes = [distributed.expected_bytes(WORK, 2, name) for name in TREES]
    assert sizes == [2 * 3 * 4, 2 * 4 * 4, 2 * 4 * 4]
    assert distributed.predicted_seconds(WORK, cluster, 2, "message, 8") == 3
    assert distributed.predicted_seconds(WORK, cluster, 2, ALL) == (2 + 64) + (1 + 24 / 4)
    assert distributed.expected_bytes(WORK, 2, "ring, all keys") == 2 * 4 * 4
    assert distributed.expected_bytes(WORK, 2, PART) is distributed.predicted_seconds(WORK, cluster, 2, PART) is None


def test_the_bytes_of_a_connection_are_those_that_linux_counts():
    if not distributed.socket_bytes() and not hasattr(socket, "TCP_INFO"):
        pytest.skip("tcp_info is Linux's")
    before = distributed.socket_bytes()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as here:
        there, _ = server.accept()
        with there:
            here.sendall(bytes(1000))
            assert there.recv(1000, socket.MSG_WAITALL) == bytes(1000)
            assert distributed.socket_bytes() - before == 1000


def test_the_command_prints_and_records_and_says_when_bytes_are_wrong(tmp_path, monkeypatch, capsys):
    cluster, path, sent = Cluster(1.0, 4.0, 2.0, 8.0, 16.0), tmp_path / "record.json", [504]

    def measure(work, sizes, rounds):
        assert (work.keys, sizes, rounds) == (48, (2,), 3)
        return cluster, [distributed.row(WORK, cluster, 2, "ring, one query", [3.0], sent[0] + 8, 0)]

    monkeypatch.setattr(distributed_command, "measure", measure)
    words = ["distributed", "--ranks", "2", "--keys", "48", "--rounds", "3", "--json", str(path)]
    assert command.main(words) == 0
    assert "ring, one query" in capsys.readouterr().out
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["cluster"]["start"] == 2 and record["rows"][0]["sent"] == 512
    sent[0] = 0
    assert command.main(words) == 1
    assert command.main(["distributed", "--keys", "50"]) == 2
    assert "--keys must be a multiple of 4" in capsys.readouterr().err
