"""All findings about a folder: its own, and those of every client."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeformer.check.clients import CLIENTS
from edgeformer.check.contract import contract_findings
from edgeformer.check.finding import Finding, Verdict, verdict
from edgeformer.check.folder import Kind, read_folder


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was found. contract: about the folder itself. clients: by their names, in the order of the table."""

    folder: Path
    kind: Kind
    contract: tuple[Finding, ...]
    clients: dict[str, tuple[Finding, ...]]

    @property
    def keeps_contract(self) -> bool:
        """Whether nothing is wrong with the folder itself."""
        return verdict(self.contract) == "loads"

    def verdict(self, client: str) -> Verdict:
        """Whether a client loads the folder."""
        return verdict(self.clients[client])

    def to_json(self) -> dict[str, Any]:
        """The report for programs."""
        return {
            "folder": str(self.folder),
            "kind": self.kind,
            "contract": {"kept": self.keeps_contract, "findings": [asdict(each) for each in self.contract]},
            "clients": {
                name: {"verdict": self.verdict(name), "findings": [asdict(each) for each in findings]}
                for name, findings in self.clients.items()
            },
        }


def check(folder: str | Path) -> Report:
    """Find out which clients load a folder, from its files alone.

    Raises BundleError where there is no folder with a graph, and MissingDependencyError where onnx is not installed.
    """
    facts = read_folder(Path(folder))
    return Report(
        folder=facts.path,
        kind=facts.kind,
        contract=tuple(dict.fromkeys(contract_findings(facts))),
        clients={name: tuple(dict.fromkeys(client.findings(facts))) for name, client in CLIENTS.items()},
    )
