"""Bundles of the presets from the cache: one export for all processes and runs, which need no torch to use them."""

import shutil
from pathlib import Path

from artifact_cache import cached, hash_of, hash_of_sources, versions

SOURCES = ("edgeformer", "export", "runtime")


def copy_of_preset(preset: str, folder: Path, **options: object) -> Path:
    """Copy the bundle of a preset to `folder`, which does not exist yet, and return it. options: of its export."""

    def make(place: Path) -> None:
        from edgeformer.export import export_model

        export_model(preset, place / preset, **options)

    recipe = repr((preset, sorted(options.items())))
    entry = cached("bundles", hash_of([hash_of_sources(SOURCES), versions(), recipe]), make)
    return shutil.copytree(entry / preset, folder)
