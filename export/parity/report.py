"""What a verification found."""

from dataclasses import dataclass
from typing import Any

from edgeformer import schema


@dataclass(frozen=True, kw_only=True)
class Check:
    """One comparison with the reference: error is max |Δlogit| / max |logit|, NaN where the graph gave no numbers."""

    name: str
    what: str
    error: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the error is within the limit; NaN is not."""
        return self.error <= self.limit


@dataclass(frozen=True, kw_only=True)
class Report:
    """All checks of one graph. reference: what it was compared with."""

    reference: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def describe(self) -> str:
        """A line for each check."""
        lines = [
            f"  {'ok  ' if check.passed else 'FAIL'} {check.name:8} {check.error:8.1e} "
            f"(limit {check.limit:.0e})  {check.what}"
            for check in self.checks
        ]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain data: the verdict, the reference, every figure."""
        checks = [schema.fields_to_json(check) | {"passed": check.passed} for check in self.checks]
        return {"passed": self.passed, "reference": self.reference, "checks": checks}
