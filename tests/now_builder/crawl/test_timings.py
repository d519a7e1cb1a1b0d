"""Seconds by step: they add up, also where a step ends in an error."""

import json
import time

import pytest

from now_builder.crawl.browser.visit import VisitRecord
from now_builder.crawl.timings import StepTimer, add_step, read_timings


def fail(steps: StepTimer) -> None:
    with steps.step("load"):
        time.sleep(0.02)
        _ = 1 / 0


def test_attempts_add_up_and_an_error_is_timed_too() -> None:
    steps = StepTimer()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fail(steps)
    with steps.step("settle"):
        pass
    seconds = read_timings(steps.to_json())
    assert list(seconds) == ["load", "settle"]
    assert 0.04 <= seconds["load"] < 1
    assert seconds["settle"] < 0.01


def test_a_step_that_is_known_already_stays() -> None:
    timings = add_step('{"load": 1.5}', "store", 0.12345)
    assert json.loads(timings) == {"load": 1.5, "store": 0.123}
    assert add_step(timings, "store", 9.0) == timings
    assert add_step(None, "store", 1.0) is None
    assert read_timings(None) == {}


def test_a_trail_gives_its_steps_as_a_column() -> None:
    record = VisitRecord(final_url="http://a.test/")
    with record.timer.step("open"):
        pass
    columns = record.columns()
    assert columns["final_url"] == "http://a.test/"
    assert json.loads(columns["timings"]) == {"open": 0.0}
    assert "timer" not in columns
