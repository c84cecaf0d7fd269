"""Counts of speculation: what a `Generation` reports of it."""

from dataclasses import dataclass


@dataclass(slots=True)
class SpeculationStatistics:
    """Counts of one request.

    Attributes:
        runs: of the graph after the prompt.
        verifications: those of the runs that had drafted tokens.
        drafted: tokens that were drafted.
        accepted: those of them that were chosen.
        mean_accepted: accepted tokens per verification. A run gives one token more than it accepts.
    """

    runs: int = 0
    verifications: int = 0
    drafted: int = 0
    accepted: int = 0
    mean_accepted: float = 0.0

    def count(self, drafted: int) -> None:
        """Count a run with this many drafted tokens."""
        self.runs += 1
        self.verifications += drafted > 0
        self.drafted += drafted
        if drafted:
            self._update()

    def accept(self) -> None:
        """Count a drafted token that was chosen."""
        self.accepted += 1
        self._update()

    def _update(self) -> None:
        # A field and no property, since dataclasses.asdict writes fields alone.
        self.mean_accepted = self.accepted / self.verifications if self.verifications else 0.0
