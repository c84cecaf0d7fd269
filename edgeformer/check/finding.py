"""Findings of rules, and the verdict that follows from them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "unknown", "warning"]
"""error: the client fails. unknown: the files do not tell whether it fails. warning: it works with a limitation."""
Verdict = Literal["loads", "does not load", "cannot tell"]


@dataclass(frozen=True)
class Finding:
    """One problem. `problem` is a sentence about what is wrong, `remedy` one about what to do."""

    severity: Severity
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.problem, self.remedy)))


def error(problem: str, remedy: str = "") -> Finding:
    """Return a finding about something that does not work."""
    return Finding("error", problem, remedy)


def unknown(problem: str, remedy: str = "") -> Finding:
    """Return a finding about something that may not work; the files do not tell."""
    return Finding("unknown", problem, remedy)


def warning(problem: str, remedy: str = "") -> Finding:
    """Return a finding about something that works with a limitation."""
    return Finding("warning", problem, remedy)


def verdict(findings: Iterable[Finding]) -> Verdict:
    """Return whether a client with these findings loads the folder."""
    severities = {finding.severity for finding in findings}
    if "error" in severities:
        return "does not load"
    return "cannot tell" if "unknown" in severities else "loads"
