"""A small Llama with two adapters, and its bundle, which several files read."""

import pytest
from lora.peft_adapters import make_adapter

from edgeformer.export import export_model


@pytest.fixture(scope="session")
def adapted_llama(make_llama):
    """The folder of the small Llama."""
    return make_llama(num_hidden_layers=2)


@pytest.fixture(scope="session")
def adapters(adapted_llama, tmp_path_factory):
    """Folders of two adapters, whose modules and ranks differ."""
    place = tmp_path_factory.mktemp("adapters")
    modules = ["q_proj", "v_proj", "up_proj", "down_proj"]
    return {
        "polite": make_adapter(adapted_llama, place / "polite", target_modules=modules),
        "brief": make_adapter(
            adapted_llama, place / "brief", seed=1, target_modules=["q_proj", "o_proj"], r=3, use_rslora=True
        ),
    }


@pytest.fixture(scope="session")
def adapted_bundle(adapted_llama, adapters, tmp_path_factory):
    """The small Llama in float32, with both adapters. Read-only."""
    return export_model(adapted_llama, tmp_path_factory.mktemp("bundles") / "small", adapters=adapters).path
