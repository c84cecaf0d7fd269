"""The report of a check: findings about the folder itself, per client, and about a provider if one is named."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeformer.check.client_rules import CLIENTS
from edgeformer.check.contract_rules import contract_findings
from edgeformer.check.finding import Finding, Verdict, error, verdict
from edgeformer.check.folder import Folder, read_folder
from edgeformer.check.kernel_rules import kernel_functions, kernel_sentences
from edgeformer.check.providers import ProviderAudit, audit_provider
from edgeformer.check.published import OPERATOR_TABLES, OperatorAudit, audit_operators
from edgeformer.config.models import Form
from edgeformer.errors import RequestError
from edgeformer.manifest.providers import CPU, find_provider


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The findings of `check`.

    Attributes:
        folder: the folder that was checked.
        kind: the kind of model in it.
        contract: findings about the folder itself.
        clients: findings by client.
        functions: names of the graphs' functions for which kernels of edgeformer-kernels may stand in.
        kernels: a sentence by client, about whether kernels or bodies run; none without such functions.
        audit: what the device that was asked for does with each graph; None if none was.
        operators: what the provider that was asked for takes of each graph, by its published operators; None if none
            was.
    """

    folder: Path
    kind: Form
    contract: tuple[Finding, ...]
    clients: dict[str, tuple[Finding, ...]]
    functions: tuple[str, ...]
    kernels: dict[str, str]
    audit: ProviderAudit | None = None
    operators: OperatorAudit | None = None

    @property
    def keeps_contract(self) -> bool:
        """Return whether the folder keeps edgeformer's contract."""
        return verdict(self.contract) == "loads"

    def verdict(self, client: str) -> Verdict:
        """Return whether a client loads the folder."""
        return verdict(self.clients[client])

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "folder": str(self.folder),
            "kind": self.kind,
            "contract": {"kept": self.keeps_contract, "findings": [asdict(each) for each in self.contract]},
            "functions": list(self.functions),
            "clients": {
                name: {
                    "verdict": self.verdict(name),
                    "findings": [asdict(each) for each in findings],
                    "kernels": self.kernels.get(name),
                }
                for name, findings in self.clients.items()
            },
            **({"provider": self.audit.to_json()} if self.audit is not None else {}),
            **({"operators": self.operators.to_json()} if self.operators is not None else {}),
        }


def _findings(rules: Callable[[Folder], Iterator[Finding]], facts: Folder) -> tuple[Finding, ...]:
    """Return what rules find, each once.

    Rules read documents of anybody, such as a list where a client expects a number; what they fail at, a client does.
    """
    found: dict[Finding, None] = {}
    try:
        for finding in rules(facts):
            found[finding] = None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as problem:
        what = f"{type(problem).__name__}: {str(problem)[:200]}"
        found[error(f"A file of the folder has a value of a wrong kind ({what}).", "Write or export it again.")] = None
    return tuple(found)


def check(folder: str | Path, provider: str = "cpu") -> CheckReport:
    """Return which clients will load a folder, and why others won't, from its files only.

    provider: cuda or webgpu to also compare every node with the kernels of onnxruntime's provider; it takes no GPU. A
        name of `OPERATOR_TABLES` to count the nodes whose operators that provider publishes.

    Raises BundleError if there is no folder with a graph, RequestError for a name that no provider has, and
    MissingDependencyError if onnx is not installed.
    """
    published = isinstance(provider, str) and provider in OPERATOR_TABLES
    runs_on = CPU if published else find_provider(provider, RequestError)
    facts = read_folder(Path(folder))
    return CheckReport(
        folder=facts.path,
        kind=facts.kind,
        contract=_findings(contract_findings, facts),
        clients={name: _findings(client.findings, facts) for name, client in CLIENTS.items()},
        functions=kernel_functions(facts),
        kernels=kernel_sentences(facts),
        audit=audit_provider(facts, runs_on.name) if runs_on.on_device else None,
        operators=audit_operators(facts, provider) if published else None,
    )
