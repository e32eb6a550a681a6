"""The three spellings: shapes, formats, conversion, emptiness."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from fdmath import AccState, LSEState, MLOState, identity, merge
from fdmath.algebra.rounding import no_error
from fdmath.algebra.state import canonical, check_kind, is_empty
from tests.algebra.judgement import certified, finished, judge
from tests.algebra.libraries import FORMATS, dtype_name, holds, same, same_state, values
from tests.algebra.states import KINDS, empty_states, random_state, state

SHOWN = 0.01  # a bound that no case here brings within a factor 100 would be an empty promise


@pytest.mark.parametrize("kind, names", [(MLOState, "m l o"), (AccState, "m l acc"), (LSEState, "o lse")])
def test_a_state_unpacks_in_the_order_written_and_is_frozen(lib, kind, names):
    s = random_state(lib, kind, np.random.default_rng(0), (3, 2))
    for name, field in zip(names.split(), s, strict=True):
        assert getattr(s, name) is field
        with pytest.raises(FrozenInstanceError):
            setattr(s, name, field)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_equal_to_itself_alone(lib, kind):
    # Arrays have no truth value, so that states of equal arrays could neither be compared nor be kept in a set.
    s = random_state(lib, kind, np.random.default_rng(0), (3, 2))
    assert s == s and s != s.map(lambda x: x) and len({s, s, s.map(lambda x: x)}) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_plus_is_merge(lib, kind):
    a, b = (random_state(lib, kind, np.random.default_rng(seed), (3, 2)) for seed in (1, 2))
    assert same_state(a + b, merge(a, b))


def test_a_state_of_wrong_parts_is_refused(lib):
    o, lse = lib.array([[1.0, 2.0]]), lib.array([0.0])
    with pytest.raises(ValueError, match=r"^lse must have the shape of o without its last axis, \(1,\); got \(2,\)$"):
        LSEState(o, lib.array([0.0, 0.0]))
    with pytest.raises(ValueError, match=r"^l must have the shape of acc .*\(1,\); got \(1, 1\)$"):
        AccState(lse, lib.array([[1.0]]), o)
    with pytest.raises(ValueError, match=r"^lse must have the shape of o without its last axis, \(1,\); got \(1, 2\)$"):
        LSEState(o, o)
    with pytest.raises(ValueError, match=r"^acc must have at least the axis dv; got shape \(\)$"):
        AccState(lib.array(0.0), lib.array(1.0), lib.array(2.0))
    with pytest.raises(ValueError, match=r"^lse must have the shape of o without its last axis, \(3, 4\); got \(3,\)$"):
        LSEState(lib.array(np.zeros((3, 4, 2))), lib.array(np.zeros(3)))
    with pytest.raises(TypeError, match=r"^lse must be a NumPy array or a torch tensor; got list$"):
        LSEState(o, [0.0])
    with pytest.raises(TypeError, match=r"^m must have a float dtype .*; got int32$"):
        MLOState(lib.integers([0]), lse, o)


def test_arrays_of_two_libraries_are_refused(torch_lib):
    with pytest.raises(TypeError, match=r"^lse must be of the same library as o \(torch\); got numpy$"):
        LSEState(torch_lib.array([[1.0]]), np.zeros(1, np.float32))


def test_arrays_of_two_devices_are_refused(torch_lib):
    with pytest.raises(TypeError, match=r"^lse must be on the device of o \(cpu\); got meta$"):
        LSEState(torch_lib.array([[1.0]]), torch_lib.array([0.0]).to("meta"))


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_identity_of_each_kind(lib, dtype):
    like = lib.array([[1.0]], dtype)
    inf = [[-np.inf] * 3] * 2
    for kind, expected in {
        LSEState: (np.zeros((2, 3, 4)), inf),
        MLOState: (inf, np.zeros((2, 3)), np.zeros((2, 3, 4))),
        AccState: (inf, np.zeros((2, 3)), np.zeros((2, 3, 4))),
    }.items():
        nothing = identity((2, 3), 4, kind, like=like)
        assert type(nothing) is kind and all(map(holds, nothing, expected))
        assert {dtype_name(x) for x in nothing} == {dtype}
        assert values(is_empty(nothing)).all()


def test_the_identity_without_an_array_to_be_like_is_a_pair_of_float32():
    nothing = identity((), 2)
    assert type(nothing) is LSEState and isinstance(nothing.o, np.ndarray)
    assert holds(nothing.o, [0.0, 0.0]) and holds(nothing.lse, -np.inf)
    assert {dtype_name(x) for x in nothing} == {"float32"}


def test_the_identity_may_have_no_columns():
    assert tuple(identity((2,), 0).o.shape) == (2, 0)


def test_the_identity_refuses_what_has_no_shape_or_kind(lib):
    with pytest.raises(ValueError, match=r"^dv must be at least 0; got -1$"):
        identity((1,), -1)
    with pytest.raises(TypeError, match=r"^kind must be MLOState, AccState or LSEState; got 'LSE'$"):
        identity((1,), 1, "LSE")
    with pytest.raises(TypeError, match=r"^like must have a float dtype .*; got int32$"):
        identity((1,), 1, like=lib.integers([1]))
    with pytest.raises(TypeError, match="kind"):
        check_kind(None)


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_conversion_is_exact_where_its_arithmetic_is(lib, source, target):
    # l = 1 makes log l = 0 and l·o = o, so that no spelling rounds.
    s = state(lib, source, [[-3.0, 0.5]], [[[2.0, -1.0], [0.25, 7.0]]])
    assert same_state(s.to(target), state(lib, target, [[-3.0, 0.5]], [[[2.0, -1.0], [0.25, 7.0]]]))
    assert same_state(s.finalize(), s.to(LSEState))


def test_a_triple_normalises_and_denormalises_by_l(lib):
    triple = state(lib, MLOState, [0.0, 3.0], [[6.0], [-1.0]], mass=[4.0, 0.5])
    sums = AccState(triple.m, triple.l, lib.array([[24.0], [-0.5]]))
    assert same_state(triple.to(AccState), sums)
    assert same_state(sums.to(MLOState), triple)


@pytest.mark.parametrize("kind", [MLOState, AccState])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lse_is_m_plus_log_l_within_its_rounding(lib, kind, dtype):
    # m at every level, and m = −½ log l: there |lse| and |m| are equal, and log l is twice as large as both.
    rng = np.random.default_rng(3)
    l = lib.array(10.0 ** rng.uniform(-30, 30, 400), dtype)
    m = np.where(np.arange(400) % 2, rng.choice([0.0, 1.0, 1e3, -1e6], 400), -0.5 * np.log(values(l)))
    s = kind(lib.array(m, dtype), l, lib.array(np.ones((400, 1)), dtype))
    worst = judge(certified([s]), *finished(s, no_error(s)))
    assert SHOWN <= worst.lse


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stats, payload", [("float32", "float16"), ("bfloat16", "float32"), ("bfloat16", "bfloat16"),
                                            ("float16", "float64")])  # fmt: skip
def test_conversion_keeps_the_formats(lib, kind, stats, payload):
    level, mass, o = lib.array([1.0], stats), lib.array([1.0], stats), lib.array([[2.0]], payload)
    s = LSEState(o, level) if kind is LSEState else kind(level, mass, o)
    for target in KINDS:
        converted = s.to(target)
        assert dtype_name(converted.payload) == payload
        assert all(dtype_name(x) == stats for x in converted if x is not converted.payload)


def test_conversion_works_wider_than_it_stores(lib):
    # 1 + log 2 = 1.69314… is 1.6953125 in bfloat16 (spacing 2⁻⁷); by way of log 2 = 0.69140625 it would be 1.6875.
    s = MLOState(lib.array([1.0], "bfloat16"), lib.array([2.0], "bfloat16"), lib.array([[1.0]], "bfloat16"))
    assert holds(s.finalize().lse, [1.6953125])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FORMATS)
def test_however_empty_is_written_it_is_the_identity(lib, kind, dtype):
    for nothing in empty_states(lib, kind, 2, 3, dtype):
        assert values(is_empty(nothing)).all()
        assert same_state(canonical(nothing), identity((2,), 3, kind, like=nothing.payload))
        assert same_state(nothing.finalize(), identity((2,), 3, LSEState, like=nothing.payload))
        for target in set(KINDS) - {kind}:
            assert same_state(nothing.to(target), identity((2,), 3, target, like=nothing.payload))


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_empty_rows_are_cleared(lib, kind):
    full = random_state(lib, kind, np.random.default_rng(4), (3, 2))
    for nothing in empty_states(lib, kind, 1, 2):
        mixed = type(full)(*(lib.array([*values(x)[:2], *values(y)]) for x, y in zip(full, nothing, strict=True)))
        cleaned = canonical(mixed)
        assert values(is_empty(cleaned)).tolist() == [0, 0, 1]
        assert all(same(x[:2], y[:2]) for x, y in zip(cleaned, full, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_level_of_plus_infinity_is_no_state(lib, kind):
    finished = state(lib, kind, [np.inf, 0.0], [[7.0], [5.0]]).finalize()
    assert holds(finished.lse, [np.nan, 0.0])


@pytest.mark.parametrize("kind", [MLOState, AccState])
def test_no_mass_is_the_state_of_no_keys_at_an_infinite_level_too(lib, kind):
    nothing = kind(lib.array([np.inf]), lib.array([0.0]), lib.array([[7.0]]))
    assert same_state(canonical(nothing), identity((1,), 1, kind, like=nothing.payload))


def test_conversion_is_differentiable_and_an_empty_row_has_no_gradient(torch_lib):
    torch = torch_lib.module

    def finished(m, l, acc):
        return tuple(AccState(m, l, acc).to(MLOState).to(AccState).finalize())

    m, l = torch_lib.array([0.5, -2.0], "float64"), torch_lib.array([3.0, 0.5], "float64")
    acc = torch_lib.array([[1.0, -2.0], [0.5, 4.0]], "float64")
    leaves = [x.requires_grad_() for x in (m, l, acc)]
    assert torch.autograd.gradcheck(finished, leaves)
    nothing = [torch_lib.array(x, "float64").requires_grad_() for x in ([-np.inf], [0.0], [[np.nan, 1.0]])]
    o, lse = finished(*nothing)
    assert all(holds(g, np.zeros(g.shape)) for g in torch.autograd.grad(o.sum() + lse.sum(), nothing))
