"""The job's home gathers where the time of all processes went; also of those that have left."""

from __future__ import annotations

from collections import OrderedDict, deque

import msgspec
from msgspec.structs import replace

from rlinf_scheduler.comm import Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.transport.peer_session import Loss
from rlinf_scheduler.observe.graph import only_looks
from rlinf_scheduler.observe.levels import Level, Levels
from rlinf_scheduler.observe.survey import Answer, Inquiry, Poll, Survey
from rlinf_scheduler.observe.time_sheets import (
    LEFT_SPANS,
    TIME_SHEET,
    TIMES_LEFT,
    TimeSheet,
    TimeSheets,
)
from rlinf_scheduler.session import Session

# Of all processes together so many spans are asked for, and of each at least as many as of one that leaves.
MAX_SPANS = 200_000
# So many that have left are remembered, and so many spans of them, the last ones': all of them would be 400 MB.
MAX_LEFT, MAX_LEFT_SPANS = 4096, 1 << 15


class JobTimes(msgspec.Struct, frozen=True, array_like=True):
    """Where the time of all processes of a job went.

    Attributes:
        sheets: of those that answered, and of those that have left; of a rank that came back, each process's.
        missing: why there is none of others, by name.
        now: when it was asked, on the home's clock, in seconds.
    """

    sheets: tuple[TimeSheet, ...] = ()
    missing: dict[str, str] = {}
    took_s: float = 0.0
    now: float = 0.0


# A level of the job's home, asked with how long it may take, in seconds.
JOB_TIMES = Level("job.times", JobTimes, float, "where the job's time went")


class TimeService:
    """Knows where the time of all processes went; a service of the job's home. On the I/O thread.

    Args:
        session: the home's.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._messenger = messenger = session.messenger
        self._survey = session.service(Survey)
        session.service(TimeSheets)
        self._left: OrderedDict[tuple[str, str], TimeSheet] = OrderedDict()
        # Those of them with spans, the oldest first, and how many spans these have.
        self._with_spans: deque[tuple[str, str]] = deque()
        self._num_spans = 0
        messenger.serve(TIMES_LEFT, self._on_left, TimeSheet)
        session.service(Levels).add(JOB_TIMES, self.gather)

    def gather(self, within_s: float) -> Promise[JobTimes]:
        """Ask all processes where their time went."""
        num_spans = max(LEFT_SPANS, MAX_SPANS // (1 + len(self._survey.members)))
        gathered: Promise[JobTimes] = Promise()
        asked = self._survey.ask(Inquiry(TIME_SHEET, within_s, num_spans, is_patient=True))
        asked.add_done_callback(lambda done: gathered.set_from(lambda: self._times(done.result(0))))
        return gathered

    def _times(self, found: Poll) -> JobTimes:
        own: TimeSheet = found.heads[0]
        told = [replace(each.head, offset_s=self._offset_s(each)) for each in found.answers]
        silent = {each.process: each.detail for each in found.silent}
        gone = {
            name: why
            for process_id, (name, why) in self._survey.departed.items()
            if (name, process_id) not in self._left and not only_looks(name) and self._is_missed(process_id)
        }
        sheets = (own, *told, *self._left.values())
        return JobTimes(sheets, {**gone, **silent}, found.took_s, own.now)

    def _is_missed(self, process_id: str) -> bool:
        """Return whether a process that is gone did not leave in order: else it has handed over its sheet."""
        lost = self._messenger.peers.lost.get(process_id)
        return lost is None or lost.loss is not Loss.LEFT

    def _offset_s(self, answered: Answer) -> float:
        """What a process's clock shows more than this one's: all processes of a machine have one clock."""
        if answered.endpoint.machine_id == self._messenger.endpoint.machine_id:
            return 0.0
        sheet: TimeSheet = answered.head
        return sheet.now - (answered.asked_at + answered.answered_at) / 2

    def _on_left(self, notice: Request) -> None:
        key, sheet = (notice.peer_name, notice.peer_id), notice.head
        self._left[key] = sheet
        self._with_spans.append(key)
        self._num_spans += len(sheet.spans)
        while self._num_spans > MAX_LEFT_SPANS or len(self._with_spans) > MAX_LEFT:
            oldest = self._with_spans.popleft()
            self._num_spans -= len(self._left[oldest].spans)
            self._left[oldest] = replace(self._left[oldest], spans=())
        while len(self._left) > MAX_LEFT:
            self._left.popitem(last=False)


def ask_times(session: Session, within_s: float) -> JobTimes:
    """Where the time of all processes of a job went.

    Raises:
        ClusterError: the job's home does not answer.
    """
    asked = JOB_TIMES.ask(session.messenger, session.home, within_s, timeout_s=within_s + 1.0)
    times: JobTimes = JOB_TIMES.answer_of_home(asked)
    return times
