import asyncio
import itertools
import time
from collections.abc import Callable

import pytest
from helpers.reporting.server import run

from tune_speed.core.errors import ConfigError, ServiceError
from tune_speed.reporting.server import channel as module
from tune_speed.reporting.server.channel import Channel, Moment, Part


class Source:
    def __init__(self, *, is_live: bool = True, takes_s: float = 0.05) -> None:
        self.stamp, self.is_live, self.takes_s = "a", is_live, takes_s
        self.reads = self.made = 0
        self.error: Exception | None = None

    def read(self) -> Moment:
        self.reads += 1
        time.sleep(0.02)
        if self.error is not None:
            raise self.error
        stamp = self.stamp

        def make() -> str:
            self.made += 1
            time.sleep(self.takes_s)
            return f"<p>{stamp}</p>"

        parts = {"part": Part(make, is_heavy=True)}
        facts = {"stamp": stamp, "trouble": ""}
        return Moment(facts=facts, part_of=parts.get, is_live=self.is_live)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.1)
    monkeypatch.setattr(module, "QUIET_PAUSE_S", 0.1)
    monkeypatch.setattr(module, "SHARE", 0.5)


def opened(source: Source) -> Channel:
    return Channel(source.read, heavy=asyncio.Lock())


def test_viewers_at_the_same_time_share_one_reading_and_one_drawing() -> None:
    source = Source()

    async def look() -> list[str]:
        channel = opened(source)
        made = await asyncio.gather(*(channel.part("part") for _ in range(20)))
        return [each.html for each in made if each is not None]

    assert run(look()) == ["<p>a</p>"] * 20
    assert (source.reads, source.made) == (1, 1)


def test_a_part_is_made_again_only_when_its_stamp_is_another() -> None:
    source = Source(is_live=False)

    async def look() -> None:
        channel = opened(source)
        for stamp, made in (("a", 1), ("a", 1), ("b", 2), ("b", 2)):
            source.stamp = stamp
            await asyncio.sleep(0.3)
            found = await channel.part("part")
            assert found is not None and found.html == f"<p>{stamp}</p>"
            assert source.made == made

    run(look())


def test_while_a_search_runs_drawing_takes_a_small_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SHARE", 0.05)
    source, stamps = Source(takes_s=0.1), itertools.count()

    async def look() -> float:
        channel, until_s = opened(source), time.monotonic() + 3.0
        while time.monotonic() < until_s:
            source.stamp = str(next(stamps))
            found = await channel.part("part")
            assert found is not None and found.html == f"<p>{found.stamp}</p>"
            await asyncio.sleep(0.02)
        return source.made * source.takes_s / 3.0

    assert 0 < run(look()) < 2 * 0.05


def test_no_such_part_is_none() -> None:
    assert run(opened(Source()).part("other")) is None


@pytest.mark.parametrize("error", [ConfigError("none of that name"), ServiceError("away")])
def test_what_was_never_read_raises_and_is_tried_again(error: Exception) -> None:
    source = Source()
    source.error = error

    async def look() -> Moment:
        channel = opened(source)
        with pytest.raises(type(error)):
            await channel.now()
        source.error = None
        return await channel.now()

    assert run(look()).facts["stamp"] == "a"


def test_a_store_that_goes_away_is_told_and_the_last_picture_stays() -> None:
    source = Source()

    async def look() -> list[str]:
        channel, troubles = opened(source), []
        for error in (None, ServiceError("the store is away"), None):
            source.error = error
            await asyncio.sleep(0.6)
            moment = await channel.now()
            assert moment.facts["stamp"] == "a"
            troubles.append(moment.facts["trouble"])
        return troubles

    first, away, last = run(look())
    assert (first, last) == ("", "") and "the store is away" in away


def heard(channel: Channel, until: Callable[[list[Moment | None]], bool]) -> list[Moment | None]:
    async def listen() -> list[Moment | None]:
        ending, told = asyncio.Event(), list[Moment | None]()
        async for moment in channel.moments(ending):
            told.append(moment)
            if until(told):
                ending.set()
        return told

    return run(asyncio.wait_for(listen(), 10))


def test_a_viewer_is_told_the_present_at_once_then_what_changes() -> None:
    source = Source()

    def change(told: list[Moment | None]) -> bool:
        source.stamp = "b" if len(told) >= 3 else "a"
        return told[-1] is not None and told[-1].facts["stamp"] == "b"

    told = heard(opened(source), change)
    assert told[0] is not None and told[0].facts["stamp"] == "a"
    assert told[1] is None, "nothing had changed"
    again = heard(opened(source), lambda told: True)
    assert again[0] is not None and again[0].facts["stamp"] == "b", "one who comes back"


def test_streams_end_at_once_when_the_server_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 60.0)

    async def end() -> float:
        ending, channel = asyncio.Event(), opened(Source())

        async def listen() -> None:
            async for _ in channel.moments(ending):
                pass

        listening = asyncio.ensure_future(listen())
        await asyncio.sleep(0.2)
        assert channel.viewers == 1
        began_s = time.monotonic()
        ending.set()
        await listening
        assert channel.viewers == 0
        return time.monotonic() - began_s

    assert run(end()) < 0.5
