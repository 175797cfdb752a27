"""Which silences are told, and which end in death: every order of beats, without a process."""

from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.session.heartbeat_monitor import DOUBT_S, SILENT_S, SWEEP_S, Silence, SilenceDetector
from rlinf_scheduler.session.membership import BEAT_S

EARLY = Silence("a", DOUBT_S, early=True)


def sweeps(silences, begin, end):
    """What is said by looks each second."""
    return [each for second in range(begin, end) for each in silences.sweep(float(second))]


def test_who_beats_is_never_silent():
    silences = SilenceDetector(0.0)
    for second in range(1, 100):
        if second % BEAT_S == 1:
            assert silences.hear("a", float(second), give_up_after_s=10.0) is None
        assert silences.sweep(float(second)) == []


def test_a_silence_is_told_once_and_so_is_its_end():
    silences = SilenceDetector(0.0)
    silences.hear("a", 0.0, give_up_after_s=None)
    assert sweeps(silences, 1, 1000) == [EARLY, Silence("a", SILENT_S)]
    assert silences.hear("a", 1000.0, give_up_after_s=None) == Silence("a", 1000.0, over=True)
    assert silences.hear("a", 1001.0, give_up_after_s=None) is None


def test_who_is_silent_too_long_is_given_up_once():
    silences = SilenceDetector(0.0)
    silences.hear("a", 0.0, give_up_after_s=20.0)
    assert sweeps(silences, 1, 100) == [EARLY, Silence("a", SILENT_S), Silence("a", 20.0, too_long=True)]


def test_time_in_which_the_home_itself_was_stopped_counts_against_nobody():
    silences = SilenceDetector(0.0)
    silences.hear("a", 0.0, give_up_after_s=20.0)
    assert sweeps(silences, 1, 3) == []
    assert silences.sweep(1000.0) == []
    assert silences.hear("a", 1000.1, give_up_after_s=20.0) is None
    assert sweeps(silences, 1001, 1004) == []


def test_time_before_the_first_was_heard_of_counts_for_nobody():
    silences = SilenceDetector(0.0)
    silences.hear("a", 100.0, give_up_after_s=20.0)
    assert sweeps(silences, 101, 110) == [EARLY, Silence("a", SILENT_S)]


def test_who_is_gone_is_not_silent():
    silences = SilenceDetector(0.0)
    silences.hear("a", 0.0, give_up_after_s=20.0)
    silences.forget("a")
    assert sweeps(silences, 1, 100) == []


def test_a_silence_that_a_late_look_found_is_doubted_before_it_is_told():
    silences = SilenceDetector(0.0)
    silences.hear("a", 0.0, give_up_after_s=None)
    assert sweeps(silences, 1, 3) == []
    assert silences.sweep(7.0) == []  # three seconds late: silent for four
    assert silences.sweep(9.0) == [Silence("a", SILENT_S, early=True)]
    assert silences.sweep(9.0) == [Silence("a", SILENT_S)]


@given(
    st.lists(
        st.tuples(st.floats(0.0, 3 * SWEEP_S), st.sampled_from(["sweep", "hear", "forget"])), max_size=60
    )
)
def test_silences_begin_and_end_in_turn_and_only_the_silent_die(events):
    silences, now, heard_at, is_told, is_doubted = SilenceDetector(0.0), 0.0, None, False, False
    for passed_s, what in events:
        now += passed_s
        if what == "hear":
            said = silences.hear("a", now, give_up_after_s=9.0)
            assert (said is not None and said.over) == is_told
            heard_at, is_told, is_doubted = now, False, False
        elif what == "forget":
            silences.forget("a")
            heard_at, is_told, is_doubted = None, False, False
        else:
            for silence in silences.sweep(now):
                assert heard_at is not None
                assert now - heard_at >= silence.silent_s >= (DOUBT_S if silence.early else SILENT_S)
                assert not (silence.early and (is_told or is_doubted))
                if silence.early:
                    is_doubted = True
                    continue
                assert silence.too_long or (is_doubted and not is_told)
                is_told = not silence.too_long
                heard_at = None if silence.too_long else heard_at
        assert (silences.told_silent_s("a", now) is not None) == is_told
