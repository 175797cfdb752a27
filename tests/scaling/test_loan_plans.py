"""What is printed of a loan before it begins."""

from rlinf_scheduler.planning.lending import LentDevices
from rlinf_scheduler.scaling.lending import LoanPlan


def test_a_plan_names_what_may_be_fetched_and_how_large_it_is():
    plan = LoanPlan("actor", "rollout", (LentDevices(0, (1,), (1,)),), {"policy": 16600, "critic": 1}, {})
    assert "weights that each may fetch: 'policy' (16.2 KiB), 'critic' (1 byte)\n" in str(plan)
