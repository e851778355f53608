"""Lines carry whole messages, end when either side ends, and let nobody in who does not know the key."""

import socket
import threading
import time
from contextlib import closing

import pytest

from minipaged.parallel import lines
from minipaged.parallel.lines import LENGTH, LOOPBACK, Exchange, call, make_pair
from minipaged.parallel.messages import ENCODER, Failed, Loaded, Ready, Serve, Stop
from minipaged.parallel.rank import Rank


@pytest.fixture
def pair():
    driver, rank = make_pair()
    with closing(driver), closing(rank):
        yield driver, rank


@pytest.fixture
def exchange():
    with closing(Exchange(LOOPBACK)) as exchange:
        yield exchange


def hear_reply(line):
    """The next one, when all of it is there."""
    while True:
        for reply in line.hear_replies():
            return reply


def in_background(function, *args):
    """A thread, and the list of its only result; an OSError is one, too."""
    results = []

    def run():
        try:
            results.append(function(*args))
        except OSError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def test_messages_arrive_whole_and_in_order(pair):
    driver, rank = pair
    orders = [Serve(i) for i in range(100)]
    sender, _ = in_background(lambda: [driver.send(order) for order in orders])
    assert [rank.hear_order() for _ in orders] == orders
    sender.join()
    long = Failed("x" * 3_000_000, False, "")  # more than a socket holds at once
    sender, _ = in_background(rank.send, long)
    assert hear_reply(driver) == long
    sender.join()


def test_replies_are_heard_when_they_are_complete_and_not_before(pair):
    driver, rank = pair
    parts = ENCODER.encode(Loaded(7)), ENCODER.encode(Ready())
    sent = b"".join(LENGTH.pack(len(part)) + part for part in parts)
    heard = []
    for i in range(len(sent)):
        rank.end.sendall(sent[i : i + 1])
        heard.append(list(driver.hear_replies()))
    first = len(sent) - LENGTH.size - len(parts[1])
    assert {i: said for i, said in enumerate(heard, 1) if said} == {first: [Loaded(7)], len(sent): [Ready()]}
    rank.end.sendall(sent)
    assert list(driver.hear_replies()) == [Loaded(7), Ready()]


@pytest.mark.parametrize("how", ["close", "hang_up"])
def test_the_end_of_one_side_is_heard_on_the_other(pair, how):
    driver, rank = pair
    getattr(driver, how)()
    with pytest.raises(OSError, match="closed"):
        rank.hear_order()
    with pytest.raises(BrokenPipeError):
        rank.send(Ready())


def test_what_is_neither_order_nor_reply_ends_a_line(pair):
    driver, rank = pair
    rank.end.sendall(LENGTH.pack(3) + b"abc")
    with pytest.raises(OSError, match="not expected here"):
        hear_reply(driver)
    driver.send(Ready())
    with pytest.raises(OSError, match="not expected here"):
        rank.hear_order()


def test_a_rank_that_is_told_nonsense_leaves_as_if_its_driver_were_gone(pair):
    driver, theirs = pair
    has_left = threading.Event()
    rank = Rank(theirs, leave=has_left.set)
    driver.send(Ready())
    assert has_left.wait(5)
    assert rank.serve()


def test_callers_are_sorted_by_their_numbers(exchange):
    callers = {rank: in_background(call, exchange.address, exchange.key, rank) for rank in (2, 0, 1)}
    accepted = exchange.accept(range(3), 10)
    for number, (thread, results) in callers.items():
        thread.join()
        with closing(results[0]) as line, closing(accepted[number]):
            line.send(Loaded(number))
            assert hear_reply(accepted[number]) == Loaded(number)
            accepted[number].send(Stop())
            assert line.hear_order() == Stop()


def test_a_caller_with_another_key_is_not_let_in_and_nobody_waits_for_it(exchange):
    host, accepted = in_background(exchange.accept, range(1), 10)
    with pytest.raises(ConnectionError):
        call(exchange.address, "00" * 32, 0)
    with closing(call(exchange.address, exchange.key, 0)):
        host.join()
    [[line]] = accepted
    line.close()


def test_whoever_says_nothing_is_not_waited_for(exchange, monkeypatch):
    monkeypatch.setattr(lines, "GREETING_S", 0.2)
    with socket.create_connection(exchange.address):
        start = time.monotonic()
        with pytest.raises(RuntimeError, match=r"rank 0 did not call within 1 s"):
            exchange.accept(range(2), 0.6)
        assert time.monotonic() - start < 10


def test_nobody_is_fooled_by_whoever_answers_without_the_key():
    with socket.create_server((LOOPBACK, 0)) as server:
        thread, results = in_background(call, server.getsockname(), "11" * 32, 0)
        caller, _ = server.accept()
        with caller:
            caller.sendall(bytes(lines.NONCE))
            lines.read(caller, lines.NONCE + lines.PROOF + LENGTH.size)
            caller.sendall(bytes(lines.PROOF))
            thread.join()
    assert isinstance(results[0], ConnectionRefusedError)


def test_ports_are_free_ones_on_the_address_that_was_told(exchange):
    with closing(Exchange(LOOPBACK)) as other:
        assert exchange.address[0] == other.address[0] == LOOPBACK
        assert exchange.address[1] != other.address[1]
        assert exchange.key != other.key
