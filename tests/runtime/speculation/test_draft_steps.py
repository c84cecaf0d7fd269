"""When drafts of several rows pay: a simulated clock, rows whose drafts are right by a given chance, no model."""

from types import SimpleNamespace

import numpy as np
import pytest

from edgeformer.runtime.generation.speculation import DraftLength, draft_steps
from edgeformer.runtime.generation.speculation.draft_length import EARNED, FIRST_CREDIT, FIRST_STEPS
from edgeformer.runtime.generation.speculation.draft_steps import MEASURED_AGAIN, DraftSteps


class Rows:
    """Rows that run together and their decoder: a run of n tokens of each takes 1 + slope · (n - 1) seconds.

    rights: the chance that a drafted token of a row is right. held_up: how many times as long a run takes, by the
    seconds that have passed. reads: seconds that the drafter of a row reads a text before its first draft.
    """

    def __init__(self, monkeypatch, rights, slope, held_up=lambda seconds: 1.0, reads=0.0):
        self.clock, self.lengths = 0.0, np.zeros(len(rights), np.int64)
        self._slope, self._held_up, self._random = slope, held_up, np.random.default_rng(0)
        self.cache, self.graph = SimpleNamespace(capacity=10**6), SimpleNamespace(appends_to_rows=True)
        self.rows = [Row(self, right, reads) for right in rights]
        self.steps = DraftSteps(self)
        self.tokens, self.drafts = 0, []  # of all rows; the drafts of each step
        monkeypatch.setattr(draft_steps.time, "perf_counter", lambda: self.clock)

    def can_cut(self, length):
        return True

    def cut(self, row, length):
        self.lengths[row] = length

    def decode_together(self, place, tokens):
        self.take(tokens.shape[1])
        return np.zeros((*tokens.shape, 1))

    def take(self, tokens):
        seconds = (1 + self._slope * (tokens - 1)) * self._held_up(self.clock)
        self.clock, self.lengths = self.clock + seconds, self.lengths + tokens
        return seconds

    def write(self, tokens):
        """Let all rows write so many tokens together; return how many times as fast as in plain steps that was."""
        assert self.steps.begin(self.rows)
        while self.tokens < tokens:
            if self.steps.draft(0, self.rows):
                drafts, _ = self.steps.run(0, self.rows, None)
                accepted = [
                    int(np.argmin([*(self._random.random(len(draft)) < row.right), False]))
                    for row, draft in zip(self.rows, drafts, strict=True)
                ]
                self.steps.settle(0, self.rows, accepted)
                self.tokens += sum(accepted)
                self.drafts.append([len(draft) for draft in drafts])
            else:
                self.steps.record_step(self.take(1), self.rows)
                self.drafts.append([])
            self.tokens += len(self.rows)
            assert (self.lengths.sum() == self.tokens).all()
        return self.tokens / len(self.rows) / self.clock


class Row:
    """A row's drafts."""

    last_token, room = 0, 10**6

    def __init__(self, rows, right, reads):
        self.length, self.reading, self.right = DraftLength(8), 0.0, right
        self._rows, self._reads = rows, reads

    def propose(self, count):
        self.reading, self._reads = self._reads, 0.0
        self._rows.clock += self.reading
        return [1] * count

    def record_beside(self, drafted, accepted):
        self.length.count(drafted, accepted)


@pytest.mark.parametrize(("rows", "slope", "least"), [(2, 0.16, 2.0), (3, 0.25, 1.7), (4, 0.32, 1.5)])
def test_right_drafts_of_rows_are_faster(monkeypatch, rows, slope, least):
    """The slopes were measured with SmolLM2-135M's geometry."""
    written = Rows(monkeypatch, [0.9] * rows, slope)
    assert written.write(1000 * rows) > least
    assert max(map(sum, written.drafts)) + rows <= draft_steps.MOST_TOKENS


@pytest.mark.parametrize("slope", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("rows", [2, 4])
def test_wrong_drafts_of_rows_cost_only_the_budget(monkeypatch, rows, slope):
    written = Rows(monkeypatch, [0.0] * rows, slope)
    written.write(500 * rows)
    assert any(written.drafts) and written.clock <= 500 * (1 + EARNED) + FIRST_CREDIT + 1


def test_one_right_row_of_four_does_not_make_all_slower(monkeypatch):
    written = Rows(monkeypatch, [0.95, 0.0, 0.0, 0.0], 0.5)
    assert written.write(2000) > 0.97
    assert Rows(monkeypatch, [0.95, 0.0], 0.1).write(1000) > 1.2, "where runs are cheap, one row of two is enough"


def test_rows_draft_again_after_other_programs(monkeypatch):
    """Runs that are held up look too dear, and rows go without drafts until they measure again."""
    written = Rows(monkeypatch, [0.9] * 4, 0.3, held_up=lambda seconds: 4.0 if 10 < seconds < 80 else 1.0)
    written.write(6000)
    assert sum(map(bool, written.drafts[-100:])) > 90


def test_a_step_is_measured_again(monkeypatch):
    written = Rows(monkeypatch, [1.0, 1.0], 0.1)
    written.write(3000)
    plain = [step for step, draft in enumerate(written.drafts) if not draft]
    assert max(np.diff(plain)) == MEASURED_AGAIN + 1 and min(np.diff(plain)) == 1


def test_one_drafter_reads_in_a_step(monkeypatch):
    written = Rows(monkeypatch, [0.9] * 3, 0.2, reads=50.0)
    written.write(300)
    found = [[bool(count) for count in step] for step in written.drafts[FIRST_STEPS : FIRST_STEPS + 3]]
    assert found == [[], [True, True, False], [True, True, True]], "a draft of the first alone does not pay"
    assert written.steps._costs[3]._slope < 0.3, "what it reads is no cost of a draft"
