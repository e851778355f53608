"""The end of one rank is the end of all, and it is the right one that is named; nobody waits for ever."""

import time
from concurrent.futures import wait
from queue import SimpleQueue

import pytest

from minipaged.parallel import crew
from minipaged.parallel.crew import Crew, RankError
from minipaged.parallel.lines import LENGTH, make_pair
from minipaged.parallel.messages import Ask, Failed, Load, Loaded, Ready, Serve, Stop


class Puppets:
    """A launcher whose ranks are played by the test: theirs[i] is rank i's end."""

    host = "127.0.0.1"

    def __init__(self):
        self.theirs, self.stops = [], []

    def start(self, num_ranks):
        pairs = [make_pair() for _ in range(num_ranks)]
        self.theirs = [theirs for _, theirs in pairs]
        return [ours for ours, _ in pairs]

    def describe_end(self, rank):
        return "its strings were cut"

    def stop(self, seconds):
        self.stops.append(seconds)
        for line in self.theirs:
            line.close()


@pytest.fixture
def puppets(monkeypatch):
    monkeypatch.setattr(crew, "VERDICT_S", 0.2)
    monkeypatch.setattr(crew, "TICK_S", 0.05)
    return Puppets()


@pytest.fixture
def three(puppets):
    """ends: whose end has been heard, as soon as it has."""
    three = Crew(puppets, 3)
    hear, three.ends = three.hear, SimpleQueue()

    def hear_and_tell(rank):
        if (end := hear(rank)) is not None:
            three.ends.put(rank)
        return end

    three.hear = hear_and_tell
    yield three
    three.stop()
    assert not three.thread.is_alive()


def test_ranks_answer_in_the_order_in_which_they_were_asked(three, puppets):
    first, second = three.ask(1, Serve(5), 10), three.ask(1, Ask(), 10)
    assert [puppets.theirs[1].hear_order() for _ in range(2)] == [Serve(5), Ask()]
    puppets.theirs[1].send(Ready())
    assert first.result(5) == Ready()
    assert not second.done()
    puppets.theirs[1].send(Loaded(7))
    assert second.result(5) == Loaded(7)


def test_an_order_that_is_not_answered_goes_to_whom_it_is_for(three, puppets):
    three.tell([0, 2], Ask())
    three.tell([1], Stop())
    assert [line.hear_order() for line in puppets.theirs] == [Ask(), Stop(), Ask()]


@pytest.fixture
def patient(puppets, monkeypatch):
    """The verdict is given when all have been heard, and not when a time is over."""
    monkeypatch.setattr(crew, "VERDICT_S", 60.0)


@pytest.mark.usefixtures("patient")
def test_whoever_goes_without_a_word_is_named_and_everybody_waiting_hears_of_it(three, puppets):
    futures = [three.ask(rank, Ask(), 10) for rank in range(3)]
    words = "connection closed by peer. This is typically caused by a remote worker hanging."  # as gloo has it
    puppets.theirs[2].send(Failed(words, False, ""))  # the witness is faster
    assert three.ends.get(timeout=5) == 2
    puppets.theirs[1].close()
    assert three.ends.get(timeout=5) == 1
    puppets.theirs[0].send(Failed("connection closed by peer", False, ""))
    wait(futures, 5)
    for future in futures:
        assert isinstance(future.exception(0), RankError)
        heard = "(heard before: rank 2: connection closed by peer)"
        assert str(future.exception()) == f"rank 1 died: its strings were cut {heard}"
    assert puppets.stops == [0.0], "the others were sent home before anybody heard of it"


@pytest.mark.usefixtures("patient")
def test_where_all_could_speak_the_first_to_do_so_is_named(three, puppets):
    future = three.ask(0, Ask(), 10)
    assert puppets.theirs[0].hear_order() == Ask()
    puppets.theirs[1].send(Failed("RuntimeError: out of memory", False, "a long story"))
    assert three.ends.get(timeout=5) == 1
    for rank in (0, 2):
        puppets.theirs[rank].send(Failed("connection closed by peer", False, ""))
    error = future.exception(5)
    assert (type(error), str(error)) == (RankError, "rank 1: RuntimeError: out of memory")
    assert error.__notes__ == ["a long story"]


def test_what_a_user_can_do_wrong_is_a_value_error(three, puppets):
    future = three.ask(0, Ask(), 10)
    puppets.theirs[0].send(Failed("model.safetensors does not exist", True, ""))
    error = future.exception(5)
    assert (type(error), str(error)) == (ValueError, "rank 0: model.safetensors does not exist")


def test_a_rank_that_dies_while_nobody_asks_ends_all_at_once(three, puppets):
    puppets.theirs[0].close()
    three.thread.join(5)
    assert puppets.stops == [0.0]
    for _ in range(2):
        with pytest.raises(RankError, match="rank 0 died"):
            three.ask(1, Ask(), 10)
    three.tell([0, 1, 2], Ask())  # nobody is there, and nobody minds


def test_nobody_waits_longer_than_an_answer_may_take(three):
    start = time.monotonic()
    future = three.ask(2, Ask(), 0.1)
    assert str(future.exception(5)) == "rank 2: no answer came in time"
    assert time.monotonic() - start < 2


def test_nobody_waits_for_a_rank_that_reads_no_more(three):
    too_much = Load(0, {"model": "x" * 10_000_000}, ("", 0))  # more than a socket holds, and rank 0 never looks
    future = three.ask(2, Ask(), 0.1, beside=[(0, too_much)])
    assert str(future.exception(5)) == "rank 2: no answer came in time"


def test_half_a_message_keeps_nobody_from_being_late(three, puppets):
    puppets.theirs[1].end.sendall(LENGTH.pack(100) + b"half")
    future = three.ask(2, Ask(), 0.1)
    assert str(future.exception(5)) == "rank 2: no answer came in time"


def test_nonsense_is_the_end_of_who_says_it(three, puppets):
    future = three.ask(1, Ask(), 10)
    puppets.theirs[1].end.sendall(bytes(8) + bytes(8))
    assert "rank 1 died" in str(future.exception(5))


def test_to_stop_is_to_tell_everybody_and_to_wait(puppets):
    three, heard, leave = Crew(puppets, 3), [], puppets.stop

    def stop(seconds):
        if not heard:
            heard.extend(line.hear_order() for line in puppets.theirs)
        leave(seconds)

    puppets.stop = stop
    three.stop()
    assert heard == [Stop()] * 3
    assert puppets.stops[0] == crew.GOODBYE_S
    assert not three.thread.is_alive()
    three.stop()  # again is no harm
    with pytest.raises(RankError, match="shut down"):
        three.ask(0, Ask(), 10)
