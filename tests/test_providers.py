"""A provider is an object: its tables have all of them, and a name that none has is one clear error."""

import re
from pathlib import Path
from typing import get_args

import pytest

from edgeformer.check import check
from edgeformer.errors import ConfigError, ExportError, RequestError
from edgeformer.export import ExportOptions
from edgeformer.export.lower.providers import RULES
from edgeformer.manifest.deployment import DEPLOYMENTS
from edgeformer.manifest.parts import Precision
from edgeformer.manifest.providers import PROVIDERS, ProviderChoice, ProviderName, find_provider
from edgeformer.runtime import load
from edgeformer.runtime.sessions.providers import DEVICES, sessions_of

ROOT = Path(__file__).parent.parent
FILES_OF_A_PROVIDER = {
    "edgeformer/manifest/providers.py",
    "export/lower/providers/__init__.py",
    "runtime/sessions/providers/__init__.py",
}
"""The files that another provider touches; the limits of its kernels and its sessions are in new ones."""
CHOSEN = {"edgeformer/manifest/deployment.py"}
"""Files that may have an entry for a provider: what deployments propose for it."""


def test_few_files_name_a_provider():
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("edgeformer", "export", "runtime")
        for path in (ROOT / folder).rglob("*.py")
        if re.search('"(cuda|webgpu)"', path.read_text(encoding="utf-8"))
    }
    # Reports of verification have a field of this name, and audits of kernels are by provider.
    elsewhere = ("export/parity/", "edgeformer/check/providers/", "edgeformer/cli/prove/verify.py")
    assert {each for each in found if not each.startswith(elsewhere)} == FILES_OF_A_PROVIDER | CHOSEN


def test_what_opens_sessions_knows_no_device():
    """Code that opens and runs sessions asks the objects of the table what a device does otherwise."""
    named = re.compile(rf"\bsessions\.providers\.({'|'.join(each.provider.name for each in DEVICES)})")
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("edgeformer", "export", "runtime")
        for path in (ROOT / folder).rglob("*.py")
        if named.search(path.read_text(encoding="utf-8"))
    }
    room = "runtime/sessions/providers/"
    # The package's public names have the options.
    assert {each for each in found if not each.startswith(room)} == {"runtime/__init__.py"}
    assert f"{room}__init__.py" in found


def test_names_and_tables_have_every_provider():
    assert tuple(PROVIDERS) == get_args(ProviderName)
    assert get_args(ProviderChoice) == ("auto", *PROVIDERS)
    assert RULES.keys() == PROVIDERS.keys()
    for name, provider in PROVIDERS.items():
        assert provider.name == str(provider) == name
        assert sessions_of(provider).provider is provider
        assert provider.arithmetic.keys() == set(get_args(Precision))
    assert [each.provider for each in DEVICES] == [each for each in PROVIDERS.values() if each.on_device]
    for deployment in DEPLOYMENTS.values():
        assert set(deployment.on_devices) <= {each.name for each in PROVIDERS.values() if each.on_device}


def test_a_twin_runs_on_the_host():
    assert {name: each.twin for name, each in PROVIDERS.items()} == {"cpu": None, "cuda": "cpu", "webgpu": "cpu"}
    assert not any(PROVIDERS[each.twin].on_device for each in PROVIDERS.values() if each.twin is not None)


@pytest.mark.parametrize("name", ["tpu", "", None, 7, ["cpu"], "auto"])
def test_an_unknown_name_is_one_clear_error(name, tiny_llama_bundle):
    with pytest.raises(ConfigError, match="^provider is .*; it must be one of cpu, cuda, webgpu"):
        find_provider(name, ConfigError)
    with pytest.raises(RequestError, match="^provider is .*; it must be one of cpu, cuda, webgpu"):
        check(tiny_llama_bundle, name)
    with pytest.raises(ExportError, match="^provider is .*; it must be one of cpu, cuda, webgpu"):
        ExportOptions(provider=name)
    if name != "auto":
        with pytest.raises(RequestError, match="^provider is .*; it must be auto, cpu, cuda or webgpu"):
            load(tiny_llama_bundle, name)
