"""What the notebook reads of the records of several ranks: the newest of one machine, and two GPUs if there are any."""

from fdmath.bench import distributed_record, records


def test_the_record_of_one_machine_has_its_cluster_and_a_row_for_each_number_of_ranks():
    head, rows, cluster = distributed_record.one_machine()
    assert cluster.latency > 0 and cluster.bandwidth > 0 and head["date"]
    assert set(distributed_record.column(rows, "tree, pairs gathered", "sent")) == {1, 2, 3, 4}


def test_without_a_record_of_two_gpus_it_says_that_none_was_measured(monkeypatch):
    monkeypatch.setattr(distributed_record, "TWO_GPUS", "distributed-no-such-device")
    assert distributed_record.two_gpus().startswith("Two GPUs: not measured yet.")


def test_a_record_of_two_gpus_is_shown_row_by_row(monkeypatch, tmp_path):
    head = {"device": "2 x NVIDIA H200", "date": "2026-12-01", "commit": "abcdef0"}
    row = {"what": "tree, pairs gathered", "ranks": 2, "seconds": 1.5e-05, "sent": 8256, "formula": None}
    records.write(tmp_path, distributed_record.TWO_GPUS, head, [row])
    (tmp_path / "fdmath" / "bench").mkdir(parents=True)
    (tmp_path / "fdmath" / "bench" / "results").symlink_to(tmp_path)
    monkeypatch.setattr(records.resources, "files", lambda package: tmp_path / package)
    assert distributed_record.two_gpus().splitlines() == [
        "Two GPUs: 2 x NVIDIA H200, 2026-12-01, commit abcdef0",
        "what tree, pairs gathered, ranks 2, seconds 1.5e-05, sent 8256"]
