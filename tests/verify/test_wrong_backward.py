"""Every wrong backward pass is killed by the law named for it; the right one that they were made from passes."""

from dataclasses import replace

import numpy as np
import pytest

from fdmath.verify import LAWS, Subject, verify
from tests.verify import wrong_backward as wrong

KILLS = [
    ("zero", wrong.changed(np.zeros_like), "gradient of o"),  # faults:I3
    ("zero", wrong.changed(np.zeros_like), "gradient of lse"),
    ("constant", wrong.changed(lambda x: np.full_like(x, 0.5)), "gradient of o"),  # faults:I2
    ("constant", wrong.changed(lambda x: np.full_like(x, 0.5)), "gradient of lse"),
    ("permuted", wrong.changed(wrong.moved), "gradient of o"),
    ("permuted", wrong.changed(wrong.moved), "gradient of lse"),
    ("NaN", wrong.changed(lambda x: np.full_like(x, np.nan)), "gradient of o"),  # faults:I1
    ("A8", wrong.a8_zero_for_empty, "gradient of nothing"),
    ("F1", wrong.top_left, "gradient of o"),
    ("F13", wrong.padded_scale, "gradient of lse"),
    ("G1", wrong.g1_tiled, "gradient of o"),
    ("G4", wrong.g4_first_head, "sum over a group"),
    ("G4, two heads", wrong.g4_two_heads, "sum over a group"),
    ("three sequences", wrong.first_two_sequences, "gradient of o"),
    ("G4, a mean", wrong.g4_mean, "sum over a group"),
    ("H1", wrong.h1_lse_dropped, "gradient of lse"),
    ("H1, in delta", wrong.h1_lse_dropped, "delta"),
    ("H1, sign", wrong.wrong_sign, "delta"),
    ("H2", wrong.own_share, "weights sum to 1"),
    ("H3", wrong.h3_base_two, "weights sum to 1"),
    ("H7", wrong.causal_forgotten, "gradient causality"),
    ("H8", wrong.h8_unguarded, "gradient of nothing"),
    ("H10", wrong.tail_cut, "weights sum to 1"),
    ("H13", wrong.h13_flat_delta, "delta"),
    ("delta", wrong.no_delta, "delta"),
]


@pytest.mark.parametrize(("fault", "backward", "law"), KILLS, ids=[f"{k[0]}-{k[2]}" for k in KILLS])
def test_a_wrong_backward_pass_is_killed_by_its_law(fault, backward, law):
    report = verify(Subject(fault, "attention", wrong.forward, backward), [law], cases=100)
    cell = report.cells[law, fault]
    assert (cell.verdict, report.exit_code) == ("fail", 1)
    assert "do = " in cell.counterexample and "dlse = " in cell.counterexample


def test_what_unseen_slots_hold_must_not_count():
    subject = Subject("F10", "decode", wrong.forward_by_lengths, wrong.f10_zero_times_nan)
    assert verify(subject, ["gradient poison"], cases=100).exit_code == 1


@pytest.mark.parametrize("subject", [
    Subject("right", "attention", wrong.forward, wrong.right),
    Subject("right by lengths", "decode", wrong.forward_by_lengths, wrong.right_by_lengths),
], ids=lambda s: s.role)  # fmt: skip
def test_the_right_backward_pass_obeys_every_law_that_asks_for_one(subject):
    laws = [law.name for law in LAWS.values()
            if law.concerns(subject) and not law.concerns(replace(subject, backward=None))]
    report = verify(subject, laws, cases=15)
    assert report.exit_code == 0, report.failures()
    assert {cell.verdict for cell in report.cells.values()} == {"pass"} and len(laws) >= 7
