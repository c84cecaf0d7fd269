"""Bundles of the trained presets."""

import pytest


@pytest.fixture(scope="session")
def translate(tiny_translate_bundle):
    return tiny_translate_bundle


@pytest.fixture(scope="session")
def embed(tiny_embed_bundle):
    return tiny_embed_bundle


@pytest.fixture(scope="session")
def llama(tiny_llama_bundle):
    return tiny_llama_bundle
