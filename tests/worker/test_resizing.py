"""Who joins and who leaves a group, whatever the order of what happens."""

from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.errors import ResizeError
from rlinf_scheduler.session.membership import GroupMembers
from rlinf_scheduler.worker.resizing import Resizing


@given(st.data(), st.sets(st.integers(0, 9), min_size=1, max_size=4))
def test_numbers_are_used_once_unless_asked_and_one_rank_stays(data, ranks):
    resizing = Resizing(GroupMembers("rollout", tuple(sorted(ranks))))
    ever = set(ranks)
    for _ in range(data.draw(st.integers(0, 12))):
        before, leaving = resizing.members, set(resizing.leaving)
        match data.draw(st.sampled_from(["grow", "reuse", "fail", "shrink", "gone"])):
            case "grow" | "fail" as what:
                numbers = resizing.numbers(data.draw(st.integers(1, 3)))
                assert not set(numbers) & ever
                ever.update(numbers)
                resizing.begin_start(numbers)
                if what == "grow":
                    resizing.commit(resizing.with_ranks(numbers))
                    assert set(resizing.members.ranks) == {*before.ranks, *numbers}
            case "reuse":
                numbers = resizing.numbers(data.draw(st.integers(1, 3)), reuse=True)
                assert not set(numbers) & {*before.ranks, *leaving}
                assert all(
                    number in numbers or number in {*before.ranks, *leaving} for number in range(max(numbers))
                )
                resizing.begin_start(numbers)
                resizing.commit(resizing.with_ranks(numbers))
                ever.update(numbers)
            case "shrink":
                count = data.draw(st.integers(1, 3))
                try:
                    numbers = resizing.leavers(count)
                except ResizeError:
                    assert count >= before.world_size
                    assert resizing.members == before
                    continue
                resizing.commit(resizing.without_ranks(numbers))
                assert numbers == before.ranks[-count:]
                assert resizing.leaving == leaving | set(numbers)
            case "gone" if leaving:
                resizing.on_gone(data.draw(st.sampled_from(sorted(leaving))))
        members = resizing.members
        assert members.ranks == tuple(sorted(set(members.ranks)))
        assert members.ranks
        assert not set(members.ranks) & resizing.leaving
        assert members.epoch == before.epoch + (members.ranks != before.ranks)


@given(st.lists(st.integers(0, 5)))
def test_each_resize_has_its_turn_once_and_alone(ends):
    resizing = Resizing(GroupMembers("rollout", (0,)))
    wanted = [object() for _ in range(6)]
    begun = [each for each in wanted if resizing.ask(each)]
    assert begun == wanted[:1]
    over = []
    for index in ends:
        if wanted[index] in over:
            continue
        over.append(wanted[index])
        following = resizing.end(wanted[index])
        if following is not None:
            begun.append(following)
        assert len(set(begun) - set(over)) == (len(over) < 6)
    assert len(begun) == len(set(begun))
    assert not set(begun) - set(over) or resizing.current in set(begun) - set(over)
