"""The kinds of real faults that concern decoding or merging, each with the tests of the kernels that would catch it.

Ids are those cited elsewhere as faults:A1: A empty states, B the online recurrence, C splits and their merge, D what
lse means, E the arithmetic of a merge, F masks and places, G groups, H backward, I faults of tests. "law x" is law x
in `interpreted_laws.py` and, compiled, in `tests/gpu/test_laws.py`.
"""

SPLIT, MERGE, SMALL = "interpreted_split_kv", "interpreted_merge", "interpreted_faults"
GPU, RANDOM = "../gpu/test_decode", "../gpu/test_random"
ANY_CALL = f"{SPLIT}:test_every_call_is_within_its_budget"
ANY_CUT = f"{SPLIT}:test_any_cut_of_the_keys_is_within_its_budget"
ANY_RANDOM = f"{RANDOM}:test_random_calls_are_within_their_budgets"
LENGTHS = f"{SPLIT}:test_lengths_and_starts_are_those_keys_alone"
UNSEEN = f"{SPLIT}:test_slots_that_are_not_in_use_and_what_memory_held_before_change_nothing"
ANY_MERGE = f"{MERGE}:test_a_merge_is_within_the_flat_forms_budget"
LEVELS = f"{SMALL}:test_states_at_any_levels_merge_within_the_bound"
SCORES = f"{SMALL}:test_scores_that_fall_rise_or_lie_far_from_0"
WRONG = "test_calls:test_what_is_wrong_fails_in_o_or_in_lse_alone"

CAUGHT = {
    "A1": [ANY_MERGE, LEVELS, "law empty"],
    "A2": [LENGTHS, ANY_MERGE, f"{GPU}:test_no_sequences_no_queries_no_keys_none_in_use"],
    "A3": [ANY_CUT, LENGTHS, "law empty"],
    "A4": [f"{SPLIT}:test_a_query_sees_the_keys_up_to_its_own_place_counted_from_the_end", ANY_CALL, ANY_RANDOM],
    "A5": [f"{SMALL}:test_a_sequence_beside_one_without_keys_has_the_bits_that_it_has_alone"],
    "A6": [f"{MERGE}:test_empty_parts_change_nothing_whatever_they_hold", "law left identity"],
    "A7": [LEVELS, f"{MERGE}:test_empty_parts_change_nothing_whatever_they_hold"],
    "B2": [SCORES], "B4": [SCORES, "law shift"], "B5": [SCORES, ANY_CALL], "B6": [SCORES, ANY_CALL],
    "B7": [SCORES, "law shift"], "B8": [SCORES, "law shift"],
    "B11": [f"{SPLIT}:test_what_is_1_everywhere_stays_1_within_an_ulp",
            f"{GPU}:test_what_is_1_everywhere_stays_1_within_an_ulp"],
    "B12": [ANY_CALL, "law anchor"],
    "B13": [ANY_CALL, f"{RANDOM}:test_long_calls_are_within_their_budgets_of_float64_on_the_device"],
    "B14": [f"{SMALL}:test_the_sum_of_many_values_does_not_overflow_the_format"],
    "C1": [f"{SPLIT}:test_splits_are_what_they_say_and_their_states_are_made", "law counting"],
    "C3": [UNSEEN, ANY_CUT, f"{MERGE}:test_many_parts_are_taken_in_turns"],
    "C4": [ANY_CALL, "law partition independence"],
    "C5": [ANY_CUT, "law partition independence"],
    "C6": [f"{GPU}:test_a_graph_replays_with_other_lengths_and_refuses_those_beyond_the_cache"],
    "C8": [UNSEEN, LENGTHS, "law poison"],
    "C9": [f"{SMALL}:test_states_of_splits_are_not_kept_in_16_bits"],
    "C11": [f"{SPLIT}:test_splits_are_what_they_say_and_their_states_are_made"],
    "C12": [f"{SPLIT}:test_with_tiles_a_row_has_the_same_bits_alone_and_in_any_batch", ANY_RANDOM,
            f"{GPU}:test_the_same_bits_every_time_alone_in_a_batch_and_whatever_memory_held"],
    "D1": [ANY_CUT, ANY_MERGE], "D2": [ANY_CUT, ANY_MERGE], "D3": [ANY_CALL, WRONG], "D4": [ANY_CALL, WRONG],
    "D6": [ANY_CALL, SCORES],
    "D7": [f"{SPLIT}:test_layouts_are_read_and_written_where_they_lie", ANY_CALL],
    "D8": [ANY_CUT, f"{SPLIT}:test_splits_are_what_they_say_and_their_states_are_made"],
    "D9": [f"{SPLIT}:test_splits_are_what_they_say_and_their_states_are_made", ANY_RANDOM],
    "D10": [LENGTHS], "D11": [ANY_CALL, WRONG], "D13": [ANY_CUT, LEVELS],
    "E1": [LEVELS, SCORES], "E2": [LEVELS, SCORES], "E4": [ANY_MERGE, LEVELS],
    "E6": [LEVELS, ANY_MERGE],
    "F1": [f"{SPLIT}:test_a_query_sees_the_keys_up_to_its_own_place_counted_from_the_end", "law causality"],
    "F4": [f"{SMALL}:test_a_length_of_whole_steps_ends_there", ANY_RANDOM],
    "F5": ["law causality", ANY_CALL],
    "F9": [ANY_CALL, "law counting"],
    "F10": [UNSEEN, ANY_RANDOM, "law poison"],
    "F11": [LENGTHS, "law counting"],
    "F13": [ANY_CALL, ANY_RANDOM],
    "G1": [ANY_CALL, ANY_RANDOM], "G2": [ANY_CALL, ANY_RANDOM],
    "I1": [WRONG], "I2": [WRONG],
    "I4": [f"{SPLIT}:test_splits_are_what_they_say_and_their_states_are_made",
           f"{GPU}:test_auto_takes_the_kernel_where_it_can_do_what_is_asked"],
    "I5": ["test_calls:test_one_key_less_is_seen"],
    "I6": ["test_calls:test_what_is_right_passes"],
    "I7": ["test_calls:test_nothing_where_there_are_no_keys_and_something_where_there_are"],
    "I9": [ANY_RANDOM],
}

ELSEWHERE = {
    "A8": "backward", "B10": "quantised P", "B15": "soft cap", "D12": "quantised P", "E3": "the flat form may lose it",
    "E5": "a merge in place", "E7": "sink", "F7": "ring", "F8": "window", "I3": "gradients", "I8": "mutants",
    **dict.fromkeys(["G4", *(f"H{i}" for i in range(1, 14))], "backward"),
}
"""Why the others cannot befall these kernels, or are held elsewhere: with CAUGHT 73 kinds, and 9 kinds of tests."""
