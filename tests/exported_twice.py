"""Export a model twice: compared with transformers in this process, and in a process of its own."""

import json
from unittest.mock import patch

from edgeformer.export import ExportOptions, api, export_model
from edgeformer.export.progress import no_progress
from edgeformer.export.worker_process import WorkerProcess


def export_twice(model, folder, **options):
    """Return what both exports say of the comparison, and the SHA-256 of the files that they wrote."""
    asked = ExportOptions(**options)
    here = said(export_model(model, folder / "here", asked))
    with (
        patch("edgeformer.runtime.sessions.session.usable_cores", lambda: 2),
        patch.object(api, "WorkerProcess", wraps=WorkerProcess) as process,
    ):
        apart = said(api.export_comparing_apart(model, folder / "apart", asked, no_progress))
    assert process.call_count == 1
    return here, apart


def said(result):
    """Return the comparison, the warnings, the model card's notes, and the graph and weight files of an export."""
    data = json.loads((result.path / "parity" / "report.json").read_text())["comparison"]
    stated = {name: value for name, value in vars(result.report.comparison).items() if value is not None}
    assert data == stated
    card = (result.path / "README.md").read_text(encoding="utf-8")
    [proof] = [line.partition("Eager PyTorch")[2] for line in card.splitlines() if "Eager PyTorch" in line]
    notes = [line for line in card.splitlines() if line.startswith("> **Note:**")]
    files = {name: each.sha256 for name, each in result.manifest.files.items() if not name.endswith((".md", ".html"))}
    files.pop("parity/report.json", None)  # says how long it took
    return result.report.comparison, result.warnings, proof, notes, files
