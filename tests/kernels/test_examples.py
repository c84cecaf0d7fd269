"""Programs of examples/ run kernels where the environment names the library, and write what our runtime writes."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from slow_rows import slow_unless

from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime import load

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))  # the folders of tools/ are packages

from verification.client_programs.client import EXAMPLES, ClientError, Places
from verification.client_programs.registry import CLIENTS

STEPS = 40
VARIABLE = "EDGEFORMER_KERNELS_LIBRARY"
REGISTERING = ("onnxruntime", "onnxruntime-genai", "onnxruntime (C++)", "onnxruntime (C#)")
"""Clients that can register a library."""


@pytest.fixture(scope="module")
def prompts(int4_bundle):
    random = np.random.default_rng(0)
    return [random.integers(3, 2048, 6).tolist() for _ in range(32)]


@pytest.fixture(scope="module")
def places():
    modules = os.environ.get("EDGEFORMER_NODE_MODULES", EXAMPLES / "node" / "node_modules")
    headers = os.environ.get("EDGEFORMER_ONNXRUNTIME")
    return Places(node_modules=Path(modules), onnxruntime=Path(headers) if headers else None)


def without_ends(bundle, texts):
    ends = Manifest.read(bundle).tokens.eos
    return [[token for token in text if token not in ends] for text in texts]


def tokens_of(model, prompts):
    texts = [model.generate(prompt, max_new_tokens=STEPS).token_ids for prompt in prompts]
    return without_ends(model.folder, texts)


def parting(one, other):
    """Return the number of tokens of two texts up to the first that differs, and more than they have for equal ones."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place + 1 for place, pair in pairs if pair[0] != pair[1]), STEPS + 1)


def present(name, places):
    missing = CLIENTS[name].missing(places)
    if missing is not None:
        pytest.skip(f"2026-11-24: {name} needs {missing}")
    return CLIENTS[name]


@pytest.mark.parametrize("name", slow_unless(("onnxruntime", "onnxruntime-genai"), REGISTERING))
def test_a_client_runs_kernels(int4_bundle, prompts, places, installed, library, monkeypatch, name):
    client = present(name, places)
    installed(library)
    kernels, bodies = (tokens_of(load(int4_bundle, "cpu", kernels=own), prompts) for own in (True, False))
    # Behind the first token that differs, rounding may choose otherwise again, in the client's own pieces of a prompt.
    ends = sorted((parting(*pair), index) for index, pair in enumerate(zip(kernels, bodies, strict=True)))[:2]
    assert all(end <= STEPS // 2 for end, _ in ends), (
        "prompts after which kernels and bodies write the same tell nothing"
    )
    prompts = [prompts[index] for _, index in ends]
    for expected, value in ((kernels, library), (bodies, None)):
        if value is not None:
            monkeypatch.setenv(VARIABLE, value)
        else:
            monkeypatch.delenv(VARIABLE)
        made = without_ends(int4_bundle, client.generate(int4_bundle, prompts, STEPS, places))
        for text, (end, index) in zip(made, ends, strict=True):
            assert text[:end] == expected[index][:end]
    monkeypatch.setenv(VARIABLE, "/nowhere/libedgeformer_kernels.so")
    with pytest.raises(ClientError, match="nowhere"):
        client.generate(int4_bundle, prompts[:1], 2, places)


def test_node_cannot_register_a_library(int4_bundle, prompts, places, library, monkeypatch):
    """onnxruntime-node has no session option for it, so that the functions' bodies run."""
    client = present("transformers.js (Node)", places)
    binding = next((places.node_modules / "onnxruntime-node" / "bin").rglob("onnxruntime_binding.node"))
    assert b"RegisterCustomOps" not in binding.read_bytes()
    monkeypatch.setenv(VARIABLE, library)
    bodies = tokens_of(load(int4_bundle, "cpu", kernels=False), prompts[:2])
    assert without_ends(int4_bundle, client.generate(int4_bundle, prompts[:2], STEPS, places)) == bodies
