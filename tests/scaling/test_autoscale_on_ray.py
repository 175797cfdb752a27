"""Policies that grow and shrink groups, and a loan, on Ray."""

import time
from queue import Empty, Queue

import pytest
from scaled_workers import Maker, Taker

from rlinf.scheduler import Channel, FlexiblePlacementStrategy, ScalingOptions
from rlinf.scheduler.errors import ClusterError, ConfigError, PlacementError
from rlinf_scheduler.events import Autoscaled
from rlinf_scheduler.planning.scaling import ScalingPolicy
from rlinf_scheduler.scaling.autoscale import Autoscale

pytestmark = [pytest.mark.ray, pytest.mark.system]
DEADLINE_S = 90.0
FAST = ScalingOptions(for_s=1.0, cooldown_s=0.2, every_s=0.2)


@pytest.fixture
def heard(ray_cluster):
    events = Queue()
    ray_cluster.subscribe(events.put)
    return events


def launch(ray_cluster, worker, name, *devices):
    return worker.create_group().launch(
        ray_cluster, FlexiblePlacementStrategy([[each] for each in devices]), name=name
    )


def heard_of(events, kind, group):
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            event = events.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            raise AssertionError(f"no {kind.__name__} of '{group}'") from None
        if isinstance(event, kind) and event.group == group:
            return event


def test_a_group_that_is_waited_for_grows_and_one_that_is_not_shrinks(ray_cluster, heard):
    channel = Channel.create("policy-items", maxsize=2)
    with (
        launch(ray_cluster, Maker, "policy-maker", 0) as maker,
        launch(ray_cluster, Taker, "policy-taker", 1) as taker,
    ):
        maker.make("policy-items", 0.1)
        hungry = taker.take("policy-items", 0.0, 1 << 30)
        policy = ray_cluster.autoscale(
            "policy-maker", min=1, max=2, options=FAST, on_grow=lambda new: new.make("policy-items", 0.1)
        )
        with pytest.raises(ConfigError, match="'policy-maker' has a policy already, of 1 to 2 ranks"):
            ray_cluster.autoscale(maker, min=1, max=4)
        grown = heard_of(heard, Autoscaled, "policy-maker")
        assert (grown.before, grown.after, grown.dry_run) == (1, 2, False)
        assert "of the last 1 s, more than 20%" in grown.reason
        assert maker.ranks == (0, 1)
        taker.terminate()
        shrunk = heard_of(heard, Autoscaled, "policy-maker")
        assert (shrunk.before, shrunk.after) == (2, 1)
        assert maker.ranks == (0,)
        assert [each.action for each in policy.decisions] == ["grow", "shrink"]
        policy.stop()
        with pytest.raises(Exception, match="policy-taker"):
            hungry.wait(DEADLINE_S)
        maker.terminate()
        channel.close()


def test_one_wait_that_goes_on_is_seen_while_it_lasts(ray_cluster, heard):
    channel = Channel.create("scarce-items")
    with (
        launch(ray_cluster, Maker, "slow-maker", 0) as maker,
        launch(ray_cluster, Taker, "patient-taker", 1) as taker,
    ):
        maker.make_one("scarce-items").wait(DEADLINE_S)
        hungry = taker.take("scarce-items", 0.0, 2)
        ray_cluster.autoscale("slow-maker", min=1, max=2, options=FAST)
        grown = heard_of(heard, Autoscaled, "slow-maker")
        assert (grown.before, grown.after) == (1, 2)
        assert not hungry.done()
        maker.execute_on(0).make_one("scarce-items").wait(DEADLINE_S)
        assert hungry.wait(DEADLINE_S) == [2]
        channel.close()


def test_a_dry_run_changes_nothing_and_says_what_it_would(ray_cluster, heard):
    with launch(ray_cluster, Maker, "dry-maker", 0) as maker:
        policy = ray_cluster.autoscale(maker, min=2, max=4, options=FAST, dry_run=True)
        would = heard_of(heard, Autoscaled, "dry-maker")
        assert (would.before, would.after, would.dry_run) == (1, 2, True)
        assert would.reason == "it has fewer than 2, the least"
        assert maker.ranks == (0,)
        policy.stop()


def test_a_policy_ends_with_its_group_and_one_of_that_name_may_have_another(ray_cluster):
    for _ in range(2):
        with launch(ray_cluster, Maker, "again", 0):
            policy = ray_cluster.autoscale("again", min=1, max=2, options=FAST)
        policy._thread.join(DEADLINE_S)
        assert not policy._thread.is_alive()


def test_a_group_of_the_same_name_has_its_own_policy_at_once(ray_cluster):
    slow = ScalingOptions(every_s=0.5)
    with launch(ray_cluster, Maker, "anew", 0):
        first = ray_cluster.autoscale("anew", min=1, max=2, options=slow)
    with launch(ray_cluster, Maker, "anew", 0):
        second = ray_cluster.autoscale("anew", min=1, max=2, options=slow)
        first._thread.join(DEADLINE_S)
        assert not first._thread.is_alive()
        with pytest.raises(ConfigError, match="'anew' has a policy already"):
            ray_cluster.autoscale("anew", min=1, max=2)
        second.stop()


def test_devices_that_others_have_are_left_to_them(ray_cluster, caplog):
    with launch(ray_cluster, Maker, "scarce-maker", 0), launch(ray_cluster, Taker, "rest", *range(1, 8)):
        policy = ray_cluster.autoscale("scarce-maker", min=2, max=4, options=FAST)
        deadline = time.monotonic() + DEADLINE_S
        while not policy.decisions:
            assert time.monotonic() < deadline
            policy._over.wait(0.05)
        policy.stop()
    decision = policy.decisions[0]
    assert (decision.action, decision.before) == ("stay", 1)
    assert decision.reason.startswith("it was to grow to 2, and cannot: ")
    assert f"the policy of 'scarce-maker': {decision.reason}" in caplog.text
    held = decision.reason.partition("; accelerators are held by ")[2]
    assert "'rest'" in held  # and, beside other tests, by theirs


class Raising(ScalingPolicy):
    """Fails at each sample."""

    def __init__(self):
        super().__init__(1, 2, FAST)
        self.tried = Queue()

    def decide(self, sample, size):
        self.tried.put(size)
        raise AttributeError("no such figure")


def test_what_raises_in_the_thread_of_a_policy_is_told_and_does_not_end_it(ray_cluster, caplog):
    with launch(ray_cluster, Maker, "unlucky-maker", 0) as maker:
        raising = Raising()
        policy = Autoscale(ray_cluster.session, maker, raising, by="queue_wait", dry_run=False, on_grow=None)
        for _ in range(2):  # the second time, the first has been told
            assert raising.tried.get(timeout=DEADLINE_S) == 1
        policy.stop()
    told = [each for each in caplog.records if "the policy of 'unlucky-maker'" in each.message]
    assert "no such figure" in told[0].message
    assert told[0].exc_info[0] is AttributeError


def test_what_cannot_be_a_policy_is_told(ray_cluster):
    with pytest.raises(ClusterError, match="launched no group 'nobody'"):
        ray_cluster.autoscale("nobody", min=1, max=2)
    channel = Channel.create("held-by-a-group")
    with launch(ray_cluster, Maker, "odd-maker", 0):
        with pytest.raises(ClusterError, match="launched no group 'odd-makr'") as caught:
            ray_cluster.autoscale("odd-makr", min=1, max=2)
        assert "'odd-maker'" in str(caught.value)
        assert "'Channels'" not in str(caught.value)
        assert str(caught.value).endswith("did you mean 'odd-maker'?")
        with pytest.raises(ClusterError, match="launched no group 'Channels'"):
            ray_cluster.lend("odd-maker", to="Channels")
        channel.close()
        with pytest.raises(ConfigError, match=r"by='queue_waits': .*queue_wait"):
            ray_cluster.autoscale("odd-maker", min=1, max=2, by="queue_waits")
        with pytest.raises(ConfigError, match="max=1 is less than min=2"):
            ray_cluster.autoscale("odd-maker", min=2, max=1)
        for name, value in {"by": None, "options": {"every_s": 1.0}, "on_grow": "serve"}.items():
            with pytest.raises(ConfigError, match=f"{name}="):
                ray_cluster.autoscale("odd-maker", min=1, max=2, **{name: value})
    a_view = pytest.raises(PlacementError, match="view of some of the ranks of 'odd-maker'")
    with launch(ray_cluster, Maker, "odd-maker", 0, 1) as maker, a_view:
        ray_cluster.autoscale(maker.execute_on(0), min=1, max=2)
    with pytest.raises(ClusterError, match="'odd-maker' has ended"):
        ray_cluster.autoscale(maker, min=1, max=2)


def test_devices_are_lent_for_a_block_and_given_back_at_its_end(ray_cluster):
    with launch(ray_cluster, Taker, "lender", 0, 1), launch(ray_cluster, Maker, "borrower", 2) as borrower:
        with ray_cluster.lend("lender", to="borrower", num_workers=2) as loan:
            assert loan.ranks == (1, 2)
            assert borrower.devices().wait(DEADLINE_S) == ["2", "0", "1"]
        assert borrower.ranks == (0,)
