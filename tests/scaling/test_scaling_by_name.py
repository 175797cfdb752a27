"""Policies and loans of groups that are called by their names: whoever launched them, and without Ray."""

from queue import Queue

import pytest
from scaled_workers import Maker, Taker

from rlinf.scheduler import Channel, Cluster, FlexiblePlacementStrategy, ScalingOptions
from rlinf_scheduler.comm.directory import WORLD_SIZE
from rlinf_scheduler.errors import ClusterError, ConfigError
from rlinf_scheduler.events import Autoscaled
from rlinf_scheduler.host.info import group_entry
from rlinf_scheduler.session import Session, set_current
from rlinf_scheduler.worker.supervision import groups_of
from waits import wait_until

DEADLINE_S = 60.0
FAST = ScalingOptions(for_s=1.0, cooldown_s=0.2, every_s=0.2)


def launch(job, worker, name, *devices, **options):
    strategy = FlexiblePlacementStrategy([[each] for each in devices])
    return worker.create_group().launch(job, strategy, name=name, **options)


def grows_by_name(driver):
    """A policy of a driver has the group 'maker' of one rank grow, and what comes begin."""
    set_current(driver.session)
    items, events = Channel.create("items"), Queue()
    driver.session.bus.subscribe(lambda event: isinstance(event, Autoscaled) and events.put(event))
    policy = Cluster.autoscale(
        driver, "maker", min=2, max=4, options=FAST, on_grow=lambda new: new.make_one("items")
    )
    grown = events.get(timeout=DEADLINE_S)
    assert (grown.before, grown.after) == (1, 2)
    assert items.get(timeout_s=DEADLINE_S) == (1, 0)
    policy.stop()


def test_a_policy_by_name_has_the_ranks_begin_that_come(forked_job):
    group = launch(forked_job, Maker, "maker", 0)
    grows_by_name(forked_job)
    assert group.ranks == (0, 1)


def test_a_policy_by_name_grows_what_another_program_has_launched_and_left(kept):
    launcher, second = kept.attach("driver@here.1"), kept.attach("driver@here.2")
    launch(launcher, Maker, "maker", 0, detached=True)
    launcher.session.close()
    grows_by_name(second)
    assert [each.members.world_size for each in groups_of(kept.session) if each.name == "maker"] == [2]


def test_a_policy_by_name_of_a_job_server_ends_with_its_group(kept):
    driver = kept.attach()
    with launch(driver, Maker, "maker", 0):
        policy = Cluster.autoscale(driver, "maker", min=1, max=2, options=FAST)
    policy._thread.join(DEADLINE_S)
    assert not policy._thread.is_alive()


def test_a_loan_by_name_is_of_groups_that_other_programs_have_launched(kept):
    first, second, third = (kept.attach(f"driver@here.{number}") for number in (1, 2, 3))
    launch(first, Taker, "lender", 0, 1)
    borrower = launch(second, Maker, "borrower", 2)
    loan = Cluster.lend(third, "lender", to="borrower", num_workers=2)
    assert [each.devices for each in loan.plan().ranks] == [(0,), (1,)]
    with loan:
        wait_until(lambda: borrower.ranks == (0, *loan.ranks))
        assert borrower.devices().wait(DEADLINE_S) == ["2", "0", "1"]
    wait_until(lambda: borrower.ranks == (0,))


def test_a_policy_of_a_job_server_says_who_has_the_devices(kept):
    first, second = kept.attach("driver@here.1"), kept.attach("driver@here.2")
    launch(first, Maker, "maker", 0)
    launch(first, Taker, "rest", *range(1, 8))
    policy = Cluster.autoscale(second, "maker", min=2, max=4, options=FAST)
    wait_until(lambda: policy.decisions)
    policy.stop()
    assert policy.decisions[0].reason.endswith("; accelerators are held by 'rest'")


def test_a_name_that_no_group_has_is_told_with_those_that_there_are(kept, forked_job):
    driver = kept.attach()
    launch(driver, Maker, "maker", 0)
    told = r"no group 'makr' in this job: there are 'maker'; did you mean 'maker'\?"
    with pytest.raises(ClusterError, match=told):
        Cluster.autoscale(driver, "makr", min=1, max=2)
    with pytest.raises(ClusterError, match=told):
        Cluster.lend(driver, "maker", to="makr")
    for no_name in (5, None, ["maker"]):
        with pytest.raises(ConfigError, match="is neither a group nor the name of one"):
            Cluster.autoscale(driver, no_name, min=1, max=2)
    with pytest.raises(ClusterError, match="launched no group 'makr'; there is none"):
        Cluster.autoscale(forked_job, "makr", min=1, max=2)


def test_a_group_that_another_process_resizes_is_told_to_be_so(forked_job):
    launch(forked_job, Maker, "outer", 0)
    rank = Session(forked_job.session.secret, "outer:0", home=forked_job.session.home)
    rank.directory.register(group_entry("outer:0/inner"), rank.messenger.endpoint, {WORLD_SIZE: 1})
    told = (
        "this process has launched no group 'outer:0/inner'; there are 'outer', 'outer:0/inner'; "
        "the process that has launched it resizes it, and this one 'outer'"
    )
    try:
        with pytest.raises(ClusterError, match=told):
            Cluster.autoscale(forked_job, "outer:0/inner", min=1, max=2)
    finally:
        rank.close()
