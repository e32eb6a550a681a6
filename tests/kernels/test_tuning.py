"""Plans tuned with a clock of our own, on the CPU: what is tried, remembered, measured anew; nothing is launched."""

import json
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from fdmath.kernels import split_kv, tuning  # noqa: E402
from fdmath.kernels.plan import KIB, OTHERS, Plan, decode_plan  # noqa: E402

MODEL = Plan(16, 0, 128, 4, 3, True)
FASTEST = Plan(32, 0, 64, 2, 4, True)


@dataclass(frozen=True)
class Call:
    """What `tuned_plan` reads of a call of `split_kv`."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    seq_lens: torch.Tensor | None = None
    seq_starts: torch.Tensor | None = None
    causal: bool = False


def call_of(keys=4096, **settings):
    """A call of 32 heads over 8."""
    k = torch.zeros(1, 8, keys, 128, dtype=torch.float16)
    return Call(torch.zeros(1, 32, 1, 128, dtype=torch.float16), k, k, **settings)


@pytest.fixture
def clock(monkeypatch, tmp_path):
    """The (call, plan) pairs that were timed, with FASTEST taking 1 µs and all others 2; the file is in tmp_path."""
    timed = []

    def microseconds(call, plan):
        timed.append((call, plan))
        return 2 - (plan == FASTEST)

    monkeypatch.setattr(tuning, "microseconds", microseconds)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    tuning.remembered.cache_clear()
    yield timed
    tuning.remembered.cache_clear()


def test_the_fastest_plan_is_measured_once_and_then_remembered_by_later_processes(clock, tmp_path):
    assert tuning.tuned_plan(call_of(), MODEL) == FASTEST
    assert [plan for _, plan in clock] == tuning.candidates(MODEL, 4096)
    tuning.remembered.cache_clear()  # as in a new process
    assert tuning.tuned_plan(call_of(), MODEL) == FASTEST and len(clock) == len(tuning.candidates(MODEL, 4096))
    assert [path.name for path in (tmp_path / "triton").iterdir()] == ["fdmath-plans.json"]


def test_the_model_is_kept_where_nothing_is_faster(clock):
    other = MODEL._replace(block=16, warps=1)
    assert tuning.tuned_plan(call_of(), other) == other


def test_other_shapes_strides_formats_and_models_are_measured_for_themselves(clock):
    k = torch.zeros(1, 4096, 8, 128, dtype=torch.float16).transpose(1, 2)
    half, brain = call_of(), torch.zeros(1, 8, 4096, 128, dtype=torch.bfloat16)
    calls = [half, call_of(4097), Call(half.q, k, k), Call(half.q.bfloat16(), brain, brain)]
    for number, call in enumerate(calls, start=1):
        tuning.tuned_plan(call, MODEL)
        assert len({id(timed) for timed, _ in clock}) == number
    tuning.tuned_plan(calls[0], MODEL._replace(num_splits=8))
    assert len({id(timed) for timed, _ in clock}) == len(calls) + 1


def test_lengths_and_causal_play_no_part(clock):
    settings = {"seq_lens": torch.tensor([5]), "seq_starts": torch.tensor([1]), "causal": True}
    tuning.tuned_plan(call_of(**settings), MODEL)
    assert all((call.seq_lens, call.seq_starts, call.causal) == (None, None, False) for call, _ in clock)
    before = len(clock)
    tuning.tuned_plan(call_of(), MODEL)
    assert len(clock) == before > 0


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1}', "\x00", "[" * 200000])
def test_a_file_that_cannot_be_used_is_written_anew(clock, tmp_path, text):
    path = tmp_path / "triton" / "fdmath-plans.json"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    assert tuning.tuned_plan(call_of(), MODEL) == FASTEST
    assert list(FASTEST) in json.loads(path.read_text(encoding="utf-8")).values()


def test_a_remembered_plan_that_is_no_candidate_is_measured_anew(clock, tmp_path):
    tuning.tuned_plan(call_of(), MODEL)
    path = tmp_path / "triton" / "fdmath-plans.json"
    for wrong in ([999, 0, 128, 4, 3, True], [16], "x", None, [[]]):
        plans = dict.fromkeys(json.loads(path.read_text(encoding="utf-8")), wrong)
        path.write_text(json.dumps(plans), encoding="utf-8")
        tuning.remembered.cache_clear()
        assert tuning.tuned_plan(call_of(), MODEL) == FASTEST


def test_a_remembered_plan_has_the_types_of_the_candidate_that_it_equals(clock, tmp_path):
    tuning.tuned_plan(call_of(), MODEL)
    path = tmp_path / "triton" / "fdmath-plans.json"
    plans = dict.fromkeys(json.loads(path.read_text(encoding="utf-8")), [32.0, False, 64.0, 2.0, 4.0, 1])
    path.write_text(json.dumps(plans), encoding="utf-8")
    tuning.remembered.cache_clear()
    before = len(clock)
    found = tuning.tuned_plan(call_of(), MODEL)
    assert list(map(type, found)) == [int, int, int, int, int, bool] and found == FASTEST and len(clock) == before


def test_nothing_is_left_where_the_file_cannot_be_written(clock, tmp_path):
    (tmp_path / "triton" / "fdmath-plans.json").mkdir(parents=True)  # a folder where the file should be
    assert tuning.tuned_plan(call_of(), MODEL) == FASTEST
    assert [path.name for path in (tmp_path / "triton").iterdir()] == ["fdmath-plans.json"]


def test_what_others_remembered_meanwhile_is_kept(clock, tmp_path):
    tuning.tuned_plan(call_of(), MODEL)
    path = tmp_path / "triton" / "fdmath-plans.json"
    path.write_text(json.dumps({"of another process": [1]}), encoding="utf-8")
    tuning.tuned_plan(call_of(100), MODEL)
    assert "of another process" in json.loads(path.read_text(encoding="utf-8"))


def test_a_folder_that_cannot_be_written_leaves_the_plan_to_this_process(clock, tmp_path):
    (tmp_path / "triton").write_text("a file where the folder should be", encoding="utf-8")
    assert tuning.tuned_plan(call_of(), MODEL) == FASTEST
    before = len(clock)
    assert tuning.tuned_plan(call_of(), MODEL) == FASTEST and len(clock) == before


@pytest.mark.parametrize("keys", [1, 100, 8192])
@pytest.mark.parametrize("key_bytes", [64, 512, 2048])
def test_candidates_start_with_the_model_differ_and_fit_where_it_fits(keys, key_bytes):
    model = decode_plan(8, keys, key_bytes, 132, 227 * KIB)
    tried = tuning.candidates(model, keys)
    assert tried[0] == model and len(set(tried)) == len(tried) > (1 if model.block > 16 else 0)
    for plan in tried:
        assert 1 <= plan.num_splits <= max(model.num_splits, keys) and plan.tile == 0 and plan.block >= 16
        assert (plan.stages - 1) * plan.block <= (model.stages - 1) * model.block
        assert (plan.stages - 1) * plan.block * key_bytes + OTHERS <= 227 * KIB


def test_only_a_cuda_device_is_tuned_and_only_where_it_is_asked_for(monkeypatch):
    class Cuda:
        is_cuda = True

    for value, expected in ((None, False), ("0", False), ("1", True)):
        monkeypatch.delenv("FDMATH_TUNE", raising=False)
        if value is not None:
            monkeypatch.setenv("FDMATH_TUNE", value)
        assert tuning.wanted(Cuda()) is expected and not tuning.wanted(torch.zeros(1))


def test_a_call_is_tuned_only_where_its_splits_are_left_to_the_plan(monkeypatch):
    monkeypatch.setattr(tuning, "wanted", lambda q: True)
    monkeypatch.setattr(tuning, "tuned_plan", lambda call, model: FASTEST)
    bare = call_of()
    call = split_kv.Call(bare.q, bare.k, bare.v, None, None, causal=False, scale=1.0, poison=False)
    assert call.plan() == FASTEST
    assert call.plan(num_splits=3).num_splits == 3 and call.plan(tile=64)[:2] == (64, 64)
    assert FASTEST not in (call.plan(num_splits=32), call.plan(tile=64))
