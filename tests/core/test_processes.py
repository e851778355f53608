"""A core in a process of its own: it starts or says why not, is missed at once, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import zmq

from minipaged.config import EngineConfig
from minipaged.core.messages import Abort, Add, Answer, Ask, Died, Report, encode, pack_params
from minipaged.core.processes import ProcessWire, environment
from minipaged.core.wire import Lost
from minipaged.sampling_params import SamplingParams

from .echo import BULLET, COMMAND, CONFIG, MUD, NO_POWER

PATIENCE_S = 20.0  # a test fails sooner than it hangs


def start(num_replicas=1, timeout_s=PATIENCE_S, **fields):
    return ProcessWire(EngineConfig(**{**CONFIG, **fields}), num_replicas, timeout_s, COMMAND)


@pytest.fixture(scope="module", autouse=True)
def folder():
    """Where sockets have their names for a moment; nobody else's are there."""
    with tempfile.TemporaryDirectory(prefix="echo") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.fixture(scope="module")
def wire(folder):
    wire = start(2)
    yield wire
    wire.close()


def add(ticket, prompt=(5,), max_tokens=3):
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    return Add(ticket, f"r{ticket}", list(prompt), pack_params(params))


def hear(wire, *expected):
    """All events until each of those that are expected was among them."""
    events, deadline = [], time.monotonic() + PATIENCE_S
    while not all(any(is_it(*event) for event in events) for is_it in expected):
        assert time.monotonic() < deadline, events
        events += wire.receive(0.1)
    return events


def ends(ticket):
    return lambda replica, event: (
        isinstance(event, Report)
        and any(
            news.ticket == ticket and (news.error or any(gain.finish_reason for gain in news.gains))
            for news in event.news
        )
    )


def dies(replica):
    return lambda index, event: index == replica and isinstance(event, Died) and "its process" in event.error


def said(events, ticket):
    return [
        token_id
        for _, event in events
        if isinstance(event, Report)
        for news in event.news
        if news.ticket == ticket
        for gain in news.gains
        for token_id in gain.token_ids
    ]


@pytest.fixture
def leaves_nothing(folder):
    """Neither a process, a dead one included, nor a name of a socket is there afterwards that was not before."""
    before = children(os.getpid())
    yield
    assert (children(os.getpid()), list(folder.iterdir())) == (before, [])


def runs(pid):
    """An orphan that is dead waits for whoever adopted it: that is not ours to mend."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ticks(pid):
    """Of the processor's time, hundredths of a second that it has had."""
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().split()[13:15]))


def children(pid):
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sorted(child for task in tasks for child in (task / "children").read_text().split())


def test_replicas_answer_each_for_itself(wire):
    for ticket in (0, 1):
        wire.send(ticket, add(ticket, prompt=[5 + ticket]))
    events = hear(wire, ends(0), ends(1))
    assert (said(events, 0), said(events, 1)) == ([6, 7, 8], [7, 8, 9])
    assert [config.num_blocks for config in wire.configs] == [CONFIG["num_blocks"]] * 2


def test_what_cannot_be_read_is_dropped_with_a_line_and_the_next_is_read(capfd):
    wire = start()
    good = encode(add(10))
    for bad in (
        good[:-3],
        b"",
        b"\xff\x00",
        encode("no command"),
        encode([1, 2]),
        good + b"\x00",
        encode({"type": "Add"}),
    ):
        wire.links[0].inbox.send(bad)
    wire.send(0, add(11))
    assert said(hear(wire, ends(11)), 11) == [6, 7, 8]
    wire.close()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 7
    assert all(line.startswith("engine core: a message of ") for line in lines)


def test_commands_are_taken_between_two_steps(wire):
    """Fifty slow steps would take seconds."""
    wire.send(0, add(20, prompt=[MUD], max_tokens=50))
    events = hear(wire, lambda _, event: isinstance(event, Report) and event.last_ticket == 20)
    wire.send(0, Ask(1, "check"))
    wire.send(0, Abort(20))
    wire.send(0, Ask(2, "check"))
    events += hear(wire, *[lambda _, event, n=n: event == Answer(n) for n in (1, 2)])
    reports = [event for _, event in events if isinstance(event, Report)]
    assert reports[-1].occupancy.num_running == 0
    assert 0 < len(said(events, 20)) < 50


def test_ctrl_c_is_not_for_a_core(wire):
    os.kill(wire.links[0].process.pid, signal.SIGINT)
    wire.send(0, add(30))
    assert said(hear(wire, ends(30)), 30) == [6, 7, 8]


def test_who_sleeps_takes_no_time(wire):
    for replica in (0, 1):
        wire.send(replica, Ask(replica, "check"))
    hear(wire, *[lambda _, event, n=n: event == Answer(n) for n in (0, 1)])  # behind whatever was said before
    before = ticks(wire.links[1].process.pid)
    assert wire.receive(0.3) == []
    assert ticks(wire.links[1].process.pid) <= before + 1, "to fall asleep it may need the end of one"


def test_sockets_that_are_connected_need_no_names(wire, folder):
    assert list(folder.iterdir()) == []


def test_what_a_core_garbles_is_told_and_does_not_end_it(wire):
    """Somebody else's bytes in our inbox would look like this."""
    link = wire.links[1]
    context = zmq.Context.instance()
    with context.socket(zmq.PAIR) as here, context.socket(zmq.PAIR) as there:
        here.bind("inproc://garbled")
        there.connect("inproc://garbled")
        outbox, link.outbox = link.outbox, here
        there.send(b"\x81\xa4")
        there.send(encode(Answer(5)))
        events = link.receive()
        link.outbox = outbox
    assert [type(event) for event in events] == [Lost, Answer]
    assert "2 bytes from the engine cannot be read" in events[0].error


@pytest.mark.usefixtures("leaves_nothing")
def test_a_step_that_raises_is_the_last_and_says_why_in_one_line(capfd):
    wire = start()
    wire.send(0, add(0, prompt=[NO_POWER]))
    events = [event for _, event in hear(wire, dies(0))]
    first, last = [event for event in events if isinstance(event, Died)]
    assert first.error == "RuntimeError: no power"
    assert "in say" in first.traceback
    assert last.error.endswith("ended with exit code 1") or last.error.endswith("was killed by SIGKILL")
    assert wire.receive(0) == [], "nobody is left to listen to"
    wire.close()
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("leaves_nothing")
def test_an_engine_that_loses_a_rank_while_nobody_asks_for_anything_says_so(monkeypatch):
    monkeypatch.setenv("MINIPAGED_ECHO", "loses a rank")
    wire, moment = start(), time.monotonic()
    assert hear(wire, dies(0))[0][1].error == "RuntimeError: rank 1 died"
    assert time.monotonic() - moment < 5
    wire.close()


@pytest.mark.usefixtures("leaves_nothing")
def test_one_that_is_killed_is_missed_at_once_while_the_other_goes_on():
    wire = start(2)
    pids = [link.process.pid for link in wire.links]
    wire.send(0, add(0, prompt=[BULLET]))
    moment = time.monotonic()
    events = hear(wire, dies(0))
    assert time.monotonic() - moment < 5
    assert events[-1][1].error == f"its process {pids[0]} was killed by SIGKILL"
    wire.send(1, add(1))
    assert said(hear(wire, ends(1)), 1) == [6, 7, 8]
    wire.send(0, add(2))  # to nobody: it neither raises nor waits
    os.kill(pids[1], signal.SIGKILL)  # while it sleeps
    assert "SIGKILL" in hear(wire, dies(1))[-1][1].error
    wire.close()


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize(
    ("fault", "expected", "message"),
    [
        ("refuses", ValueError, "num_blocks 3 is not enough"),
        ("breaks", RuntimeError, "RuntimeError: no GPU today"),
        ("dies", RuntimeError, r"its process \d+ was killed by SIGKILL"),
        ("sleeps", RuntimeError, "replica 0 was not ready within 0.5 s"),
    ],
)
def test_a_start_that_fails_says_why_and_leaves_nothing(monkeypatch, capfd, fault, expected, message):
    monkeypatch.setenv("MINIPAGED_ECHO", fault)
    with pytest.raises(expected) as error:
        start(timeout_s=0.5 if fault == "sleeps" else PATIENCE_S)
    assert re.fullmatch(message, str(error.value))
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("leaves_nothing")
def test_with_several_the_one_that_fails_is_named(monkeypatch):
    monkeypatch.setenv("MINIPAGED_ECHO", "refuses")
    with pytest.raises(ValueError, match=r"^replica [01]: num_blocks 3 is not enough"):
        start(2)


def test_each_replica_has_its_own_part_of_the_machine(monkeypatch):
    config = EngineConfig(tensor_parallel_size=2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("NUMBA_NUM_THREADS", "5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5, 6,GPU-7")
    second = environment(config, 1, 2)
    assert (second["OMP_NUM_THREADS"], second["NUMBA_NUM_THREADS"]) == ("3", "5"), "whoever asked for some gets them"
    assert second["CUDA_VISIBLE_DEVICES"] == "6,GPU-7"
    with pytest.raises(ValueError, match="data_parallel_size 3 x 2 ranks each need 6 GPUs; there are 4"):
        environment(config, 0, 3)
    for same in (environment(config, 0, 1), environment(EngineConfig(device="cpu"), 0, 3)):
        assert same["CUDA_VISIBLE_DEVICES"] == "4,5, 6,GPU-7"


PARENT = """
import sys, time
from tests.core.echo import MUD
from tests.core.test_processes import add, start
wire = start(2)
wire.send(0, add(0, prompt=[MUD], max_tokens=50))
print("ready")
print(*(link.process.pid for link in wire.links), flush=True)
{then}
"""


def test_a_parent_that_is_killed_while_its_cores_start_leaves_nothing(monkeypatch, folder):
    monkeypatch.setenv("MINIPAGED_ECHO", "sleeps")
    program = [sys.executable, "-c", PARENT.format(then="")]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        deadline = time.monotonic() + PATIENCE_S
        while len(cores := children(parent.pid)) < 2 or not list(folder.glob("*/1/inbox")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        parent.kill()
        assert parent.stderr.read() == b""
    while any(runs(int(core)) for core in cores) or list(folder.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("then", ["time.sleep(60)", "sys.exit(0)"], ids=["killed", "exits without a goodbye"])
def test_a_parent_that_goes_takes_its_cores_along(then, folder):
    program = [sys.executable, "-c", PARENT.format(then=then)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"ready\n"
        cores = parent.stdout.readline().split()
        if "sleep" in then:
            parent.kill()
        assert parent.stderr.read() == b""
    deadline = time.monotonic() + 5
    while any(runs(int(core)) for core in cores):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len(cores) == 2
    assert list(folder.iterdir()) == []
