"""A model_type without a family goes through the backend `transformers` by itself; a refused config does not."""

import json

import pytest
from click.testing import CliRunner

import edgeformer.families
from edgeformer.cli.main import cli
from edgeformer.errors import ConfigError, EdgeformerError
from edgeformer.export import export_model
from edgeformer.families import load_family, read_model_config
from edgeformer.manifest.manifest import Manifest

HINT = "transformers' own module may be tried instead: --backend transformers"


@pytest.fixture
def without_llama(monkeypatch):
    """Take the family of Llama away, which transformers' own module can stand in for."""
    names = [name for name in edgeformer.families.family_names() if name != "llama"]
    monkeypatch.setattr(edgeformer.families, "family_names", lambda: names)


def folder_with(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def export(folder, bundle, *options):
    return CliRunner().invoke(cli, ["export", "--model", str(folder), "--output", str(bundle), *options])


def test_the_export_says_in_one_line_whose_module_it_is(without_llama, llama_folder, tmp_path):
    done = export(llama_folder, tmp_path / "bundle")
    assert done.exit_code == 0, done.output
    (line,) = [line for line in done.output.splitlines() if line.startswith("backend")]
    manifest = Manifest.read(tmp_path / "bundle")
    version = manifest.versions["transformers"]
    assert line == f"backend: the module of transformers {version}, since edgeformer has no family of this model_type"
    assert manifest.provenance.backend == "transformers"
    assert manifest.parity is not None


def test_a_backend_that_was_asked_for_needs_no_reason(llama_folder, tmp_path):
    done = export(llama_folder, tmp_path / "bundle", "--backend", "transformers", "--no-verify")
    (line,) = [line for line in done.output.splitlines() if line.startswith("backend")]
    assert line == f"backend: the module of transformers {Manifest.read(tmp_path / 'bundle').versions['transformers']}"


def test_a_model_with_a_family_has_no_backend(llama_folder, tmp_path):
    done = export(llama_folder, tmp_path / "bundle", "--no-verify", "--json")
    assert json.loads(done.stdout)["backend"] is None


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "no-such-model"}, r"transformers 5.* has no model_type 'no-such-model'"),
        ({"model_type": "clip_text_model"}, "clip_text_model is not a causal language model in transformers"),
    ],
)
def test_both_reasons_are_given_if_transformers_fails_too(tmp_path, config, reason):
    refused = f"edgeformer has no family of model_type {config['model_type']!r} .*the only way. {reason}"
    with pytest.raises(EdgeformerError, match=refused):
        export_model(folder_with(tmp_path, config), tmp_path / "bundle")


def test_a_refused_value_names_the_transformers_backend(llama_folder, tmp_path):
    config = json.loads((llama_folder / "config.json").read_text())
    for change in ({"rope_interleaved": True}, {"twist": 1}):
        with pytest.raises(ConfigError, match=HINT):
            export_model(folder_with(tmp_path, config | change), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_context_that_is_too_long_is_no_matter_of_the_backend(llama_folder):
    with pytest.raises(ConfigError, match="has positions 1 to 256") as error:
        read_model_config(json.loads((llama_folder / "config.json").read_text()), 257)
    assert HINT not in str(error.value)


def test_families_that_no_decoder_is_of_have_no_other_way():
    assert load_family("llama").is_decoder
    assert not load_family("bert").is_decoder
    with pytest.raises(ConfigError) as error:
        read_model_config({"model_type": "bert", "twist": 1, "hidden_size": 64})
    assert HINT not in str(error.value)
