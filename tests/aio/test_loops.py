"""The locks, waits and background work of a loop behave as those of threads."""

import asyncio
import gc
import sys
import threading

import pytest

from snapkv.base.concurrency import THREADS, here
from snapkv.base.greenlet_runtime import GreenletRuntime
from snapkv.base.waiting import bounded, monotonic, no_later_than

WAIT_S = 10.0


def in_loop(scenario):
    """Run `scenario(runtime)` in a new loop."""

    async def main():
        await scenario(GreenletRuntime())

    asyncio.run(main())


def test_a_call_knows_its_runtime_and_a_thread_its_own():
    async def scenario(runtime):
        assert await runtime.run(lambda: here()) is runtime
        assert here() is THREADS, "the task itself runs as before"
        first, second = await runtime.run(lambda: (here().ident(), here().ident()))
        assert first == second
        assert first

    in_loop(scenario)
    assert here() is THREADS


def test_results_and_errors_come_through():
    def fail():
        here().pause(0)
        raise KeyError("k")

    async def scenario(runtime):
        assert await runtime.run(lambda a, b: a + b, 1, b=2) == 3
        with pytest.raises(KeyError, match="k"):
            await runtime.run(fail)
        with pytest.raises(RuntimeError):  # a coroutine cannot raise StopIteration
            await runtime.run(next, iter(()))

    in_loop(scenario)


def test_a_lock_goes_to_those_that_wait_in_their_order():
    async def scenario(runtime):
        lock, order = runtime.lock(), []

        def work(name):
            with lock:
                order.append(name)
                here().pause(0.001)
                order.append(name)

        await asyncio.gather(*(runtime.run(work, n) for n in range(5)))
        assert order == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
        assert not lock.locked()

    in_loop(scenario)


def test_a_lock_that_is_not_given_back_in_time():
    async def scenario(runtime):
        lock = runtime.lock()
        assert lock.acquire()
        assert not lock.acquire(blocking=False)
        assert not await runtime.run(lock.acquire, timeout=0.01)
        lock.release()
        assert await runtime.run(lock.acquire, timeout=0.01)

    in_loop(scenario)


@pytest.mark.parametrize("given_first", [False, True])
def test_a_lock_survives_a_cancelled_waiter(given_first):
    async def scenario(runtime):
        lock = runtime.lock()
        lock.acquire()
        waiting = [asyncio.create_task(runtime.run(lock.acquire)) for _ in range(2)]
        await asyncio.sleep(0)
        if given_first:  # and the first of them is cancelled before it runs again
            lock.release()
            waiting[0].cancel()
        else:
            waiting[0].cancel()
            await asyncio.sleep(0)
            lock.release()
        assert await asyncio.wait_for(waiting[1], WAIT_S)
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]

    in_loop(scenario)


def test_conditions_and_events():
    async def scenario(runtime):
        changed, flag, news = runtime.condition(), runtime.event(), []
        waiting = [
            asyncio.create_task(runtime.run(changed.wait_for, lambda: bool(news))) for _ in "ab"
        ]
        waiting.append(asyncio.create_task(runtime.run(flag.wait)))
        assert not await runtime.run(changed.wait, 0.01)
        assert not await runtime.run(flag.wait, 0.01)
        assert not await runtime.run(changed.wait_for, lambda: bool(news), 0.01)
        news.append(1)
        changed.notify_all()
        flag.set()
        assert await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S) == [True] * 3
        assert flag.is_set()

    in_loop(scenario)


def test_a_waker_may_be_woken_by_any_thread_and_by_the_garbage_collector():
    class Waking:
        def __init__(self, waker):
            self.waker = waker

        def __del__(self):
            self.waker.wake()

    async def scenario(runtime):
        waker = runtime.waker()
        for wake in (waker.wake, lambda: Waking(waker) and gc.collect()):
            waiting = asyncio.create_task(runtime.run(waker.wait, WAIT_S))
            await asyncio.sleep(0)
            thread = threading.Thread(target=wake)
            thread.start()
            await asyncio.wait_for(waiting, WAIT_S / 2)
            await runtime.run(here_join, thread)

    def here_join(thread):
        here().join(thread, WAIT_S)
        assert not thread.is_alive()

    in_loop(scenario)


def test_background_work_ends_or_is_ended():
    async def scenario(runtime):
        done = []

        def work():
            here().pause(0.01)
            done.append(1)

        ended = runtime.start(work, "short")
        endless = runtime.start(lambda: here().pause(1_000), "endless")
        await runtime.run(ended.join, WAIT_S)
        assert done
        assert not ended.is_alive()
        assert endless.is_alive()
        await runtime.end_works(0.01)
        assert not endless.is_alive()
        assert len(asyncio.all_tasks()) == 1

    in_loop(scenario)


def test_background_work_has_no_deadline_of_the_call_that_starts_it():
    async def scenario(runtime):
        bounds = []

        def call():
            with no_later_than(monotonic() - 1.0):
                work = runtime.start(lambda: bounds.append(bounded(9.0)), "work")
            work.join(WAIT_S)

        await runtime.run(call)
        assert bounds == [9.0]

    in_loop(scenario)


if sys.version_info >= (3, 12):  # which brings eager tasks

    def test_background_work_of_a_loop_with_eager_tasks():
        async def scenario(runtime):
            runtime.loop.set_task_factory(asyncio.eager_task_factory)
            done = []

            def work():
                here().pause(0.001)
                done.append("work")

            def call():
                started = runtime.start(work, "work")
                done.append("started")
                started.join(WAIT_S)
                return list(done)

            assert await asyncio.wait_for(runtime.run(call), WAIT_S) == ["started", "work"]

        in_loop(scenario)


def test_a_cancelled_call_is_interrupted_where_it_waits():
    async def scenario(runtime):
        seen = []

        def wait():
            try:
                here().pause(1_000)
            except asyncio.CancelledError:
                here().pause(0)  # to clean up, it may wait
                seen.append("cleaned up")
                raise

        call = asyncio.create_task(runtime.run(wait))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert seen == ["cleaned up"]

    in_loop(scenario)
