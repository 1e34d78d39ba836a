"""`Policy`: decides from measurements which limits to change, and whether a change was worth it.

The executor decides by itself, call by call: calls that compute run within the CPU budget, the most downstream first.
The policy sets the limits that the executor cannot know:

* **weights**: the share of a core that a call of unknown cost takes, from its CPU and wall time. A share below the
  believed one counts only while calls do not compete for cores or for the interpreter lock. Waiting for those looks
  like waiting for I/O and would feed itself;
* **calls in flight** of stages that wait. The policy raises them while the consumer waits and the stage has no call
  left. Little's law says how many are missing;
* **calls of functions that hold the interpreter lock**. The policy finds such functions by letting them run alone for
  a few calls, which then make as much as many did;
* **room** for finished chunks, where a stage is now blocked and now waited for;
* **the line** of calls and chunks behind a call that takes long, where cores idle since no more may wait for their turn.

One change at a time is a *trial*: after a while to settle, the policy compares the rate with the one before. A change
that did not help is taken back and rests, twice as long each time; a cost that drifts ends all rests.

The policy looks at two windows of time. The *recent* window, since the sample before, serves decisions that have to be
fast. The *long* window, since the last change but at most two seconds, serves decisions that have to be sure. Calls
count where they end: in a recent window a stage may seem to idle, or to use ten cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from arrowflow.autotune.model import (
    CROWDED,
    LOCK,
    ONE_LOCK,
    RunWindow,
    StageWindow,
    cpu_time,
    percent,
    weight_of,
    window_between,
)
from arrowflow.autotune.trials import FIRST_REST_SECONDS, LAST_REST_SECONDS, Memory, Trial
from arrowflow.physical.tuning import (
    MAX_WAITING_CALLS,
    MOSTLY_COMPUTES,
    WAITS,
    RunSample,
    StageKey,
    StageLimits,
    StageStatistics,
    untold_calls,
)

PERIOD_SECONDS, LONG_SECONDS = 0.05, 2.0
MAX_READY_ITEMS = 64
MAX_LINE = 1 << 14
STEP = 0.05
BUSY, OVER = 0.9, 1.05
WORTH = 1.04
"""A change is kept if the rate is better by this factor; long windows of one run differ by about 3 %."""
NO_WORSE, HEADROOM = 0.95, 1.25
SURE_SECONDS, SATISFIED_SECONDS = 1.0, 0.5
FEW_CALLS, MIN_CALLS, ALONE_CALLS = 1.5, 3, 4
DRIFT = 1.5


class Policy:
    """A `Tuner`: deterministic in the samples it gets.

    Args:
        found: Findings of earlier runs of the pipeline; this run adds its own.
    """

    period_seconds = PERIOD_SECONDS

    def __init__(self, found: dict[StageKey, StageLimits]) -> None:
        self._found = found
        self._sample: RunSample | None = None
        self._now = 0.0
        self._cpu_budget = 1
        self._changes: dict[StageKey, StageLimits] = {}  # of this step
        # Where the long window begins, and where the next one will; None while a change settles.
        self._since: RunSample | None = None
        self._middle: RunSample | None = None
        self._settled = 0.0
        self._stages: dict[StageKey, Memory] = {}
        self._trial: Trial | None = None
        self._satisfied_seconds = 0.0

    def recall(self, key: StageKey) -> StageLimits | None:
        """Returns what an earlier run has found for a stage."""
        return self._found.get(key)

    def remember(self, stages: Iterable[StageStatistics]) -> None:
        """Keeps what the executor learnt in a run that was too short for a step."""
        for stage in stages:
            tuned = stage.kind == "parallel" and stage.cost != "computes" and not stage.limits.reason
            if stage.calls and tuned:
                share = stage.cpu_seconds / stage.busy_seconds if stage.busy_seconds else 0.0
                self._found[stage.key] = replace(_setting(stage), reason=cpu_time(share))
            elif stage.calls and stage.calls_are_short:
                self._found[stage.key] = _setting(stage)

    def step(self, sample: RunSample) -> Mapping[StageKey, StageLimits]:
        """Returns the settings that change."""
        before, self._sample = self._sample, sample
        if before is None or sample.now <= before.now:
            return {}
        self._now, self._cpu_budget, self._changes = sample.now, sample.cpu_budget, {}
        recent, window = window_between(before, sample), self._long_window(sample)
        for key, part in recent.tunable():
            self._learn(key, part, recent, window)
        if window is not None:
            self._move(recent, window)
        trying = None if self._trial is None else self._trial.key
        self._found.update({key: setting for key, setting in self._changes.items() if key != trying})
        return self._changes

    def _move(self, recent: RunWindow, window: RunWindow) -> None:
        """Ends a trial, or begins one, where that is called for."""
        self._satisfied_seconds = 0.0 if recent.waits else self._satisfied_seconds + recent.seconds
        if self._trial is not None:
            self._judge(self._trial, window)
        elif window.cores > OVER * self._cpu_budget and window.seconds >= SURE_SECONDS:
            self._fit_budget(window)
        elif recent.waits and window.waits:
            self._grow(window)
        elif self._satisfied_seconds > SATISFIED_SECONDS:
            self._shrink(window)

    # ------------------------------------------------------------------ the long window

    def _long_window(self, sample: RunSample) -> RunWindow | None:
        if self._since is None or self._middle is None:
            if sample.now >= self._settled:
                self._since = self._middle = sample
            return None
        window = window_between(self._since, sample)
        if sample.now - self._middle.now >= LONG_SECONDS / 2:
            if self._middle is not self._since:
                self._wake(window_between(self._since, self._middle), window_between(self._middle, sample))
            self._since, self._middle = self._middle, sample
        return window

    def _settle(self, seconds: float = 0.0) -> None:
        self._since = self._middle = None
        self._settled = self._now + seconds

    def _wake(self, earlier: RunWindow, later: RunWindow) -> None:
        """Ends the rests of stages whose calls have become shorter or longer while nothing was changed."""
        for key in earlier.stages.keys() & later.stages.keys() & self._stages.keys():
            was, now = (window.stages[key].call_seconds(window.seconds) for window in (earlier, later))
            if was and now and not 1 / DRIFT < now / was < DRIFT:
                self._stages[key].rests_until.clear()
                self._stages[key].rest_seconds.clear()

    # ------------------------------------------------------------------ weights

    def _learn(self, key: StageKey, part: StageWindow, recent: RunWindow, window: RunWindow | None) -> None:
        """Follows what a stage's calls cost."""
        memory = self._memory(key, part.stage)
        trying = self._trial is not None and self._trial.key == key
        if not part.calls or part.stage.cost == "computes" or memory.lock or trying:
            return
        if part.share > memory.share or self._quiet(recent, window):
            self._believe(key, memory.share + part.trust * (part.share - memory.share))

    def _quiet(self, recent: RunWindow, window: RunWindow | None) -> bool:
        """Whether calls neither wait for a core nor for the interpreter lock, for sure."""
        if window is None or not window.says_something:
            return False
        python = max(recent.python_wanted, window.python_wanted)
        wanted = max(recent.wanted_cores, window.wanted_cores)
        return python <= CROWDED and wanted <= BUSY * self._cpu_budget

    def _believe(self, key: StageKey, share: float) -> None:
        memory = self._stages[key]
        memory.share = share
        if abs(share - memory.used_share) > STEP:
            memory.used_share = share
            self._set(key, weight=weight_of(share), reason=cpu_time(share))

    # ------------------------------------------------------------------ trials

    def _grow(self, window: RunWindow) -> None:
        """The consumer waits: tries the first change that could help, the most downstream stage first."""
        idle = window.cores < BUSY * self._cpu_budget
        whole = window.with_unfinished() if idle else window  # once: there may be thousands of inputs
        for key, part in window.tunable():
            if self._room_for_calls(key, part):
                return
            if idle and (self._longer_line(key, part, window) or self._more_calls(key, part, window)):
                return
            if idle and self._alone(key, part, whole):
                return
        for key, part in window.tunable()[:1]:
            self._more_room(key, part, window)

    def _room_for_calls(self, key: StageKey, part: StageWindow) -> bool:
        """Makes room for calls that wait, begin together when there is some, and so end together."""
        calls, stage = part.stage.limits.max_calls, part.stage
        enough = stage.given_ready or stage.limits.max_ready_items >= calls
        if enough or not (part.may_wait and part.refused.chunks):
            return False
        self._set(key, max_ready_items=calls, reason=f"room for {calls} chunks, as many as calls in flight")
        self._settle()
        return True

    def _longer_line(self, key: StageKey, part: StageWindow, window: RunWindow) -> bool:
        """Tries more calls, or chunks, that wait for their turn behind a call that takes long. The ledger bounds them."""
        limits, refused = part.stage.limits, part.refused
        slots = min(MAX_LINE, 2 * limits.max_slots) if refused.slots else limits.max_slots
        chunks = min(MAX_LINE, 2 * limits.max_turn_chunks) if refused.turn else limits.max_turn_chunks
        longer = (slots, chunks) != (limits.max_slots, limits.max_turn_chunks)
        if not (longer and window.says_something and self._stages[key].may("line", self._now)):
            return False
        evidence = f"{slots} calls and {chunks:,} chunks in line"
        self._try("line", key, evidence, window, max_slots=slots, max_turn_chunks=chunks)
        return True

    def _more_calls(self, key: StageKey, part: StageWindow, window: RunWindow) -> bool:
        """Tries more calls in flight where calls wait and all that may be are in use."""
        limits = part.stage.limits
        most = limits.max_calls
        wanted = part.may_wait and part.refused.calls > 0 and part.all_in_use and part.calls >= most / 2
        # The calls that the consumer lacks, but no more than the cores can bear, if the new calls are like the old.
        doubt = 1 + window.doubt(key)
        cores = self._cpu_budget / max(window.cores, 0.01)
        factor = min(HEADROOM / max(1 - window.waiting, 0.1), doubt * cores)
        calls = min(MAX_WAITING_CALLS, math.ceil(most * factor))
        wanted = wanted and BUSY * cores > doubt and calls > most
        if not wanted or not self._stages[key].may("calls", self._now):
            return False
        room = limits.max_ready_items if part.stage.given_ready else max(limits.max_ready_items, calls)
        evidence = f"{calls} calls in flight"
        self._try("calls", key, evidence, window, max_calls=calls, max_ready_items=room)
        return True

    def _alone(self, key: StageKey, part: StageWindow, window: RunWindow) -> bool:
        """Lets calls run one at a time where a few at a time use no more than one core.

        So do those that hold the interpreter lock, and those that wait; what they do alone tells which. The window counts
        calls that have not ended, too.
        """
        memory, stage = self._stages[key], part.stage
        if not memory.may("alone", self._now):
            return False
        if memory.lock:
            memory.lock = False
            calls = stage.asked_calls or untold_calls(self._cpu_budget)
            self._set(key, max_calls=calls, reason="it may not hold the lock of the interpreter any more")
            self._settle()
            return True
        part = window.stages[key]
        # Short calls count where they end: while more of them run than were counted, what they use is not known.
        if not window.says_something or part.in_flight + 1 < stage.running:
            return False
        # Where several calls queue for cores, somebody else has those; who holds the lock keeps the others from queueing.
        one_core = part.wanted > CROWDED and window.python_wanted < ONE_LOCK and part.in_flight >= FEW_CALLS
        # Calls that wait as well are looked at where more of them did not help.
        no_more = stage.limits.weight >= WAITS or "calls" in memory.rests_until
        waits = part.share < MOSTLY_COMPUTES and no_more
        # Streams beside each other have a call each at least, so none is ever alone.
        several = stage.asked_calls != 1 and stage.limits.streams == 1
        if stage.cost == "computes" or not (several and one_core and waits):
            return False
        self._try("alone", key, "one call at a time", window, max_calls=1)
        return True

    def _more_room(self, key: StageKey, part: StageWindow, window: RunWindow) -> None:
        """Tries a larger buffer in front of a consumer that waits although the buffer was full meanwhile."""
        memory = self._stages[key]
        room = min(MAX_READY_ITEMS, 2 * memory.setting.max_ready_items)
        wanted = part.refused.chunks and room > memory.setting.max_ready_items and window.says_something
        if wanted and not part.stage.given_ready and memory.may("room", self._now):
            self._try("room", key, f"room for {room} chunks", window, max_ready_items=room)

    def _try(self, kind: str, key: StageKey, evidence: str, window: RunWindow, **values: float) -> None:
        before = self._stages[key].setting
        self._trial = Trial(key=key, kind=kind, before=before, was=window, evidence=evidence)
        self._settle(window.stages[key].call_seconds(window.seconds))
        self._set(key, reason=f"trying {evidence}", **values)

    def _judge(self, trial: Trial, window: RunWindow) -> None:
        """Keeps a change that helped, and takes another one back."""
        if trial.key not in window.stages:
            self._trial = None
            return
        if trial.kind == "alone":
            self._judge_alone(trial, window)
            return
        part, was = window.stages[trial.key], trial.was.stages[trial.key]
        sure = window.seconds >= SURE_SECONDS
        doubt = window.doubt(trial.key) + (0 if sure else trial.was.doubt(trial.key))
        # No more calls were in flight than were allowed: where it looks so, they began before that window.
        rate, before = window.rate, trial.was.rate / max(1.0, was.in_flight / trial.before.max_calls)
        evidence = f"{trial.evidence}: {rate:,.0f} rows/s, {before:,.0f} before"
        # With calls left it limits nothing any more: now another stage does.
        moved = trial.kind == "calls" and not part.all_in_use
        if window.says_something and (moved or rate > (WORTH + doubt) * before):
            self._trial = None
            self._stages[trial.key].rest_seconds.pop(trial.kind, None)
            self._set(trial.key, reason=evidence)
        elif sure or rate < (1 - doubt) * before:
            self._take_back(trial, window, f"no use: {evidence}")

    def _judge_alone(self, trial: Trial, window: RunWindow) -> None:
        """Tells calls that hold the interpreter lock, of which one makes as much as many, from those that wait."""
        window = window.with_unfinished()
        key, part, was = trial.key, window.stages[trial.key], trial.was.stages[trial.key]
        if part.in_flight >= FEW_CALLS:
            self._settle()  # long calls of before still run
            return
        if part.calls < ALONE_CALLS and window.seconds < LONG_SECONDS / 2:
            return
        self._take_back(trial, window, trial.before.reason)
        if not part.alive or window.python_cores - part.cores > 1 - CROWDED:
            return
        rate, rate_before = part.calls / (part.alive * window.seconds), was.calls / trial.was.seconds
        if min(part.calls, was.calls) < ALONE_CALLS:  # of long calls, how much they compute tells more
            as_much = part.share >= NO_WORSE * was.wanted
        else:
            as_much = rate >= (NO_WORSE - was.in_flight / was.calls) * rate_before
        if part.share > MOSTLY_COMPUTES and as_much:
            memory = self._stages[key]
            memory.lock = True
            memory.share = memory.used_share = part.share
            memory.rests_until["alone"] = self._now + LAST_REST_SECONDS
            several = f"{percent(was.share)} with {was.in_flight:.1f} in flight"
            reason = f"{LOCK}: {cpu_time(part.share)} if it is alone, {several}"
            self._set(key, max_calls=1, weight=1.0, reason=reason)
        else:
            self._believe(key, part.share)

    def _take_back(self, trial: Trial, window: RunWindow, reason: str) -> None:
        memory, kind = self._stages[trial.key], trial.kind
        rest = memory.rest_seconds.get(kind, FIRST_REST_SECONDS)
        memory.rests_until[kind] = self._now + rest
        memory.rest_seconds[kind] = min(2 * rest, LAST_REST_SECONDS)
        memory.setting = trial.before
        self._trial = None
        self._settle(window.stages[trial.key].call_seconds(window.seconds))
        self._set(trial.key, reason=reason)

    def _fit_budget(self, window: RunWindow) -> None:
        """Takes back calls that wait but together compute more than the budget: tokens do not count them."""
        for key, part in sorted(window.tunable(), key=lambda entry: -entry[1].cores):
            # Calls count in the window where they end, so it may seem that more were in flight than may be.
            in_flight = min(part.in_flight, part.stage.limits.max_calls)
            calls = max(1, int(in_flight * self._cpu_budget / window.cores))
            if part.may_wait and part.stage.limits.weight < WAITS and calls < part.stage.limits.max_calls:
                cores = f"{window.cores:.1f} cores of {self._cpu_budget}"
                self._set(key, max_calls=calls, reason=f"{in_flight:.1f} calls in flight take {cores}")
                self._settle()
                return

    def _shrink(self, window: RunWindow) -> None:
        """The consumer has had what it wants for a while: takes back calls in flight that nobody needs."""
        for key, part in window.tunable():
            stage = part.stage
            calls = 2 * max(MIN_CALLS, math.ceil(2 * part.in_flight))
            if stage.cost != "computes" and stage.asked_calls is None and stage.limits.max_calls > calls:
                reason = f"{part.in_flight:.1f} calls in flight are enough for what the consumer takes"
                self._set(key, max_calls=calls, reason=reason)

    # ------------------------------------------------------------------ settings

    def _memory(self, key: StageKey, stage: StageStatistics) -> Memory:
        memory = self._stages.get(key)
        if memory is None or memory.setting.weight != stage.limits.weight:
            # The executor has learnt from the first calls meanwhile.
            weight, lock = stage.limits.weight, LOCK in stage.limits.reason
            rests = {"alone": self._now + LAST_REST_SECONDS} if lock else {}
            memory = Memory(
                setting=_setting(stage), share=weight, used_share=weight, lock=lock, rests_until=rests
            )
            self._stages[key] = memory
        return memory

    def _set(self, key: StageKey, **values: Any) -> None:
        memory = self._stages[key]
        memory.setting = self._changes[key] = replace(memory.setting, **values)


def _setting(stage: StageStatistics) -> StageLimits:
    return replace(stage.limits, calls_are_short=stage.calls_are_short)
