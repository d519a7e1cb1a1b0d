"""Work in the background: in order, not too far ahead, and with its errors brought back."""

import threading
import time

import pytest
import torch
from torch.nn import functional

from now_builder.detect.pixels import calls_in_background, in_background, window_means


def test_means_of_windows_are_those_of_avg_pool_to_the_bit():
    for shape, side, stride in (((2, 9, 11), 3, 2), ((1, 3, 8, 7), 2, 2), ((4, 4), 4, 1)):
        values = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        slow = functional.avg_pool2d(values.reshape(-1, 1, *shape[-2:]), side, stride)
        assert torch.equal(window_means(values, side, stride).flatten(), slow.flatten())


def test_an_iterator_in_the_background_keeps_its_order_and_is_not_far_ahead():
    made, threads = [], set()

    def items():
        for number in range(20):
            made.append(number)
            threads.add(threading.get_ident())
            yield number

    for number in in_background(items(), 2):
        time.sleep(0.002)
        assert len(made) <= number + 1 + 2
        last = number
    assert last == 19
    assert threading.get_ident() not in threads


def test_an_error_of_an_iterator_comes_out_behind_the_items_before_it():
    def items():
        yield 1
        raise OSError("torn")

    stream = in_background(items(), 2)
    assert next(stream) == 1
    with pytest.raises(OSError, match="torn"):
        next(stream)


def test_calls_in_the_background_are_done_in_order_before_the_end():
    done = []

    def work(number):
        time.sleep(0.005)
        done.append(number)

    with calls_in_background(work, 2) as call:
        for number in range(8):
            call(number)
            assert number + 1 - len(done) <= 3
    assert done == list(range(8))


def test_an_error_of_a_call_is_raised_by_a_later_one_or_at_the_end():
    def work(number):
        if number == 1:
            raise OSError("disk full")

    def all_calls(count):
        with calls_in_background(work, 1) as call:
            for number in range(count):
                call(number)
                time.sleep(0.02)

    with pytest.raises(OSError, match="disk full"):
        all_calls(2)
    started = time.monotonic()
    with pytest.raises(OSError, match="disk full"):
        all_calls(1000)
    assert time.monotonic() - started < 5
