"""`Policy`: which limits to change, from what was measured, and whether a change was worth it.

What the executor decides by itself, call by call, is not here: calls that compute run within the CPU budget, the most
downstream first. The policy sets what that cannot know:

* **weights**: the share of a core that a call of unknown cost takes, from its CPU and wall time. A share below what is
  believed counts only while calls do not compete for cores or for the interpreter lock, since waiting for those looks
  like waiting for I/O and would feed itself;
* **calls in flight** of stages that wait: raised while the consumer waits and the stage has no call left, by what
  Little's law says is missing;
* **calls of functions that hold the interpreter lock**: found by trying more of them, which then changes nothing;
* **room** for finished chunks, where a stage is now blocked and now waited for.

One change at a time is a *trial*: after a window to settle, the next ones are held against those before it. What did not
help is taken back and rests, twice as long each time; a cost that drifts ends all rests. So a policy whose pipeline
does not change comes to a standstill.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from arrowflow.autotune.model import HARDLY_WAITS, StageWindow, Window, window_between
from arrowflow.physical.tuning import MAX_REORDER_SLOTS, RunSample, Setting, StageKey, StageStatistics
from arrowflow.records import dataclass

PERIOD_SECONDS = 0.05
MAX_CALLS = MAX_REORDER_SLOTS
MAX_READY_ITEMS = 64
MOSTLY_COMPUTES, WAITS = 0.75, 0.25
STEP = 0.05
CROWDED = 0.7
"""Cores used by calls that may hold the interpreter lock, from which on they may be waiting for it."""
BUSY = 0.9
WORTH = 1.04
"""A change is kept if the rate is better by this factor; windows of one run differ by about 3 %."""
NO_WORSE = 0.97
ONE_LOCK = 1.2
HEADROOM = 1.25
SETTLING_WINDOWS = 1
TRIAL_CHUNKS, PATIENCE_SECONDS, LONG_SECONDS = 16, 0.5, 2.0
SATISFIED_SECONDS = 0.5
MIN_CALLS = 3
FIRST_REST_SECONDS, LAST_REST_SECONDS = 1.0, 60.0
DRIFT = 1.5


@dataclass(slots=True)
class Record:
    """What was delivered since something changed.

    Attributes:
        skip: Windows that still count as settling.
        rows: Rows delivered in those that count.
        chunks: Chunks delivered.
        seconds: Their length.
    """

    skip: int = 0
    rows: int = 0
    chunks: int = 0
    seconds: float = 0.0

    def add(self, window: Window) -> None:
        """Counts a window."""
        if self.skip:
            self.skip -= 1
            return
        self.rows += window.rows
        self.chunks += window.chunks
        self.seconds += window.seconds
        if self.seconds > LONG_SECONDS:  # what is long ago counts less
            self.rows, self.chunks, self.seconds = self.rows // 2, self.chunks // 2, self.seconds / 2

    def enough(self, chunks: int) -> bool:
        """Whether it says something."""
        return self.chunks >= chunks or self.seconds >= PATIENCE_SECONDS

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds if self.seconds else 0.0


@dataclass(slots=True, kw_only=True)
class Trial:
    """A change whose worth is not known yet.

    Attributes:
        key: The stage.
        kind: What was changed.
        before: The setting to go back to.
        rate: Rows a second before it.
        least: The factor by which the rate has to grow.
        evidence: What it is, in words.
    """

    key: StageKey
    kind: str
    before: Setting
    rate: float
    least: float
    evidence: str


@dataclass(slots=True, kw_only=True)
class Memory:
    """What is known of one stage.

    Attributes:
        setting: What it is set to.
        share: Share of a call that is CPU time, smoothed.
        scale: What trials found the weight to be of that share.
        call_seconds: Length of a call, smoothed.
        rests_until: When each kind of change may be tried again.
        rest_seconds: How long each kind rests the next time.
        lock: Whether it was found to hold the interpreter lock.
    """

    setting: Setting
    share: float
    scale: float = 1.0
    call_seconds: float = 0.0
    rests_until: dict[str, float]
    rest_seconds: dict[str, float]
    lock: bool = False

    def may(self, kind: str, now: float) -> bool:
        """Whether a kind of change may be tried."""
        return now >= self.rests_until.get(kind, 0.0)

    def rest(self, kind: str, now: float) -> None:
        """Leaves a kind of change alone for a while, twice as long each time."""
        rest = self.rest_seconds.get(kind, FIRST_REST_SECONDS)
        self.rests_until[kind] = now + rest
        self.rest_seconds[kind] = min(2 * rest, LAST_REST_SECONDS)


class Policy:
    """A `Tuner`: deterministic in the samples it gets.

    Args:
        found: What earlier runs of the pipeline found; this one adds to it.
    """

    period_seconds = PERIOD_SECONDS

    def __init__(self, found: dict[StageKey, Setting]) -> None:
        self._found = found
        self._before: RunSample | None = None
        self._stages: dict[StageKey, Memory] = {}
        self._trial: Trial | None = None
        self._record = Record()
        self._satisfied_seconds = 0.0

    def recall(self, key: StageKey) -> Setting | None:
        """Returns what an earlier run has found for a stage."""
        return self._found.get(key)

    def remember(self, stages: Iterable[StageStatistics]) -> None:
        """Keeps what the executor learnt in a run that was too short for a step."""
        for stage in stages:
            if stage.calls and stage.kind == "parallel" and stage.cost != "computes" and not stage.reason:
                share = stage.cpu_seconds / stage.busy_seconds if stage.busy_seconds else 0.0
                self._found[stage.key] = replace(_setting(stage), reason=_cpu_time(share))

    def step(self, sample: RunSample) -> Mapping[StageKey, Setting]:
        """Returns the settings that change."""
        before, self._before = self._before, sample
        if before is None or sample.now <= before.now:
            return {}
        window = window_between(before, sample)
        self._record.add(window)
        self._satisfied_seconds = (
            0.0 if window.waiting > HARDLY_WAITS else self._satisfied_seconds + window.seconds
        )
        changes: dict[StageKey, Setting] = {}
        tunable = {key: part for key, part in window.stages.items() if part.stage.kind == "parallel"}
        for key, part in tunable.items():
            self._learn(key, part, window, sample, changes)
        if self._trial is not None:
            self._judge(self._trial, window, sample, changes)
        elif window.waiting > HARDLY_WAITS:
            self._grow(tunable, window, sample, changes)
        elif self._satisfied_seconds > SATISFIED_SECONDS:
            self._shrink(tunable, changes)
        trying = None if self._trial is None else self._trial.key
        self._found.update({key: setting for key, setting in changes.items() if key != trying})
        return changes

    # ------------------------------------------------------------------ weights

    def _learn(
        self,
        key: StageKey,
        part: StageWindow,
        window: Window,
        sample: RunSample,
        changes: dict[StageKey, Setting],
    ) -> None:
        """Follows what a stage's calls cost."""
        memory = self._memory(key, part.stage)
        if not part.calls:
            return
        seconds = part.call_seconds(window.seconds)
        if memory.call_seconds and not 1 / DRIFT < seconds / memory.call_seconds < DRIFT:
            memory.rests_until.clear()
            memory.rest_seconds.clear()
        memory.call_seconds = seconds if not memory.call_seconds else (memory.call_seconds + seconds) / 2
        if part.stage.cost == "computes" or (self._trial is not None and self._trial.key == key):
            return
        crowded = window.python_cores > CROWDED or window.wanted_cores > BUSY * sample.cpu_budget
        if part.share <= memory.share and crowded:
            return
        memory.share = (memory.share + part.share) / 2
        weight = _rounded(memory.share) * memory.scale
        if abs(weight - memory.setting.weight) > STEP:
            memory.lock = False
            self._set(key, changes, weight=weight, reason=_cpu_time(memory.share))

    # ------------------------------------------------------------------ trials

    def _grow(
        self,
        tunable: Mapping[StageKey, StageWindow],
        window: Window,
        sample: RunSample,
        changes: dict[StageKey, Setting],
    ) -> None:
        """The consumer waits: tries the first change that could help, the most downstream stage first."""
        for key, part in tunable.items():
            if self._more_calls(key, part, window, sample, changes):
                return
            if self._record.enough(TRIAL_CHUNKS) and self._other_calls(key, part, window, sample, changes):
                return
        last = next(iter(tunable), None)
        if last is not None and self._record.enough(TRIAL_CHUNKS):
            self._more_room(last, tunable[last], sample, changes)

    def _more_calls(
        self,
        key: StageKey,
        part: StageWindow,
        window: Window,
        sample: RunSample,
        changes: dict[StageKey, Setting],
    ) -> bool:
        """Tries more calls in flight where calls wait and none is left."""
        stage, memory = part.stage, self._stages[key]
        setting = memory.setting
        waits = stage.cost != "computes" and max(setting.weight, part.share) < WAITS
        if not (waits and part.capped and stage.asked_calls is None and memory.may("calls", sample.now)):
            return False
        # What the consumer lacks; but no more than the cores can bear, if those calls are like these.
        factor = min(HEADROOM / max(1 - window.waiting, 0.1), sample.cpu_budget / max(window.cores, 0.01))
        calls = min(MAX_CALLS, math.ceil(setting.max_calls * factor))
        if calls < WORTH * setting.max_calls:
            return False
        self._try("calls", key, f"{calls} calls in flight", changes, max_calls=calls)
        return True

    def _other_calls(
        self,
        key: StageKey,
        part: StageWindow,
        window: Window,
        sample: RunSample,
        changes: dict[StageKey, Setting],
    ) -> bool:
        """Tries more calls than the CPU budget seems to allow while cores idle; or one, if they hold a lock."""
        stage, memory = part.stage, self._stages[key]
        if stage.cost == "computes" or stage.asked_calls == 1:
            return False
        idle = window.wanted_cores < BUSY * sample.cpu_budget
        busy = CROWDED <= part.in_flight < BUSY * memory.setting.max_calls and part.calls >= MIN_CALLS
        if idle and busy and not memory.lock and part.share >= WAITS and memory.may("share", sample.now):
            weight = memory.setting.weight / 2
            memory.scale /= 2
            self._try("share", key, "more calls at a time", changes, weight=weight)
            return True
        if memory.lock and memory.setting.max_calls > 1 and memory.may("lock", sample.now):
            text = "one call at a time, since it holds the interpreter lock"
            self._try("lock", key, text, changes, least=NO_WORSE, max_calls=1)
            return True
        return False

    def _more_room(
        self, key: StageKey, part: StageWindow, sample: RunSample, changes: dict[StageKey, Setting]
    ) -> None:
        """Tries a larger buffer in front of a consumer that waits although the buffer was full meanwhile."""
        memory = self._stages[key]
        room = min(MAX_READY_ITEMS, 2 * memory.setting.max_ready_items)
        wanted = part.full and room > memory.setting.max_ready_items
        if wanted and not part.stage.given_ready and memory.may("room", sample.now):
            self._try("room", key, f"room for {room} chunks", changes, max_ready_items=room)

    def _try(
        self,
        kind: str,
        key: StageKey,
        evidence: str,
        changes: dict[StageKey, Setting],
        *,
        least: float = WORTH,
        **values: float,
    ) -> None:
        before, rate = self._stages[key].setting, self._record.rate
        self._trial = Trial(key=key, kind=kind, before=before, rate=rate, least=least, evidence=evidence)
        self._record = Record(skip=SETTLING_WINDOWS)
        self._set(key, changes, reason=f"trying {evidence}", **values)

    def _judge(
        self, trial: Trial, window: Window, sample: RunSample, changes: dict[StageKey, Setting]
    ) -> None:
        """Keeps a change that helped, and takes another one back."""
        if trial.key not in window.stages:
            self._trial = None
            return
        if not self._record.enough(TRIAL_CHUNKS):
            return
        self._trial = None
        rate = self._record.rate
        memory = self._stages[trial.key]
        rates = f"{_rate(rate)} rows/s, {_rate(trial.rate)} before"
        if rate >= trial.least * trial.rate:
            memory.rest_seconds.pop(trial.kind, None)
            self._set(trial.key, changes, reason=f"{trial.evidence}: {rates}")
            return
        memory.rest(trial.kind, sample.now)
        self._record = Record(skip=SETTLING_WINDOWS)
        reason = f"{trial.evidence} did not help: {rates}"
        if trial.kind == "share":
            memory.scale *= 2
            if CROWDED < window.python_cores < ONE_LOCK:
                memory.lock = True
                reason = f"it holds the interpreter lock: {reason}"
        memory.setting = trial.before
        self._set(trial.key, changes, reason=reason)

    def _shrink(self, tunable: Mapping[StageKey, StageWindow], changes: dict[StageKey, Setting]) -> None:
        """The consumer has had what it wants for a while: takes back calls in flight that nobody needs."""
        for key, part in tunable.items():
            stage, setting = part.stage, self._stages[key].setting
            needed = max(MIN_CALLS, math.ceil(2 * part.in_flight))
            if stage.cost != "computes" and stage.asked_calls is None and setting.max_calls > 2 * needed:
                reason = f"{part.in_flight:.1f} calls in flight are enough for what the consumer takes"
                self._set(key, changes, max_calls=2 * needed, reason=reason)

    # ------------------------------------------------------------------ settings

    def _memory(self, key: StageKey, stage: StageStatistics) -> Memory:
        if key not in self._stages:
            self._stages[key] = Memory(
                setting=_setting(stage), share=stage.weight, rests_until={}, rest_seconds={}
            )
        memory = self._stages[key]
        if memory.setting.weight != stage.weight:
            # The executor has learnt from the first calls meanwhile.
            memory.setting = replace(memory.setting, weight=stage.weight)
            memory.share = stage.weight
        return memory

    def _set(self, key: StageKey, changes: dict[StageKey, Setting], **values: Any) -> None:
        memory = self._stages[key]
        memory.setting = changes[key] = replace(memory.setting, **values)


def _setting(stage: StageStatistics) -> Setting:
    return Setting(
        max_calls=stage.max_calls,
        max_ready_items=stage.ready_limit,
        weight=stage.weight,
        reason=stage.reason,
    )


def _rounded(share: float) -> float:
    return 1.0 if share > MOSTLY_COMPUTES else share


def _cpu_time(share: float) -> str:
    return f"{100 * share:.0f} % of a call is CPU time"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
