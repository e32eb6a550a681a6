"""The kernels in the interpreter, from a process that has none."""

import numpy as np
import pytest

from fdmath.bench.interpreted import interpreter
from fdmath.verify import Subject
from fdmath.verify.cases import CallCase

pytest.importorskip("triton")
pytest.importorskip("torch")


def test_arrays_go_in_and_come_out_and_errors_come_back():
    q, k, v = (np.ones((1, 1, n, 16), np.float32) for n in (1, 3, 3))
    with interpreter() as run:
        o, lse = run("fdmath.kernels.split_kv:split_kv_decode", q, k, v, num_splits=2)
        assert run("fdmath.kernels.split_kv:workspace_size", q, k, v, num_splits=2) == 2 * 17
        with pytest.raises(ValueError, match="num_splits must be at least 1; got 0"):
            run("fdmath.kernels.split_kv:split_kv_decode", q, k, v, num_splits=0)
    assert o.dtype == lse.dtype == np.float32 and np.array_equal(o, np.ones_like(o))
    case, kernel = CallCase(q, k, v, num_splits=2), Subject("kernel", "partial", lambda *_: (o, lse))
    assert case.certified().judge(case.run(kernel), case.budget(kernel)).verdict == "pass"
