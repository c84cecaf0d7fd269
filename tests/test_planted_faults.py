"""Every planted fault is found by a test that runs by default; the few that are left to the slow tests say why.

A kept list: a new table of faults is added here, with the test that plants them. Faults in C++ are built by slow tests,
which show that a program of the kernels' tests finds each; by default the same programs run, without a fault.
"""

import importlib
import re
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

PLANTED = {
    ("export", "test_gate", "GRAPH_FAULTS"): ("test_a_fault_in_the_graph_fails_the_checks_that_can_see_it",),
    ("export", "test_gate", "MODEL_FAULTS"): ("test_a_fault_in_the_model_shows_in_every_run",),
    ("export", "test_int8_cache", "FAULTS"): ("test_faults_are_found_by_what_is_computed",),
    ("export", "test_locate", "FAULT"): (
        "test_a_fault_is_found_in_exactly_the_wrong_nodes",
        "test_a_graph_of_another_config_is_found_where_they_differ",
    ),
    ("export", "test_locate_encoders", "GRAPH_FAULTS"): ("test_a_fault_of_one_graph_is_found_in_its_node",),
    ("export", "test_locate_encoders", "WEIGHT_FAULTS"): ("test_another_weight_is_found_in_every_graph_that_reads_it",),
    ("export", "test_merged_decoder", "FAULTS"): ("test_a_wrong_graph_fails",),
    ("export", "test_transformers_backend", "FAULTS"): ("test_the_proof_refuses_a_wrong_plan_and_names_the_layer",),
    ("export", "test_transformers_experts", "FAULTS"): ("test_the_proof_refuses_experts_that_compute_something_else",),
    ("export", "test_transformers_recurrent", "FAULTS"): ("test_the_proof_refuses_other_states",),
    ("export", "test_wrong_blocks", "PAIRS"): ("test_a_wrong_block_is_refused",),
    ("export", "test_wrong_encoders", "MEANT"): ("test_a_graph_of_another_model_is_refused",),
    ("export", "test_wrong_encoders", "PLANTED"): ("test_a_fault_in_a_finished_graph_is_found",),
    ("export", "test_wrong_states", "FAULT"): ("test_a_fault_is_refused_and_its_node_is_named",),
    ("export", "test_verify_recurrent", "WRONG_WEIGHTS"): ("test_wrong_recurrent_layers_are_not",),
    ("export", "test_verify_recurrent", "WRONG_CONFIGS"): ("test_wrong_recurrent_layers_are_not",),
    ("check", "test_faults", "FAULTS"): ("test_a_fault_is_found",),
    ("check", "test_states", "FAULTS"): ("test_a_fault_in_a_state_is_found",),
    ("check", "test_webgpu_kernels", "FAULTS"): ("test_a_planted_node_is_found",),
    ("families", "test_mtp", "LAYER_FAULTS"): ("test_verification_refuses_another_layer",),
    ("families", "test_mtp", "RUNTIME_FAULTS"): ("test_verification_refuses_another_runtime",),
    ("families", "test_sound_text", "FAULTS"): ("test_planted_faults_of_towers_of_sound_are_refused",),
    ("families", "test_sound_text", "SOUND_FAULTS"): ("test_an_export_refuses_other_spectrograms",),
    ("families", "test_naflex", "MODULE_FAULTS"): ("test_an_export_refuses_a_tower_that_is_another",),
    ("families", "test_naflex", "PIXEL_FAULTS"): ("test_an_export_refuses_other_patches",),
    ("families", "test_naflex", "RUNTIME_FAULTS"): ("test_verification_refuses_other_inputs",),
    ("families", "test_picture_encoder", "MODULE_FAULTS"): ("test_an_export_refuses_a_model_that_is_another",),
    ("families", "test_picture_encoder", "PIXEL_FAULTS"): ("test_an_export_refuses_pixels_that_are_others",),
    ("families", "test_picture_encoder", "RUNTIME_FAULTS"): ("test_verification_refuses_states_in_other_places",),
    ("families", "test_picture_text", "BLOCK_FAULTS"): ("test_planted_faults_of_blocks_are_refused",),
    ("families", "test_picture_text", "CODE_FAULTS"): ("test_an_export_refuses_code_that_is_another",),
    ("families", "test_picture_text", "EDGE_FAULTS"): ("test_an_export_refuses_other_patches_of_mistral",),
    ("families", "test_picture_text", "GRID_FAULTS"): ("test_an_export_refuses_patches_that_are_others",),
    ("families", "test_picture_text", "MODULE_FAULTS"): ("test_an_export_refuses_a_model_that_is_another",),
    ("families", "test_picture_text", "PACKING_FAULTS"): ("test_an_export_refuses_other_packings",),
    ("families", "test_picture_text", "PIXEL_FAULTS"): ("test_an_export_refuses_pixels_that_are_others",),
    ("families", "test_picture_text", "PROMPT_FAULTS"): ("test_planted_faults_of_blocks_are_refused",),
    ("families", "test_picture_text", "RUNTIME_FAULTS"): ("test_verification_refuses_other_positions_and_states",),
    ("families", "test_picture_to_text", "FAULTS"): ("test_an_export_refuses_a_model_that_is_another",),
    ("families", "test_quantized_checkpoints", "FAULTS"): ("test_a_fault_changes_the_weights",),
    ("families", "test_quantized_checkpoints", "MISREAD_FAULTS"): ("test_verification_refuses_nvfp4_read_wrong",),
    ("families", "test_written_checkpoints", "FAULTS"): ("test_a_fault_in_a_written_checkpoint_shows",),
    ("families", "test_request_lengths", "FAULTS"): ("test_a_wrong_table_is_refused",),
    ("tools", "test_tiny_vision", "MODULE_FAULTS"): ("test_wrong_places_and_blocks_make_wrong_answers",),
    ("tools", "test_tiny_vision", "PIXEL_FAULTS"): ("test_wrong_pixels_make_wrong_answers_and_no_bundle",),
    ("kernels", "test_abi", "FAULTS"): ("test_another_declaration_does_not_compile",),
    ("kernels", "test_cpp_faults", "FAULTS"): ("test_faults_are_found",),
    ("kernels", "test_arm", "FAULTS"): ("test_faults_are_found_on_arm",),
}
"""The tests that plant the faults of a table, by its folder, file and name."""

SLOW = {
    "WRONG_WEIGHTS": "Exports of five layers; two faults of each kind of recurrent layer run by default.",
    "WRONG_CONFIGS": "The same.",
    "test_cpp_faults": "Each compiles a file; the program that finds it runs by default.",
    "test_arm": "Each is compiled for another processor, and run by an emulator.",
}
"""Why the faults of a table, or of a file, may be planted by slow tests."""


OF_PICTURES = {
    "height and width swapped": ("PIXEL_FAULTS", "GRID_FAULTS", "EDGE_FAULTS", "CODE_FAULTS", "RUNTIME_FAULTS"),
    "order of merged patches": ("CODE_FAULTS", "test_an_export_refuses_patches_in_another_order"),
    "a causal block": ("BLOCK_FAULTS", "MODULE_FAULTS"),
    "deepstack a layer late": ("CODE_FAULTS",),
    "delta 0": ("RUNTIME_FAULTS",),
    "blue for red": ("PIXEL_FAULTS", "GRID_FAULTS"),
    "mean for deviation": ("test_an_export_refuses_mean_for_deviation",),
    "order of tiles": ("PIXEL_FAULTS", "PACKING_FAULTS"),
    "corners on corners": ("MODULE_FAULTS", "CODE_FAULTS"),
    "no thumbnail": ("PIXEL_FAULTS",),
    "rows of the placeholder": ("MODULE_FAULTS",),
}
"""The tables, or the test, that plant a fault of what models see: each has an entry of a name below."""

NAMES_OF_PICTURES = {
    "height and width swapped": ("height and width",),
    "order of merged patches": ("states of a square",),
    "a causal block": ("causal",),
    "corners on corners": ("corners",),
    "order of tiles": ("order of tiles", "tiles one after the other"),
}
"""Words of the entries, where they are not those of the fault."""


def module(folder, name):
    if str(TESTS / folder) not in sys.path:
        sys.path.insert(0, str(TESTS / folder))
    return importlib.import_module(name)


def is_slow(mark):
    return mark.name == "slow"


def _names_a_fault(value):
    return isinstance(value, str) or callable(value) or (isinstance(value, tuple) and len(value) > 1)


def planted(test):
    """The parameters of a test, texts, functions and those of a case together: whether they run by default."""
    marks, found = getattr(test, "pytestmark", []), {}
    for mark in marks:
        for case in mark.args[1] if mark.name == "parametrize" else ():
            values = case.values if hasattr(case, "marks") else case if isinstance(case, tuple) else (case,)
            slow = any(map(is_slow, [*marks, *getattr(case, "marks", ())]))
            found |= {value: not slow for value in (*values, tuple(values)) if _names_a_fault(value)}
    return found


@pytest.mark.parametrize("table", PLANTED, ids=lambda table: f"{table[1]}-{table[2]}")
def test_every_fault_is_planted(table):
    folder, file, name = table
    tests = module(folder, file)
    found = {}
    for test in PLANTED[table]:
        found |= planted(getattr(tests, test))
    names = set(getattr(tests, name))
    assert names <= found.keys()
    left = {each for each in names if not found[each]}
    assert bool(left) == (file in SLOW or name in SLOW), f"said otherwise: {left}"


def test_faults_in_cpp_are_in_programs_that_run_by_default():
    faults, programs = module("kernels", "test_cpp_faults").FAULTS, module("kernels", "test_cpp")
    run = planted(programs.test_the_tests_in_cpp_pass)
    assert {f"test_{fault.program}" for fault in faults.values()} <= {program for program, now in run.items() if now}


def test_every_table_of_faults_is_listed():
    written = re.compile(r"^((?:\w+_)?FAULTS?)\b.* = ", re.MULTILINE)
    tables = {
        (file.parent.name, file.stem, name)
        for file in TESTS.glob("*/test_*.py")
        for name in written.findall(file.read_text())
    }
    assert tables <= PLANTED.keys()


def test_a_fault_that_nobody_plants_would_be_seen():
    @pytest.mark.parametrize("name", ["a", pytest.param("b", marks=pytest.mark.slow)])
    def test(name): ...

    assert planted(test) == {"a": True, "b": False}
    assert planted(pytest.mark.slow(test)) == {"a": False, "b": False}


@pytest.mark.parametrize("fault", OF_PICTURES)
def test_every_fault_of_what_models_see_is_planted(fault):
    tables = module("families", "test_picture_text")
    for place in OF_PICTURES[fault]:
        found = getattr(tables, place)
        entries = (
            [str(each[-1] if isinstance(each, tuple) else each) for each in found] if isinstance(found, dict) else []
        )
        words = NAMES_OF_PICTURES.get(fault, (fault,))
        assert callable(found) or any(word in entry for entry in entries for word in words), place
