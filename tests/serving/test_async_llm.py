"""A caller who goes leaves nothing behind, one who is slow keeps nobody waiting, and all hear of an engine's death."""

import asyncio
import os
import signal
import time
from contextlib import aclosing, suppress

import pytest

from minipaged import AsyncLLM, SamplingParams
from minipaged.core.processes import ProcessWire
from minipaged.core.wire import Lost
from minipaged.serving import async_llm
from minipaged.serving.async_llm import EngineDeadError, QueueFullError
from minipaged.serving.letterbox import Feed, Letterbox

from ..core.echo import COMMAND, CONFIG, MUD, NO_POWER, STEP_S, VOCAB_SIZE, vocabulary

SEATS, MAX_QUEUE = CONFIG["max_num_seqs"], 3
PATIENCE_S = 20.0


def start(**options):
    """An engine that echoes, in processes of its own."""

    def start_processes(config, timeout_s):
        return ProcessWire(config, config.data_parallel_size, PATIENCE_S, COMMAND), vocabulary()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(async_llm, "start_processes", start_processes)
        return AsyncLLM("echo", **{**CONFIG, **options})


@pytest.fixture(scope="module")
def shared():
    llm = start(max_queue=MAX_QUEUE)
    yield llm
    llm.shutdown()


@pytest.fixture
def llm(shared):
    """The shared one; whatever a test did with it, it is idle and whole afterwards."""
    yield shared
    asyncio.run(idle(shared))


async def idle(llm, patience_s=5.0):
    """Nobody is served, no block is held, and every invariant holds."""
    deadline = time.monotonic() + patience_s
    while (now := llm.stats()).num_running or now.num_waiting or now.num_free_blocks < now.num_blocks:
        assert time.monotonic() < deadline, now
        await asyncio.sleep(0.01)
    assert (llm.boxes, llm.replicas.entries, llm.replicas.desk.live) == ({}, {}, {})
    await llm.check_integrity()


def greedy(max_tokens=3, **options):
    return SamplingParams(temperature=0, max_tokens=max_tokens, **options)


def run(coroutine):
    """Ends by itself, or the test fails."""
    return asyncio.run(asyncio.wait_for(coroutine, PATIENCE_S))


async def listen(llm, prompt, params=None, request_id=None):
    return [output async for output in llm.generate(prompt, params or greedy(), request_id)]


async def last(llm, prompt, params=None, request_id=None):
    return (await listen(llm, prompt, params, request_id))[-1]


def test_outputs_hold_all_that_came_before(llm):
    outputs = run(listen(llm, [5, MUD, 6], greedy(4)))
    assert [output.outputs[0].token_ids for output in outputs] == [[7], [7, 8], [7, 8, 9], [7, 8, 9, 10]]
    assert [output.outputs[0].text for output in outputs] == ["h", "hi", "hij", "hijk"]
    assert [output.finished for output in outputs] == [False, False, False, True]
    assert outputs[-1].outputs[0].finish_reason == "length"


def test_a_stop_string_is_never_shown_nor_its_beginning(llm):
    outputs = run(listen(llm, [MUD, 6], greedy(9, stop=["kl"])))
    assert [output.outputs[0].text for output in outputs] == ["h", "hi", "hij", "hij", "hij"]
    assert (outputs[-1].outputs[0].stop_reason, outputs[-1].outputs[0].token_ids) == ("kl", [7, 8, 9, 10, 11])


def test_choices_come_together(llm):
    output = run(last(llm, {"prompt_token_ids": [6]}, greedy(2, n=3)))
    assert [said.token_ids for said in output.outputs] == [[7, 8]] * 3


@pytest.mark.parametrize(
    ("prompt", "params", "error", "message"),
    [
        ([], greedy(), ValueError, "the prompt is empty"),
        ([VOCAB_SIZE], greedy(), ValueError, "prompt_token_ids"),
        ([5] * 64, greedy(), ValueError, "the prompt has 64 tokens"),
        ("text", greedy(), ValueError, "no tokenizer"),
        ([5], "greedy", TypeError, "params must be SamplingParams"),
        ([5], greedy(top_k=2**70), ValueError, "needs more than 64 bits"),
    ],
)
def test_what_a_policy_refuses_is_refused_before_anything_runs(llm, prompt, params, error, message):
    num_sent = llm.replicas.all[0].num_sent
    with pytest.raises(error, match=message):
        run(last(llm, prompt, params))
    assert llm.replicas.all[0].num_sent == num_sent


def test_the_second_of_two_with_one_id_is_refused_and_the_first_unaffected(llm):
    async def both():
        first = asyncio.create_task(last(llm, [MUD, 6], greedy(6), "same"))
        await asyncio.sleep(2 * STEP_S)
        with pytest.raises(ValueError, match="'same' belongs to a request that is still running"):
            await last(llm, [7], greedy(), "same")
        return await first

    assert run(both()).outputs[0].token_ids == [7, 8, 9, 10, 11, 12]


def test_an_id_is_free_at_once_and_news_of_the_one_before_reach_nobody(llm):
    async def one_after_the_other():
        for i in range(5):
            async with aclosing(llm.generate([MUD, 6], greedy(50), "same")) as outputs:
                await anext(outputs)
            outputs = await listen(llm, [10 + i], greedy(3), "same")
            assert [output.prompt_token_ids for output in outputs] == [[10 + i]] * len(outputs)
            assert outputs[-1].outputs[0].token_ids == [(11 + i + j) % 20 for j in range(3)]

    run(one_after_the_other())


def num_steps_of(llm, name):
    """Count the steps that run a request, from now on."""
    steps = []
    llm.replicas.ledger.observers.append(lambda record: steps.append(name in record.num_scheduled_tokens))
    return steps


@pytest.mark.parametrize("way", ["closes", "is cancelled", "breaks off"])
def test_whoever_goes_frees_its_blocks_within_two_steps(llm, way):
    async def leave():
        steps = num_steps_of(llm, "leaver")
        stream = llm.generate([MUD, 6], greedy(50), "leaver")
        if way == "is cancelled":
            task = asyncio.create_task(last(llm, [MUD, 6], greedy(50), "leaver"))
            while not any(steps):
                await asyncio.sleep(0.005)
            num_before = sum(steps)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        else:
            async for _ in stream:
                break
            num_before = sum(steps)
            await stream.aclose()
        await idle(llm)
        return sum(steps) - num_before

    assert run(leave()) <= 2


def test_who_is_cancelled_while_its_text_is_read_leaves_nothing(llm, monkeypatch):
    read = AsyncLLM.read

    def slowly(self, *args):
        time.sleep(0.1)
        return read(self, *args)

    async def cancel():
        task = asyncio.create_task(last(llm, [5]))
        await asyncio.sleep(0.02)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    monkeypatch.setattr(AsyncLLM, "read", slowly)
    num_sent = llm.replicas.all[0].num_sent
    run(cancel())
    assert llm.replicas.all[0].num_sent == num_sent


def test_an_iterator_that_nobody_begins_asks_for_nothing(llm):
    async def begin_nothing():
        stream = llm.generate([5], greedy())
        await stream.aclose()

    num_sent = llm.replicas.all[0].num_sent
    run(begin_nothing())
    assert llm.replicas.all[0].num_sent == num_sent


def test_a_slow_reader_finds_only_the_newest_and_keeps_nobody_waiting(llm):
    async def read_slowly():
        async with aclosing(llm.generate([6], greedy(40))) as stream:
            seen = [await anext(stream)]
            [box] = llm.boxes.values()
            for _ in range(10):
                await last(llm, [5], greedy(40))
            assert len(box.newest) == 1
            return seen + [output async for output in stream]

    outputs = run(read_slowly())
    assert len(outputs) <= 3
    assert len(outputs[-1].outputs[0].token_ids) == 40


def test_abort_tells_whoever_listens(llm):
    async def abort():
        task = asyncio.create_task(last(llm, [MUD, 6], greedy(50), "x"))
        while not llm.stats().num_running:
            await asyncio.sleep(0.005)
        llm.abort("x")
        llm.abort("x")
        llm.abort("nobody")
        return await task

    output = run(abort())
    assert output.outputs[0].finish_reason == "abort"
    assert output.outputs[0].token_ids == list(range(7, 7 + len(output.outputs[0].token_ids)))


def test_no_more_than_seats_and_queue_hold_and_one_who_goes_makes_room(llm):
    async def crowd():
        streams = [llm.generate([MUD, 6], greedy(8)) for _ in range(SEATS + MAX_QUEUE)]
        tasks = [asyncio.create_task(anext(stream)) for stream in streams]
        while len(llm.boxes) < len(streams):
            await asyncio.sleep(0.005)
        with pytest.raises(QueueFullError, match="the queue is full: 7 of 7 places are taken"):
            await last(llm, [5])
        await tasks[0]
        await streams[0].aclose()
        [output] = [await last(llm, [5])]
        for task, stream in zip(tasks[1:], streams[1:], strict=True):
            task.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration):
                await task
            await stream.aclose()
        return output

    assert run(crowd()).finished


def test_whoever_looks_on_sees_blocks_and_steps(llm):
    async def look():
        stream = llm.generate([MUD, 3, 1, 4, 1], greedy(50), "x")
        steps, feed = [], llm.records()
        watching = asyncio.create_task(anext(feed))
        await anext(stream)
        steps.append(await watching)
        [view] = (await llm.look()).values()
        await stream.aclose()
        await feed.aclose()
        return steps, view

    before = llm.stats()
    [step], view = run(look())
    assert step.num_scheduled_tokens == {"x": 5}
    assert [(holder.request_id, len(holder.block_table)) for holder in view.holders] == [("x", 2)]
    after = llm.stats()
    assert after.prompt_tokens - before.prompt_tokens == after.prefix_queries - before.prefix_queries == 5
    assert after.generation_tokens > before.generation_tokens
    assert after.steps > before.steps


def test_the_loop_is_free_while_a_long_step_runs(llm):
    async def measure():
        task = asyncio.create_task(last(llm, [MUD, 6], greedy(6)))
        longest = 0.0
        while not task.done():
            moment = time.monotonic()
            await asyncio.sleep(0.001)
            longest = max(longest, time.monotonic() - moment)
        return longest

    assert run(measure()) < STEP_S


def test_what_is_lost_ends_those_it_may_have_been_about_and_nobody_else(llm):
    async def lose():
        task = asyncio.create_task(last(llm, [MUD, 6], greedy(50)))
        while not llm.stats().num_running:
            await asyncio.sleep(0.005)
        with llm.replicas.lock:
            told = llm.replicas.report(llm.replicas.hear(llm.replicas.all[0], Lost("3 bytes cannot be read")))
        async_llm.deliver(llm.replicas, llm.boxes, told)
        return await task, await last(llm, [5])

    failed, fine = run(lose())
    assert (failed.outputs[0].finish_reason, failed.error) == ("error", "3 bytes cannot be read")
    assert fine.outputs[0].token_ids == [6, 7, 8]


@pytest.mark.parametrize(
    ("end", "reason"),
    [("a step raises", "the engine died: RuntimeError: no power"), ("it is killed", "was killed by SIGKILL")],
)
def test_an_engine_that_dies_is_the_end_of_every_caller_with_the_reason(end, reason):
    async def die(llm):
        tasks = [asyncio.create_task(last(llm, [MUD, 6], greedy(50))) for _ in range(SEATS + 2)]
        while not llm.stats().num_running:
            await asyncio.sleep(0.005)
        moment = time.monotonic()
        if end == "it is killed":
            os.kill(llm.replicas.wire.links[0].process.pid, signal.SIGKILL)
        else:
            for task in tasks[:3]:  # a seat for one more
                task.cancel()
            tasks = [asyncio.create_task(last(llm, [NO_POWER])), *tasks[3:]]
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert time.monotonic() - moment < 5
        assert {type(error) for error in errors} == {EngineDeadError}
        assert all(reason in str(error) for error in errors)
        with pytest.raises(EngineDeadError, match=reason):
            await last(llm, [5])

    llm = start()
    run(die(llm))
    assert not llm.is_alive
    assert reason in llm.error
    assert llm.stats().num_blocks == 0
    llm.shutdown()
    assert not llm.listener.is_alive()


def test_a_replica_that_dies_takes_its_own_requests_along_and_the_other_goes_on():
    async def half():
        async with start(data_parallel_size=2) as llm:
            tasks = [asyncio.create_task(last(llm, [MUD, 6], greedy(30))) for _ in range(4)]
            while len(llm.boxes) < 4:
                await asyncio.sleep(0.005)
            assert [replica.num_sent for replica in llm.replicas.all] == [2, 2]
            os.kill(llm.replicas.wire.links[1].process.pid, signal.SIGKILL)
            outputs = await asyncio.gather(*tasks)
            assert llm.is_alive
            assert (await last(llm, [5])).outputs[0].token_ids == [6, 7, 8]
            return outputs

    outputs = run(half())
    reasons = [output.outputs[0].finish_reason for output in outputs]
    assert sorted(reasons) == ["error", "error", "length", "length"]
    assert all(output.error.startswith("replica 1 died: its process") for output in outputs if output.error)


def test_drain_lets_nobody_in_and_waits_and_shutdown_tells_who_is_left():
    async def stop():
        llm = start()
        short = asyncio.create_task(last(llm, [MUD, 6], greedy(3)))
        long = asyncio.create_task(last(llm, [MUD, 6], greedy(50)))
        while len(llm.boxes) < 2:
            await asyncio.sleep(0.005)
        assert not await llm.drain(6 * STEP_S)
        assert (await short).finished
        with pytest.raises(QueueFullError, match="about to stop"):
            await last(llm, [5])
        llm.shutdown()
        with pytest.raises(EngineDeadError, match="it was shut down"):
            await long
        llm.shutdown()
        assert await llm.drain(1)

    run(stop())


def test_a_fault_in_the_listening_thread_is_the_end_of_every_caller_too(monkeypatch, capfd):
    async def break_it():
        async with start() as llm:
            task = asyncio.create_task(last(llm, [MUD, 6], greedy(50)))
            while not llm.stats().num_running:
                await asyncio.sleep(0.005)
            monkeypatch.setattr(llm.replicas.ledger, "write", None)
            with pytest.raises(EngineDeadError, match="nobody listens to it any more: TypeError"):
                await task

    run(break_it())
    assert "the listening thread broke" in capfd.readouterr().err


def test_a_letterbox_keeps_the_newest_and_a_feed_the_newest_few():
    async def fill():
        box, feed = Letterbox[int](), Feed[int](2)
        for i in range(5):
            box.put(i)
            feed.put(i)
        assert (await box.get(), [await feed.get(), await feed.get()]) == (4, [3, 4])
        box.put(ValueError("the last"))
        with pytest.raises(ValueError, match="the last"):
            await box.get()

    run(fill())


def test_a_look_that_is_given_up_is_nobody_elses_business(llm):
    """Somebody closes the page while the engine is in the middle of a step."""

    async def give_up():
        async with aclosing(llm.generate([MUD, 6], greedy(4))) as outputs:
            await anext(outputs)
            looking = asyncio.create_task(llm.look())
            await asyncio.sleep(STEP_S / 5)
            looking.cancel()
            return [output async for output in outputs][-1]

    assert run(give_up()).outputs[0].token_ids == [7, 8, 9, 10]
    assert llm.is_alive
