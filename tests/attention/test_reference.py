"""Attention by definition: against the oracle, and the conventions sentence by sentence."""

import math
import warnings

import numpy as np
import pytest

import fdmath
from fdmath import LSEState, attention, merge
from fdmath.attention import reference
from tests.algebra.judgement import judge
from tests.algebra.libraries import FORMATS, dtype_name, holds, same, same_state, values
from tests.attention.calls import CALLS, INF, NAN, random_call, random_mask

SHOWN = 0.01  # a bound that no small call here brings within a factor 100 would be an empty promise


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_attention_is_its_definition(lib, call):
    exact = call.certified()
    small = call.q.shape[-1] <= 5 and call.k.shape[-2] > 1 and call.visible().any()
    for dtype in FORMATS:
        state = attention(*call.arrays(lib, dtype), **call.options(lib))
        assert dtype_name(state.o) == dtype
        assert dtype_name(state.lse) == ("float64" if dtype == "float64" else "float32")
        worst = judge(exact, state, call.budget(dtype))
        assert not small or max(worst.o, worst.lse) >= SHOWN


def test_the_call_returns_a_state_that_merges_with_any_other(lib):
    call = random_call(1, (4, 2), 3, 13, 5, 4, batch=(2,))
    q, k, v = call.arrays(lib, "float32")
    state = attention(q, k, v)
    o, lse = state
    assert type(state) is LSEState and o is state.o and lse is state.lse
    assert tuple(o.shape) == (2, 4, 3, 4) and tuple(lse.shape) == (2, 4, 3)
    left, right = (attention(q, k[..., keys, :], v[..., keys, :]) for keys in (slice(0, 6), slice(6, 13)))
    budget = call.budget("float32", ranges=((0, 6), (6, 13)), order=fdmath.sequential)
    judge(call.certified(), merge(left, right), budget)


# Heads, axes, alignment


def test_query_head_h_reads_kv_head_h_over_g(lib):
    # claims:B42: heads 0, 1 read KV head 0 and heads 2, 3 read KV head 1; one key each, so o is that head's v.
    q, k = lib.array(np.ones((4, 1, 2))), lib.array(np.ones((2, 1, 2)))
    assert holds(attention(q, k, lib.array([[[10.0]], [[20.0]]])).o, [[[10.0]], [[10.0]], [[20.0]], [[20.0]]])


def test_every_ratio_of_heads_is_that_of_repeated_kv_heads(lib):
    # faults:G2: a group size used as modulus and as stride is right for (4, 2) and (16, 4), wrong for (8, 2).
    for heads in ((1, 1), (2, 1), (4, 2), (8, 2), (6, 3), (16, 4)):
        call = random_call(2, heads, 2, 5, 3)
        k, v = (lib.array(x) for x in call.repeated())
        grouped, repeated = (attention(lib.array(call.q), *kv) for kv in (call.arrays(lib, "float32")[1:], (k, v)))
        exact = call.certified()
        judge(exact, grouped, call.budget("float32"))
        judge(exact, repeated, call.budget("float32"))


def test_two_axes_are_one_head(lib):
    call = random_call(3, (1, 1), 3, 7, 5)
    q, k, v = call.arrays(lib, "float32")
    one = attention(q[0], k[0], v[0])  # a library may add up a matrix otherwise than a batch of one
    judge(call.certified(), LSEState(one.o[None], one.lse[None]), call.budget("float32"))


def test_causal_is_aligned_at_the_bottom_right(lib):
    # faults:F1: one query over 4 keys sees all; claims:B20: 4 queries over 2 keys leave the first two without any.
    def causal(queries, keys):
        v = lib.array(np.arange(1.0, keys + 1)[:, None])
        return attention(lib.array(np.zeros((queries, 1))), lib.array(np.zeros((keys, 1))), v, causal=True)

    assert holds(causal(1, 4).o, [[2.5]])
    late = causal(4, 2)
    assert holds(late.o, [[0.0], [0.0], [1.0], [1.5]])
    assert holds(late.lse[:3], [-INF, -INF, 0.0])
    assert holds(causal(3, 3).o, [[1.0], [1.5], [2.0]])


def test_causal_forms_no_mask_for_one_query_which_sees_every_key(lib):
    q, k, v = random_call(3, (2, 1), 2, 5, 3).arrays(lib, "float32")
    assert reference.prepare(q[:, :1], k, v, causal=True).visible(0, 5) is None
    assert values(reference.prepare(q, k, v, causal=True).visible(0, 5))[0].tolist() == [True] * 4 + [False]


def test_the_count_of_visible_keys_is_e_to_the_lse(lib):
    # faults:F9: with q = 0 every visible key weighs 1, so lse is log of their number and o their mean.
    call = random_call(4, (2, 1), 4, 6, 3, mask=random_mask(4, 2, 4, 6))
    _, k, v = call.arrays(lib, "float64")
    state = attention(lib.array(np.zeros_like(call.q), "float64"), k, v, mask=lib.mask(call.mask))
    count = call.visible().sum(axis=-1)
    assert np.array_equal(np.round(np.exp(values(state.lse))), count)


@pytest.mark.parametrize("shape", [
    (), (1,), (5,), (3, 1), (3, 5), (1, 1, 5), (4, 1, 1), (4, 3, 5), (2, 1, 1, 1), (2, 4, 3, 5),
])  # fmt: skip
def test_a_mask_broadcasts(lib, shape):
    call = random_call(5, (4, 2), 3, 5, 2, batch=(2,))
    mask = np.array(random_mask(5, *shape, 1)[..., 0])
    full = np.broadcast_to(mask, (2, 4, 3, 5))
    arrays = call.arrays(lib, "float32")
    assert same_state(attention(*arrays, mask=lib.mask(mask)), attention(*arrays, mask=lib.mask(full)))


def test_a_mask_joins_causal(lib):
    call = random_call(6, (2, 1), 3, 5, 2, causal=True, mask=random_mask(6, 2, 3, 5))
    arrays = call.arrays(lib, "float32")
    assert same_state(attention(*arrays, **call.options(lib)), attention(*arrays, mask=lib.mask(call.visible())))


# Numbers


def test_scale_is_a_python_float_and_one_over_root_d_by_default(lib):
    call = random_call(7, (2, 1), 3, 5, 7)
    arrays = call.arrays(lib, "float32")
    expected = attention(*arrays, scale=1 / math.sqrt(7))
    for scale in (None, np.float64(1 / math.sqrt(7)), lib.array(1 / math.sqrt(7), "float64")):
        # A float64 scale of NumPy's own would lift float32 arrays to float64.
        assert same_state(attention(*arrays, scale=scale), expected)
    assert same_state(attention(*arrays, scale=2), attention(*arrays, scale=2.0))
    sharp = attention(lib.array([[3.0]]), lib.array([[1.0], [0.0]]), lib.array([[1.0], [5.0]]), scale=100)
    assert holds(sharp.o, [[1.0]]) and holds(sharp.lse, [300.0])


@pytest.mark.parametrize("out", FORMATS)
def test_o_is_rounded_once_at_the_end(lib, out):
    call = random_call(8, (2, 1), 3, 5, 2)
    for dtype in ("float16", "bfloat16", "float32"):
        q, k, v = call.arrays(lib, dtype)
        wide = attention(*(lib.array(values(x)) for x in (q, k, v)))
        o, lse = attention(q, k, v, out_dtype=lib.dtype(out))
        assert same(o, lib.array(values(wide.o), out)) and same(lse, wide.lse)
        assert same_state(attention(q, k, v, out_dtype=out), LSEState(o, lse))


def test_a_dtype_may_be_written_in_every_way(lib):
    arrays = random_call(8, (2, 1), 3, 5, 2).arrays(lib, "float16")
    for way in ("float32", np.float32, np.dtype("float32"), lib.dtype("float32"), lib.array([1.0])):
        state = attention(*arrays, out_dtype=way, stats_dtype=way)
        assert dtype_name(state.o) == dtype_name(state.lse) == "float32"


def test_inputs_of_16_bits_are_worked_on_in_32(lib):
    # claims:F11: q·k = 131072 is beyond float16, scaled it is 11585; and 256·256 is beyond it unscaled.
    v = lib.array([[7.0], [5.0]], "float16")
    q, k = lib.array(np.full((1, 128), 32.0), "float16"), lib.array([[32.0] * 128, [0.0] * 128], "float16")
    assert holds(attention(q, k, v).o, [[7.0]])
    q, k = lib.array([[256.0]], "float16"), lib.array([[256.0], [0.0]], "float16")
    assert holds(attention(q, k, v).o, [[7.0]]) and holds(attention(q, k, v).lse, [65536.0])


def test_lower_statistics_lower_only_lse_and_what_it_carries(lib):
    call = random_call(9, (2, 1), 3, 9, 2, scale=30.0)
    for dtype, stats in (("float32", "bfloat16"), ("float32", "float16"), ("float64", "float32"), ("bfloat16",) * 2):
        arrays = call.arrays(lib, dtype)
        state, plain = attention(*arrays, scale=30.0, stats_dtype=stats), attention(*arrays, scale=30.0)
        assert dtype_name(state.lse) == stats and dtype_name(state.o) == dtype
        judge(call.certified(), LSEState(state.o, plain.lse), call.budget(dtype))


# Empty, unseen, seen


@pytest.mark.parametrize("dtype", FORMATS)
def test_no_visible_key_is_the_empty_state(lib, dtype):
    q, k, v = random_call(10, (4, 2), 3, 5, 2, 4).arrays(lib, dtype)
    for state in (
        attention(q, k[:, :0], v[:, :0]),
        attention(q, k[:, :0], v[:, :0], causal=True),
        attention(q, k, v, mask=lib.mask(False)),
        attention(q, *(lib.array(np.full(x.shape, NAN), dtype) for x in (k, v)), mask=lib.mask([False])),
        attention(lib.array(np.full(q.shape, NAN), dtype), k, v, mask=lib.mask(False)),
    ):
        assert holds(state.o, np.zeros((4, 3, 4))) and holds(state.lse, np.full((4, 3), -INF))
        assert dtype_name(state.o) == dtype


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_what_no_query_sees_changes_nothing(lib, poison):
    # faults:F4, F5, F10: the poison is in k and v, in slots hidden by the mask, by causal, or by both together.
    call = random_call(11, (4, 2), 3, 9, 5, 4, batch=(2,))
    mask = random_mask(11, 2, 4, 3, 9)
    mask[..., [1, 4, 8]] = False
    mask[:, :, :, 7] = [True, False, False]  # seen by the first query alone, from which causal hides it
    for options in ({"mask": mask}, {"mask": mask, "causal": True}):
        hidden = ~np.any(random_call(11, (4, 2), 3, 9, 5, 4, batch=(2,), **options).visible(), axis=-2)
        hidden = hidden.reshape(2, 2, 2, 9).all(axis=2)  # no query of either head of the group
        assert hidden.any() and ("causal" not in options or hidden[..., 7].all())
        options = {"mask": lib.mask(mask), "causal": options.get("causal", False)}
        q, k, v = call.arrays(lib, "float32")
        plain = attention(q, k, v, **options)
        bad_k, bad_v = (lib.array(np.where(hidden[..., None], poison, x)) for x in (call.k, call.v))
        for some_k, some_v in ((bad_k, v), (k, bad_v), (bad_k, bad_v)):
            assert same_state(attention(q, some_k, some_v, **options), plain)


def test_a_query_without_a_key_may_hold_anything(lib):
    q, k, v = random_call(12, (2, 1), 4, 2, 3, causal=True).arrays(lib, "float32")
    bad = lib.array(np.where(np.arange(4)[:, None] < 2, NAN, values(q)))
    assert same_state(attention(bad, k, v, causal=True), attention(q, k, v, causal=True))


@pytest.mark.parametrize("where, poison", [("k", NAN), ("k", INF), ("v", NAN), ("q", NAN)])
def test_what_is_seen_and_no_number_makes_its_rows_nan_and_no_others(lib, where, poison):
    # d = 1 and q > 0, so that k = +∞ is a score of +∞; sequence 1, KV head 0 (query heads 0 and 1) is hit.
    rng = np.random.default_rng(13)
    shapes = {"q": (3, 4, 2, 1), "k": (3, 2, 5, 1), "v": (3, 2, 5, 2)}
    arrays = {name: rng.random(shape) + 0.5 for name, shape in shapes.items()}
    plain = attention(*(lib.array(x) for x in arrays.values()))
    arrays[where] = arrays[where].copy()
    arrays[where][1, 0, 1] = poison
    state = attention(*(lib.array(x) for x in arrays.values()))
    hit = np.zeros((3, 4, 2), dtype=bool)
    hit[1, :2] = True
    if where == "q":
        hit[1] = [[False, True], [False] * 2, [False] * 2, [False] * 2]
    assert np.isnan(values(state.o)[hit]).all()
    assert np.isnan(values(state.lse)[hit]).all() == (where != "v")
    for x, y in zip(state, plain, strict=True):
        assert np.array_equal(values(x)[~hit], values(y)[~hit])


def test_a_key_of_score_minus_infinity_weighs_nothing(lib):
    state = attention(lib.array([[1.0]]), lib.array([[-INF], [0.0]]), lib.array([[5.0], [7.0]]), scale=1)
    assert holds(state.o, [[7.0]]) and holds(state.lse, [0.0])
    state = attention(lib.array([[1.0]]), lib.array([[-INF], [-INF]]), lib.array([[5.0], [7.0]]), scale=1)
    assert holds(state.o, [[0.0]]) and holds(state.lse, [-INF])


# Nothing is changed, nothing is said


def test_arguments_are_not_changed_and_nothing_warns(lib):
    call = random_call(14, (4, 2), 3, 5, 2, mask=random_mask(14, 4, 3, 5))
    arrays, mask = call.arrays(lib, "float32"), lib.mask(call.mask)
    arrays[1], arrays[2] = (lib.array(np.where(np.arange(5)[:, None] == 2, INF, values(x))) for x in arrays[1:])
    before = [lib.array(values(x)) for x in arrays]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for causal in (False, True):
            attention(*arrays, causal=causal, mask=mask)
    assert all(map(same, arrays, before)) and np.array_equal(np.asarray(mask), call.mask)


def test_any_memory_layout(lib):
    call = random_call(15, (4, 2), 3, 5, 2, batch=(2,))
    expected = attention(*call.arrays(lib, "float32"))
    swapped = [lib.array(np.ascontiguousarray(np.swapaxes(x, 1, 2))) for x in (call.q, call.k, call.v)]
    strided = attention(*(x.swapaxes(1, 2) for x in swapped))
    exact = call.certified()
    judge(exact, expected, call.budget("float32"))
    judge(exact, strided, call.budget("float32"))


# Bad input


def arguments(lib, **changes):
    """q, k, v of a good call, with changes."""
    shapes = {"q": (2, 4, 3, 5), "k": (2, 2, 7, 5), "v": (2, 2, 7, 6)} | changes
    return [lib.array(np.ones(x)) if isinstance(x, tuple) else x for x in shapes.values()]


DIVIDE = "q must have a number of heads that is a multiple of the KV heads, "
BATCH = " (they are never broadcast)"
BAD_SHAPES = {
    "k of another head dim": ({"k": (2, 2, 7, 4)}, "k must have the head dimension of q, 5; got 4"),
    "d = 0": ({"q": (2, 4, 3, 0), "k": (2, 2, 7, 0)}, "q must have a head dimension of at least 1; got 0"),
    "v of other keys": ({"v": (2, 2, 8, 6)}, "v must have the heads and keys of k, (2, 2, 7); got (2, 2, 8)"),
    "v of other heads": ({"v": (2, 1, 7, 6)}, "v must have the heads and keys of k, (2, 2, 7); got (2, 1, 7)"),
    "heads that do not divide": ({"q": (2, 3, 3, 5)}, DIVIDE + "2; got 3"),
    "more KV heads": ({"q": (2, 1, 3, 5)}, DIVIDE + "2; got 1"),
    "no KV heads": ({"k": (2, 0, 7, 5), "v": (2, 0, 7, 6)}, DIVIDE + "0; got 4"),
    "k of another batch": ({"k": (3, 2, 7, 5)}, "k must have the leading axes of q, (2,); got (3,)" + BATCH),
    "k of batch 1": ({"k": (1, 2, 7, 5)}, "k must have the leading axes of q, (2,); got (1,)" + BATCH),
    "v of batch 1": ({"v": (1, 2, 7, 6)}, "v must have the leading axes of q, (2,); got (1,)" + BATCH),
    "q of batch 1": ({"q": (1, 4, 3, 5)}, "k must have the leading axes of q, (1,); got (2,)" + BATCH),
    "k without a batch": ({"k": (2, 7, 5)}, "k must have as many axes as q, 4; got shape (2, 7, 5)"),
    "v without a batch": ({"v": (2, 7, 6)}, "v must have as many axes as q, 4; got shape (2, 7, 6)"),
    "q of one axis": ({"q": (5,)}, "q must have at least 2 axes, (…, heads, rows, dim); got shape (5,)"),
}


@pytest.fixture(params=["attention", "split_kv_attention"])
def call_of(request, monkeypatch):
    """Each public call, in which forming a score fails the test: bad input is refused before any work."""

    def scores(*_):
        pytest.fail("a score was formed from bad input")

    monkeypatch.setattr(reference.Call, "scores", scores)
    return getattr(fdmath, request.param)


@pytest.mark.parametrize("changes, message", BAD_SHAPES.values(), ids=BAD_SHAPES)
def test_bad_shapes_are_refused_by_name(lib, call_of, changes, message):
    with pytest.raises(ValueError) as raised:
        call_of(*arguments(lib, **changes))
    assert str(raised.value) == message


def test_bad_kinds_are_refused_by_name(lib, call_of):
    q, k, v = arguments(lib)
    for bad, message in (
        ([1.0], "must be a NumPy array or a torch tensor; got list"),
        (None, "must be a NumPy array or a torch tensor; got NoneType"),
        (lib.integers(np.ones((2, 2, 7, 6))), f"must have a float dtype ({', '.join(FORMATS)}); got int32"),
        (lib.mask(np.ones((2, 2, 7, 6))), f"must have a float dtype ({', '.join(FORMATS)}); got bool"),
    ):
        for name in ("q", "k", "v"):
            with pytest.raises(TypeError) as raised:
                call_of(**({"q": q, "k": k, "v": v} | {name: bad}))
            assert str(raised.value) == f"{name} {message}"
    for name, dtype in (("k", "float16"), ("v", "bfloat16"), ("v", "float64")):
        with pytest.raises(TypeError, match=rf"^{name} must have the dtype of q, float32; got {dtype}$"):
            call_of(**({"q": q, "k": k, "v": v} | {name: lib.array(values(v if name == "v" else k), dtype)}))


def test_bad_options_are_refused_by_name(lib, call_of):
    arrays = arguments(lib)
    for mask in ((3, 1, 1, 1), (2, 2, 3, 7), (6,), (1, 2, 4, 3, 7), (4, 2, 7)):
        with pytest.raises(ValueError) as raised:
            call_of(*arrays, mask=lib.mask(np.ones(mask)))
        assert str(raised.value) == f"mask must broadcast to (2, 4, 3, 7); got {mask}"
    with pytest.raises(TypeError, match=r"^mask must be boolean, True where a key is visible; got .*float32$"):
        call_of(*arrays, mask=lib.array(np.ones(7)))
    with pytest.raises(TypeError, match=r"^mask must be a NumPy array or a torch tensor; got list$"):
        call_of(*arrays, mask=[[True] * 7])
    for scale in (NAN, INF, -INF, np.float32(NAN), 10**400):
        with pytest.raises(ValueError, match=r"^scale must be finite; got "):
            call_of(*arrays, scale=scale)
    for scale in ("0.5", [1.0], 1j, lib.array([1.0, 2.0])):
        with pytest.raises(TypeError, match=r"^scale must be a real number; got "):
            call_of(*arrays, scale=scale)
    for name in ("out_dtype", "stats_dtype"):
        for dtype in ("int8", "float8_e4m3fn", bool, "no dtype", ["float32"]):
            with pytest.raises(TypeError, match=rf"^{name} must have a float dtype \(.*\); got "):
                call_of(*arrays, **{name: dtype})
    with pytest.raises(TypeError):
        call_of(*arrays, True)


def test_two_libraries_or_devices_are_refused(torch_lib, call_of):
    q, k, v = arguments(torch_lib)
    for name in ("k", "v"):
        with pytest.raises(TypeError, match=rf"^{name} must be of the same library as q \(torch\); got numpy$"):
            call_of(**({"q": q, "k": k, "v": v} | {name: values(v if name == "v" else k)}))
        with pytest.raises(TypeError, match=rf"^{name} must be on the device of q \(cpu\); got meta$"):
            call_of(**({"q": q, "k": k, "v": v} | {name: (v if name == "v" else k).to("meta")}))
    with pytest.raises(TypeError, match=r"^mask must be of the same library as q \(torch\); got numpy$"):
        call_of(q, k, v, mask=np.ones(7, dtype=bool))
    with pytest.raises(TypeError, match=r"^mask must be on the device of q \(cpu\); got meta$"):
        call_of(q, k, v, mask=torch_lib.mask(np.ones(7)).to("meta"))
