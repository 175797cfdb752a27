"""Devices that are lent to a group of real processes for a while, and what becomes of both groups meanwhile: no Ray."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from scaled_workers import Maker, Stubborn, Taker

from rlinf.scheduler import Cluster, FlexiblePlacementStrategy, ScalingOptions
from rlinf.scheduler.errors import ClusterError, ConfigError, PlacementError, ResizeError
from rlinf_scheduler.events import GroupResized
from waits import wait_until

DEADLINE_S = 60.0


def launch(forked_job, worker, name, *devices):
    return worker.create_group().launch(
        forked_job, FlexiblePlacementStrategy([[each] for each in devices]), name=name
    )


@pytest.fixture
def lender(forked_job):
    with launch(forked_job, Taker, "lender", 0, 1) as group:
        yield group


@pytest.fixture
def borrower(forked_job):
    with launch(forked_job, Maker, "borrower", 2) as group:
        yield group


def test_devices_are_lent_for_a_block_and_given_back_at_its_end(forked_job, lender, borrower):
    loan = Cluster.lend(forked_job, "lender", to=borrower, num_workers=2)
    plan = loan.plan()
    assert [(each.node_rank, each.devices, each.lenders) for each in plan.ranks] == [
        (0, (0,), (0,)),
        (0, (1,), (1,)),
    ]
    assert str(plan).startswith("2 further of 'borrower' on devices of 'lender':\nnode")
    assert borrower.ranks == (0,), "a plan changes nothing"
    with loan:
        assert loan.ranks == (1, 2)
        with pytest.raises(ConfigError, match="this loan is on already: 'borrower' has ranks 1-2 by it"):
            loan.__enter__()
        assert borrower.devices().wait(DEADLINE_S) == ["2", "0", "1"]
    assert borrower.ranks == (0,)
    with pytest.raises(ValueError, match="of the block"), loan:
        raise ValueError("of the block")
    assert borrower.ranks == (0,)
    with pytest.raises(PlacementError, match="not 3"):
        Cluster.lend(forked_job, lender, to=borrower, num_workers=3)
    with pytest.raises(ConfigError, match="two groups"):
        Cluster.lend(forked_job, "lender", to="lender")


def test_what_the_lender_has_left_is_not_lent_any_more(forked_job, lender, borrower):
    loan = Cluster.lend(forked_job, "lender", to="borrower", num_workers=2)
    lender.shrink(1)
    with launch(forked_job, Taker, "third", 1):
        for begin in (loan.plan, loan.__enter__):
            with pytest.raises(PlacementError, match=r"1 further rank .* not 2"):
                begin()
    lender.terminate()
    with pytest.raises(ClusterError, match="'lender' has ended"):
        loan.plan()
    assert borrower.ranks == (0,)


def test_two_loans_of_the_same_devices_do_not_get_them_twice(forked_job, lender, borrower):
    first, second, third = (Cluster.lend(forked_job, lender, to=borrower, num_workers=1) for _ in range(3))
    with first, second:
        assert borrower.devices().wait(DEADLINE_S) == ["2", "0", "1"]
        with pytest.raises(PlacementError, match="0 further ranks"), third:
            pass
    assert borrower.ranks == (0,)


def test_a_loan_ends_with_its_borrower_and_lasts_without_its_lender(forked_job, lender, borrower):
    with Cluster.lend(forked_job, lender, to=borrower):
        lender.terminate()
        assert borrower.devices().wait(DEADLINE_S) == ["2", "0", "1"]
    assert borrower.ranks == (0,)
    with launch(forked_job, Taker, "other lender", 0) as other, Cluster.lend(forked_job, other, to=borrower):
        borrower.terminate()


def test_a_loan_whose_ranks_cannot_leave_goes_on_until_they_can(forked_job, lender, borrower):
    loan = Cluster.lend(forked_job, lender, to=borrower, num_workers=1)
    with pytest.raises(ResizeError) as raised, loan:
        borrower.shrink(ranks=[0])  # the one of the loan is the last one
    assert raised.value.__notes__[-1].startswith(
        "'borrower' has ranks 1 on devices of 'lender', until `end()`"
    )
    assert (borrower.ranks, loan.ranks) == ((1,), (1,))
    with pytest.raises(ConfigError, match="this loan is on already"):
        loan.__enter__()
    borrower.grow(placement="2")
    loan.end()
    assert (borrower.ranks, loan.ranks) == ((2,), ())
    with loan:
        assert loan.ranks == (3,)


def test_ranks_that_have_come_before_a_loan_fails_are_given_back(forked_job, lender):
    with launch(forked_job, Stubborn, "stubborn", 2) as stubborn:
        with pytest.raises(ResizeError, match="too many"), Cluster.lend(forked_job, lender, to=stubborn):
            pass
        assert stubborn.ranks == (0,)


def test_a_policy_leaves_ranks_alone_that_are_there_for_a_loan(forked_job, lender, borrower):
    sizes = []
    forked_job.session.bus.subscribe(
        lambda event: isinstance(event, GroupResized) and sizes.append(len(event.new_ranks))
    )
    options = ScalingOptions(for_s=0.0, cooldown_s=0.0, every_s=0.1)
    policy = Cluster.autoscale(forked_job, borrower, min=1, max=1, options=options)
    with Cluster.lend(forked_job, lender, to=borrower, num_workers=2) as loan:
        wait_until(lambda: policy.last is not None and "devices of 'lender'" in policy.last.reason)
        assert policy.last.action == "stay"
        assert "it has ranks on devices of 'lender'" in policy.last.reason
        assert borrower.ranks == (0, *loan.ranks)
    policy.stop()
    assert (sizes, policy.decisions) == ([3, 1], ())


def test_a_loan_whose_borrower_ends_as_its_ranks_wait_to_leave_is_over(forked_job, lender, borrower):
    begun, goes_on = threading.Event(), threading.Event()

    def hold():
        begun.set()
        assert goes_on.wait(DEADLINE_S)

    loan = Cluster.lend(forked_job, lender, to=borrower, num_workers=1)
    with ThreadPoolExecutor(3) as pool, loan:
        forked_job.processes.on_start = hold
        pool.submit(borrower.grow, 1)
        assert begun.wait(DEADLINE_S)
        ends = pool.submit(loan.end)
        wait_until(lambda: len(borrower._shared._resizes) == 2)
        pool.submit(borrower.terminate)
        ends.result(DEADLINE_S)
        goes_on.set()
    assert loan.ranks == ()
