"""The soak of tools/reliability in short: a server under clients that misbehave, and a soak that sees faults."""

import asyncio
import random
from collections import Counter

import pytest
from reliability.soaking import soak as soaking
from reliability.soaking import soak_requests
from reliability.soaking.leak import growth
from reliability.soaking.soak import Result, Soak, percentile, soak
from reliability.soaking.soak_requests import Case, Cases, run_request
from running_server import running

SEED = 1  # its first requests are of all kinds
SHORT = {"requests": 60, "seconds": 60, "clients": 8, "rows": 4}


def test_a_server_keeps_its_word_under_clients_that_misbehave(tiny_llama_bundle):
    result = asyncio.run(soak([tiny_llama_bundle], Result(seed=SEED), kills=1, **SHORT))
    assert not result.faults
    assert result.next > SHORT["requests"] and result.kills == 1
    kinds = {key.split()[0] for key in result.counts}
    assert kinds == {"answer", "stream", "slow", "leave", "cut", "garbage", "long", "large"}
    assert result.counts["stream ok"] + result.counts["answer ok"] > 10
    assert sum(result.first_token_ms.values()) == result.counts["stream ok"]


@pytest.fixture(scope="module")
def server(tiny_llama_bundle):
    with running([tiny_llama_bundle], {"max_rows": 2}, max_body_bytes=soak_requests.BODY_BYTES) as server:
        yield server


def outcomes(server, cases, numbers=range(25)):
    async def all_of_them():
        return [await run_request(number, 0, int(server.url.rsplit(":", 1)[1]), cases) for number in numbers]

    return asyncio.run(all_of_them())


def test_wrong_hanging_and_missing_answers_are_faults(server, monkeypatch):
    wrong = Cases([Case({"prompt": "Once", "max_tokens": 2}, "a text that no model writes")], [])
    results = {outcome.result for outcome in outcomes(server, wrong) if outcome.kind in ("answer", "stream", "slow")}
    assert results == {"wrong"}

    async def hang(port, draw, cases):
        await asyncio.sleep(60)

    async def close(port, draw, cases):
        raise EOFError

    for request, expected in ((hang, "hung"), (close, "lost")):
        monkeypatch.setattr(soak_requests, "WEIGHTS", {request: 1})
        monkeypatch.setattr(soak_requests, "SECONDS", 0.01)
        [outcome] = outcomes(server, wrong, range(1))
        found = Result()
        found.add(outcome)
        assert (outcome.result, found.fault_count) == (expected, 1)


class BadServer:
    """A server with a row that stays, a connection that stays open and an error in its log."""

    port, kills = 0, 0

    async def idle(self):
        return None

    async def statistics(self):
        return {"running": 1.0}

    def files(self):
        return 50

    def tracebacks(self):
        return Counter({"ValueError: x": 2})

    def kill(self):
        self.kills += 1

    def start(self):
        pass


def test_what_requests_leave_behind_is_a_fault():
    result = Result()
    asyncio.run(soaking.check_idle(BadServer(), result, files=10))
    assert [fault.partition(":")[0] for fault in result.faults] == [
        "rows or requests are left without a client", "the idle server has 50 files open, and had 10 at first",
        "the server's log has 2 tracebacks that end in ValueError",
    ]  # fmt: skip


def test_a_kill_that_loses_more_than_what_runs_is_a_fault(monkeypatch):
    async def lose(*_, **options):
        await asyncio.sleep(0.01)
        return soak_requests.Outcome("answer", "lost")

    monkeypatch.setattr(soaking, "run_request", lose)
    monkeypatch.setattr(soaking, "KILL_AFTER", 0.1)
    work = Soak(BadServer(), Cases([], []), Result(), clients=2)
    monkeypatch.setattr(work, "load", lose)
    asyncio.run(work.kill())
    assert "requests, and 2 were being answered" in work.result.faults[0]
    assert work.server.kills == 1


@pytest.mark.parametrize(("bytes_a_request", "leaks"), [(0, False), (100, False), (1500, True)])
def test_memory_that_grows_is_told_from_noise(bytes_a_request, leaks):
    noise = random.Random(0)
    samples = [(n, 10**8 + int(bytes_a_request * n + noise.gauss(0, 5e5))) for n in range(0, 20_000, 50)]
    found = growth(samples)
    assert found.leaks is leaks
    assert abs(found.slope - bytes_a_request) < 3 * found.error
    assert growth(samples[:40]) is None


def test_a_result_goes_on_where_its_file_ends(tmp_path):
    result = Result(seed=4, next=12)
    result.first_token_ms.update({"5": 90, "70": 9, "300": 1})
    (tmp_path / "soak.json").write_text(soaking.json.dumps(vars(result)))
    again = Result.read(tmp_path / "soak.json")
    assert again == result
    assert [percentile(again.first_token_ms, part) for part in (0.5, 0.95, 0.99, 1.0)] == [5, 70, 70, 300]
