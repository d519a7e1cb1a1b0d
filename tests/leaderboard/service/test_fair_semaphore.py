"""Threads get the semaphore in the order in which they came."""

import threading
import time

import pytest

from leaderboard.service.fair_semaphore import FairSemaphore


def _start(work, *arguments):
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    return thread


def _until(holds):
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_first_come_first_served_and_no_pushing_in():
    semaphore, order = FairSemaphore(1, 10.0), []

    def work(number):
        with semaphore:
            order.append(number)

    threads = []
    with semaphore:
        for number in range(20):
            threads.append(_start(work, number))
            _until(lambda number=number: len(semaphore._waiting) == number + 1)
    with semaphore:
        order.append("back again at once")
    for thread in threads:
        thread.join()
    assert order == [*range(20), "back again at once"]


def test_never_more_inside_than_there_are_places():
    semaphore, inside, most, lock = FairSemaphore(3, 10.0), 0, 0, threading.Lock()

    def work():
        nonlocal inside, most
        for _ in range(50):
            with semaphore:
                with lock:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0)
                with lock:
                    inside -= 1

    threads = [_start(work) for _ in range(16)]
    for thread in threads:
        thread.join()
    assert (inside, most) == (0, 3)
    assert semaphore._free == 3


def test_who_waits_too_long_is_sent_away_and_takes_nobodys_turn():
    semaphore = FairSemaphore(1, 0.01)
    with semaphore:
        with pytest.raises(TimeoutError, match=r"no permit within 0\.01 s"):
            semaphore.__enter__()
        assert not semaphore._waiting
    with semaphore:
        assert semaphore._free == 0
    assert semaphore._free == 1


def test_an_error_inside_gives_the_place_back():
    semaphore = FairSemaphore(1, 0.01)
    with pytest.raises(ZeroDivisionError), semaphore:
        raise ZeroDivisionError
    with semaphore:
        pass
