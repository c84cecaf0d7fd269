"""What a rule finds, and what that means for a client."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "unknown", "warning"]
"""error: it does not work. unknown: whether it works cannot be told from the files. warning: it works, but."""
Verdict = Literal["loads", "does not load", "cannot tell"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong or odd. problem: a sentence that says what; remedy: one that says what to do."""

    severity: Severity
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.problem, self.remedy)))


def error(problem: str, remedy: str = "") -> Finding:
    """Something that does not work."""
    return Finding("error", problem, remedy)


def unknown(problem: str, remedy: str = "") -> Finding:
    """Something of which the files do not tell whether it works."""
    return Finding("unknown", problem, remedy)


def warning(problem: str, remedy: str = "") -> Finding:
    """Something that works otherwise than one may expect."""
    return Finding("warning", problem, remedy)


def verdict(findings: Iterable[Finding]) -> Verdict:
    """Whether a client with these findings loads the folder."""
    severities = {finding.severity for finding in findings}
    if "error" in severities:
        return "does not load"
    return "cannot tell" if "unknown" in severities else "loads"
