"""Jobs: what they say arrives in order, failures too, and a stopped one ends."""

from __future__ import annotations

import threading

import pytest
import torch

from damc.app.densities import explore
from damc.app.jobs import Job, Jobs, Stopped
from damc.errors import BadInput


def test_all_that_a_job_says_arrives_in_order() -> None:
    def work(job: Job) -> None:
        for k in range(5):
            job.say(k)

    assert list(Job().watch(work)) == [0, 1, 2, 3, 4]


def test_a_failure_is_raised_after_what_was_said() -> None:
    def work(job: Job) -> None:
        job.say(1)
        raise BadInput("no")

    found = Job().watch(work)
    assert next(found) == 1
    with pytest.raises(BadInput, match="no"):
        next(found)


def test_a_stopped_job_ends_at_its_next_evaluation() -> None:
    job, started, ended = Job(), threading.Event(), threading.Event()

    def work(job: Job) -> None:
        density = job.watched(lambda z: z.sum(1))
        try:
            while True:
                density(torch.zeros(1, 2))
                started.set()
        finally:
            ended.set()

    found = job.watch(work)
    thread = threading.Thread(target=lambda: (started.wait(10), job.stop()))
    thread.start()
    with pytest.raises(Stopped):
        next(found)
    thread.join()
    assert ended.wait(10)


def test_closing_the_watch_stops_the_work() -> None:
    job = Job()
    found = job.watch(lambda job: [job.say(k) for k in range(10**9)] and None)
    assert next(found) == 0
    found.close()
    assert job.stopped


def test_a_new_job_of_a_tab_stops_the_one_before_and_no_other() -> None:
    jobs = Jobs()
    first, other = jobs.start("a"), jobs.start("b")
    second = jobs.start("a")
    assert first.stopped and not second.stopped and not other.stopped
    assert jobs.stop("a")
    assert second.stopped and not other.stopped
    assert not jobs.stop("a") and not jobs.stop("nobody")


def test_what_was_said_before_a_stop_is_not_shown_after_it() -> None:
    job, said = Job(), threading.Event()

    def work(job: Job) -> None:
        for k in range(3):
            job.say(k)
        said.set()
        while True:
            job.check()

    found = job.watch(work)
    assert next(found) == 0
    assert said.wait(10)
    job.stop()
    with pytest.raises(Stopped):
        next(found)


def test_exploring_a_density_can_be_stopped() -> None:
    job = Job()
    found = job.watch(lambda job: explore("-x^2 - y^2", 0, job))
    next(found)
    job.stop()
    with pytest.raises(Stopped):
        list(found)
