"""Broken machines of a queue that admits."""

from __future__ import annotations

from dataclasses import replace

from feeding_mutants import with_policy

from rlinf_scheduler.queueing.lanes import LanedFifo
from rlinf_scheduler.queueing.version_gate import VersionGate
from rlinf_scheduler.queueing.versions import VersionedQueues
from simulator import Machines


def _with_admission(admission_type):
    class WithGate(VersionedQueues):
        gate_type = admission_type

    return replace(Machines(), server=with_policy(WithGate))


class _LooksAtTodayOnly(VersionGate):
    """Places are kept only for what the present version is the last to take."""

    def num_free(self, queue):
        version = self.kept.version
        num_free = min(self.num_left, self._lanes.num_items)
        due = self._open[version] - self._lent[version]
        here = self._lanes.num_in_lane(version)
        return min(num_free, max(here, self.num_left - (due - here)))


class _ForgetsWhatIsInTheMaking(VersionGate):
    """What is here may be taken, whatever is not."""

    def num_free(self, queue):
        return min(self.num_left, self._lanes.num_items)


class _WaitsForWhatIsInTheMaking(VersionGate):
    """Nothing is taken as long as something older is in the making."""

    def num_free(self, queue):
        head = self._lanes.head()
        is_held = head is not None and any(slot.latest < head.latest for slot in self.kept.making.values())
        return 0 if is_held else super().num_free(queue)


class _GivesOneTooMany(VersionGate):
    """One more slot than there are places."""

    def _may_begin(self, latest):
        self.kept.batch_items += 1
        try:
            return super()._may_begin(latest)
        finally:
            self.kept.batch_items -= 1


class _GivesOneTooFew(VersionGate):
    """A place stays empty."""

    def _may_begin(self, latest):
        self.kept.num_given += 1
        try:
            return super()._may_begin(latest)
        finally:
            self.kept.num_given -= 1


class _KeepsSlotsOfTheDead(VersionGate):
    """Who dies keeps what it had."""

    def lose(self, client):
        for owner in [*self.kept.asking, *self.kept.moving]:
            if owner[0] == client:
                self.withdraw(*owner)


class _KeepsDroppedSlots(VersionGate):
    """A slot is out until an item is put with it."""

    def _drop_unwanted(self, slot):
        pass


class _ForgetsCopies(VersionGate):
    """Who asked for a slot gives it back, whoever else has it."""

    def hold(self, number, client, key, source=0):
        pass


class _KeepsCopiesOfTheDead(VersionGate):
    """A process that dies holds its copies all the same."""

    def lose(self, client):
        for owner in [*self.kept.asking, *self.kept.moving, *self._owned]:
            if owner[0] == client:
                self.withdraw(*owner)


class _KeepsSlotsAfterTheEnd(VersionGate):
    """What cannot be put any more is waited for."""

    def end(self, reason, state, out):
        owned, self._owned = self._owned, {}
        super().end(reason, state, out)
        self._owned = owned


class _MovesOnTooSoon(VersionGate):
    """What was given out does not come back."""

    def _try(self, move):
        opened, self._open = self._open, self._open - self._lent
        try:
            return super()._try(move)
        finally:
            self._open = opened


class _NeverMovesOnLater(VersionGate):
    """A version that waits is forgotten."""

    def serve(self, out):
        moving, self.kept.moving = self.kept.moving, {}
        super().serve(out)
        self.kept.moving = moving


class _CountsWhatCameBack(VersionGate):
    """What comes back was taken all the same."""

    def take_back(self, items):
        given = self.kept.num_given
        super().take_back(items)
        self.kept.num_given = given


class _ForgetsWhoHadIt(VersionGate):
    """What comes back late gives its place back to the present version."""

    def take_back(self, items):
        given = self.kept.num_given - len(items)
        super().take_back(items)
        self.kept.num_given = given


class _BeginsWithWhatItHad(VersionGate):
    """A trainer that begins anew has only the places that are left."""

    def _try(self, move):
        given, was_at = self.kept.num_given, self.kept.version
        problem = super()._try(move)
        if problem == "" and move.begins and move.version == was_at:
            self.kept.num_given = given
        return problem


class _InOrderOfArrival(LanedFifo):
    def _lane(self, item):
        latest, item.latest = item.latest, 0
        try:
            return super()._lane(item)
        finally:
            item.latest = latest


class _OneLane(VersionGate):
    """Items come in the order in which they were put."""

    lanes_type = _InOrderOfArrival


ADMISSION_MUTANTS = {
    "keeps places only for today": _with_admission(_LooksAtTodayOnly),
    "forgets what is in the making": _with_admission(_ForgetsWhatIsInTheMaking),
    "waits for whatever is in the making": _with_admission(_WaitsForWhatIsInTheMaking),
    "gives one slot too many": _with_admission(_GivesOneTooMany),
    "gives one slot too few": _with_admission(_GivesOneTooFew),
    "keeps the slots of the dead": _with_admission(_KeepsSlotsOfTheDead),
    "keeps slots that were dropped": _with_admission(_KeepsDroppedSlots),
    "gives back slots of which a copy is there": _with_admission(_ForgetsCopies),
    "keeps the copies of the dead": _with_admission(_KeepsCopiesOfTheDead),
    "waits for slots after the end": _with_admission(_KeepsSlotsAfterTheEnd),
    "moves on before all is settled": _with_admission(_MovesOnTooSoon),
    "never moves on later": _with_admission(_NeverMovesOnLater),
    "counts what came back as taken": _with_admission(_CountsWhatCameBack),
    "forgets to which version it gave": _with_admission(_ForgetsWhoHadIt),
    "begins anew with what is left": _with_admission(_BeginsWithWhatItHad),
    "takes in order of arrival": _with_admission(_OneLane),
}
