"""Verification computes rows of both references once, and reads a matrix that a bundle stores as integers once."""

import numpy as np
import pytest
import torch

from edgeformer.export.bundle import stored_weights
from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.parity.trials.references import Known, References
from edgeformer.manifest.manifest import Manifest
from edgeformer.models.model_spec import model_spec_of

ROWS = np.array([[5, 6, 7], [8, 9, 10], [11, 12, 13]])


@pytest.fixture(scope="module")
def bundle(int4_bundle):
    """The folder of a preset in int4, its manifest, and the spec of its model."""
    manifest = Manifest.read(int4_bundle)
    return int4_bundle, manifest, model_spec_of(manifest.model)


def logits_of(ran):
    """Return a function of a reference and rows, which notes the type of the reference and the rows that it ran."""

    def run(reference, rows):
        ran.append((reference.dtype, rows[:, 0].tolist()))
        return list(reference.run(torch.from_numpy(rows))[0])

    return run


def test_rows_that_are_known_are_not_run_again(bundle):
    folder, manifest, spec = bundle
    weights, exact, ran = StoredWeights(folder, manifest, spec), Known(), []

    def references(**options):
        return References(spec, weights, torch.float32, None, None, 1, **options)

    first = references(exact=exact, remember=True)
    found = first.compute_rows(logits_of(ran), ROWS[:2])
    again = first.compute_rows(logits_of(ran), ROWS[[2, 0]])
    assert ran == [
        (torch.float64, [5, 8]), (torch.float32, [5, 8]), (torch.float64, [11]), (torch.float32, [11]),
    ]  # fmt: skip
    assert again[1][0] is found[0][0] and again[1][1] is found[0][1]
    del ran[:]
    # Other roundings of eager PyTorch share what float64 computes, and a row behind another input is another row.
    second = references(exact=exact)
    second.compute_rows(logits_of(ran), ROWS)
    second.compute_rows(logits_of(ran), ROWS[:1], np.array([4]))
    assert ran == [(torch.float32, [5, 8, 11]), (torch.float64, [5]), (torch.float32, [5])]
    # The control: what is remembered is what is computed.
    alone = references().compute_rows(logits_of(ran), ROWS)
    for (exact_row, _), (known_row, _) in zip(alone, [*found, again[0]], strict=True):
        torch.testing.assert_close(known_row, exact_row, rtol=0, atol=1e-9)


def test_one_result_of_a_reference_is_remembered_by_its_inputs(bundle):
    folder, manifest, spec = bundle
    references = References(spec, StoredWeights(folder, manifest, spec), torch.float32, None, None, 1, exact={})
    ran = []
    for inputs in ([ROWS], [ROWS], [ROWS + 1], []):
        references.compute(lambda reference: ran.append(reference.dtype), *inputs)
    assert ran == [
        torch.float64, torch.float32, torch.float32, torch.float64, torch.float32, torch.float64, torch.float32,
    ]  # fmt: skip


@pytest.mark.parametrize("kept", [stored_weights.KEPT, 0])
def test_a_matrix_is_dequantized_once(bundle, monkeypatch, kept):
    folder, manifest, spec = bundle
    monkeypatch.setattr(stored_weights, "KEPT", kept)
    plain = stored_weights.dequantized
    read = []
    monkeypatch.setattr(stored_weights, "dequantized", lambda *given: read.append(given) or plain(*given))
    weights = StoredWeights(folder, manifest, spec)
    names = [name for name in weights if ".attention.query." in name or ".attention.key." in name]
    first = {name: weights[name] for name in weights.formats}
    matrices = len({weights._place[name][0] for name in weights.formats})
    assert names and matrices < len(weights.formats), "queries, keys and values share a matrix"
    assert len(read) == matrices, "parameters of one matrix are read one after another"
    second = {name: weights[name] for name in weights.formats}
    assert len(read) == matrices * (1 if kept else 2)
    assert all(torch.equal(first[name], second[name]) for name in first)
