"""What fails while a process says what it is at costs that part only."""

from msgspec.structs import replace

from rlinf.testing import LocalRuntime
from rlinf_scheduler.channel.features.explain import watch_channel
from rlinf_scheduler.channel.spec import ChannelSpec
from rlinf_scheduler.observe.own_activity import OwnActivity
from rlinf_scheduler.session import current_session
from waits import wait_until


def fail(*_):
    raise RuntimeError("in the middle of something")


def test_a_part_that_cannot_be_told_hides_no_other():
    with LocalRuntime():
        doings = current_session().service(OwnActivity)
        doings.add(fail)
        doings.add(lambda doing: replace(doing, weights={"policy": 3}))
        assert doings.now().weights == {"policy": 3}


def test_a_watch_dog_looks_again_after_a_look_that_failed():
    looks = []

    def note():
        looks.append(1)
        fail()

    with LocalRuntime():
        stop = watch_channel(current_session(), ChannelSpec("watched", stall_after_s=0.01), note, fail)
        wait_until(lambda: len(looks) > 2)
        stop()
