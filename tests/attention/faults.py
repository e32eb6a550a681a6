"""The real faults of masks, groups and backward passes (F, G, H), each with the tests of flash_attention that catch it.

Ids are those cited elsewhere as faults:F1. "law x" is law x of `fdmath.verify`, asked of flash_attention on NumPy and
torch, and of its Triton kernels in the interpreter and on a device.
"""

FORWARD, BACKWARD, SMALL = "test_flash", "test_flash_backward", "test_flash_faults"
KERNEL = "../kernels/interpreted_flash"
ANY_GRADIENT = f"{BACKWARD}:test_any_blocks_give_the_gradient_by_definition"
ANY_KERNEL = f"{KERNEL}:test_every_call_and_its_gradients_are_within_their_budgets"
RAGGED = f"{FORWARD}:test_lengths_that_no_block_divides"
PADDING = f"{BACKWARD}:test_padding_has_no_gradient_and_spoils_none"
PARTS = f"{BACKWARD}:test_parts_with_the_merged_state_add_up"
RATIOS = f"{SMALL}:test_every_ratio_of_heads_reads_and_fills_its_own"
APART = f"{SMALL}:test_parts_of_other_sizes_that_lie_apart_add_up"

CAUGHT = {
    "F1": [f"{FORWARD}:test_small_answers_known_by_heart", "law anchor", "law gradient of o", ANY_KERNEL],
    "F4": [f"{SMALL}:test_a_length_of_whole_blocks_ends_there", ANY_KERNEL],
    "F5": [f"{FORWARD}:test_later_keys_do_not_change_earlier_rows", "law causality", "law gradient causality"],
    "F7": [f"{SMALL}:test_a_hop_of_a_ring_is_causal_full_or_not_there"],
    "F8": [f"{SMALL}:test_a_window_counts_the_querys_own_key"],
    "F9": [f"{SMALL}:test_a_tail_shorter_than_a_tile_counts_its_own_keys_alone", RAGGED, "law counting", ANY_KERNEL],
    "F10": [f"{FORWARD}:test_what_no_query_sees_changes_nothing", PADDING, "law poison", "law gradient poison"],
    "F11": [f"{SMALL}:test_a_hole_in_the_cache_is_not_attended"],
    "F13": [f"{FORWARD}:test_the_scale_is_that_of_the_true_width", "law delta", ANY_KERNEL],
    "G1": [f"{FORWARD}:test_small_answers_known_by_heart", RATIOS, "law gradient of o"],
    "G2": [RATIOS, f"{FORWARD}:test_small_answers_known_by_heart"],
    "G4": [RATIOS, f"{BACKWARD}:test_a_group_gets_the_sum_of_its_heads", "law sum over a group"],
    "H1": [f"{BACKWARD}:test_a_loss_on_lse_alone", "law gradient of lse", "law delta",
           f"{KERNEL}:test_autograd_takes_o_and_lse_and_refuses_a_second_derivative"],
    "H2": [PARTS, APART],
    "H3": [f"{SMALL}:test_p_made_anew_sums_to_1", "law weights sum to 1"],
    "H4": [PARTS, APART],
    "H5": [f"{SMALL}:test_as_many_heads_as_keys"],
    "H6": [APART],
    "H7": [f"{BACKWARD}:test_the_causal_flag_is_obeyed_in_both_directions", "law gradient causality", ANY_KERNEL],
    "H8": [f"{BACKWARD}:test_without_keys_the_gradient_is_zero", "law gradient of nothing",
           f"{KERNEL}:test_no_keys_or_no_queries_have_gradients_of_zeros"],
    "H9": [PADDING, f"{BACKWARD}:test_causal_rows_without_a_key_have_no_gradient", "law gradient of nothing",
           f"{KERNEL}:test_rows_that_see_no_key_are_nothing_in_both_directions"],
    "H10": [f"{SMALL}:test_a_length_that_no_block_divides_has_finite_gradients", ANY_GRADIENT, ANY_KERNEL],
    "H11": [f"{SMALL}:test_p_made_anew_sums_to_1_where_scores_are_80", "law weights sum to 1",
            f"{BACKWARD}:test_16_bit_gradients_are_rounded_once", ANY_KERNEL],
    "H13": [f"{BACKWARD}:test_arrays_that_do_not_lie_in_a_row", f"{KERNEL}:test_strides_move_no_bit"],
}  # fmt: skip

ELSEWHERE = {"H12": "no call here has dropout"}
"""Why the others cannot befall it: with CAUGHT 9 kinds of F, 3 of G, 13 of H."""
