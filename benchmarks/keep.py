"""What later epochs gain by kept chunks, and what the first one pays.

`images`, and `stream` and `wide` in file order and shuffled, run three epochs in one process: with chunks that are kept by themselves,
without, and with room for half of them. The same with `cache()` placed by hand, and a loop by hand in its second epoch. In
file order the batches own their memory, so copies are kept: by themselves in the second epoch, and in the first one if a
size is asked for. So are pixels, also after a shuffle.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from benchmarks import by_hand, data, harness, images, stream, wide

EPOCHS: Final = 3
ALL: Final = "4GiB"
HALF_BYTES: Final = {"stream": 82 << 20, "wide": 320 << 20, "images": 144 << 20}


def _images(paths: list[str]) -> Any:
    import arrowflow as af

    images.one_thread_a_call()
    return af.read_parquet(paths).decode_image("jpeg", images.SIZE)


def _workloads() -> dict[str, tuple[Callable[[], list[str]], Callable[[list[str]], Any], int]]:
    def shuffled(rows: Callable[[list[str]], Any]) -> Callable[[list[str]], Any]:
        return lambda paths: rows(paths).shuffle(stream.WINDOW_ROWS, seed=7)

    return {
        "stream": (data.lineitem, stream.rows, stream.BATCH_ROWS),
        "stream-shuffled": (data.lineitem, shuffled(stream.rows), stream.BATCH_ROWS),
        "wide": (data.wide, wide.rows, wide.BATCH_ROWS),
        "wide-shuffled": (data.wide, shuffled(wide.rows), wide.BATCH_ROWS),
        "images": (data.images, _images, images.BATCH_ROWS),
    }


def _images_by_hand(paths: list[str]) -> Iterator[Any]:
    images.one_thread_a_call()
    with ThreadPoolExecutor(images.THREADS) as threads:
        yield from images.by_threads(threads, paths, images.by_opencv)


LOOPS: Final[dict[str, Callable[[list[str]], Iterable[Any]]]] = {
    "stream": stream.scanner_two_files,
    "stream-shuffled": stream.SHUFFLED["shuffled-scanner-two-files"],
    "wide": wide.scanner_two_files,
    "wide-shuffled": wide.stack_first,
    "images": _images_by_hand,
}
NEEDED: Final = {"stream": 10.0, "stream-shuffled": 2.5, "wide": 10.0, "wide-shuffled": 5.0, "images": 3.0}


def _epochs(make: Callable[[], Iterable[Any]], batch_rows: int) -> harness.Measurement:
    ones = [harness.drain(make, batch_rows=batch_rows) for _ in range(EPOCHS)]
    extra: dict[str, float] = {}
    for number, one in enumerate(ones, start=1):
        extra |= {f"seconds_{number}": one.seconds, f"cpu_{number}": one.cpu_seconds}
    return harness.Measurement(ones[-1].rows, ones[-1].seconds, ones[-1].cpu_seconds, extra)


def _ours(name: str, keep: Any, *, cached: bool = False) -> harness.Contender:
    def measure() -> harness.Measurement:
        import arrowflow as af

        files, make, batch_rows = _workloads()[name]
        paths = files()
        data.read_through(paths)
        rows = make(paths)
        if cached:
            rows = _workloads()[name.removesuffix("-shuffled")][1](paths).cache()
            if name.endswith("shuffled"):
                rows = rows.shuffle(stream.WINDOW_ROWS, seed=7)
        loader = rows.batch(batch_rows, drop_remainder=True).with_options(af.Options(keep=keep)).to_numpy()
        return _epochs(lambda: loader, batch_rows)

    return measure


def _loop(name: str) -> harness.Contender:
    def measure() -> harness.Measurement:
        import pandas  # noqa: F401  (pyarrow imports it at the first `to_numpy`: 0.6 s that are not the loop's)

        files, _, batch_rows = _workloads()[name]
        paths = files()
        data.read_through(paths)
        return _epochs(lambda: by_hand.exact_batches(LOOPS[name](paths), batch_rows), batch_rows)

    return measure


CONTENDERS: Final[dict[str, harness.Contender]] = {
    f"{name}-{how}": contender
    for name in NEEDED
    for how, contender in {
        "auto": _ours(name, "auto"),
        "asked": _ours(name, ALL),
        "half": _ours(name, HALF_BYTES[name.removesuffix("-shuffled")]),
        "without": _ours(name, keep=False),
        "cache": _ours(name, keep=False, cached=True),
        "by-hand": _loop(name),
    }.items()
}


def _ratio(rounds: harness.Rounds, ours: tuple[str, str], theirs: tuple[str, str]) -> float:
    """Returns how many times as long another contender takes, by one of the figures of each."""
    pairs = zip(rounds[ours[0]], rounds[theirs[0]], strict=True)
    return statistics.median(other.extra[theirs[1]] / own.extra[ours[1]] for own, other in pairs)


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars of later epochs, of half of the room, and of the first epoch."""
    bars = []

    def bar(title: str, needed: float, ours: tuple[str, str], theirs: tuple[str, str]) -> None:
        if ours[0] in rounds and theirs[0] in rounds:
            got = _ratio(rounds, ours, theirs)
            cpu = [key.replace("seconds", "cpu") for key in (ours[1], theirs[1])]
            of_cpu = _ratio(rounds, (ours[0], cpu[0]), (theirs[0], cpu[1]))
            own = harness.median_extra(rounds[ours[0]], ours[1])
            other = harness.median_extra(rounds[theirs[0]], theirs[1])
            text = f"{own:.3f} against {other:.3f} s; CPU {of_cpu:.2f} x"
            bars.append(harness.Bar(title, f">= {needed:.2f} x", text, got >= needed, got))

    for name, needed in NEEDED.items():
        loop = f"{name}-by-hand", "seconds_2"
        bar(f"{name}: second epoch against by hand", needed, (f"{name}-auto", "seconds_2"), loop)
        bar(f"{name}: third epoch", needed, (f"{name}-auto", "seconds_3"), loop)
        bar(f"{name}: second epoch, a size asked for", needed, (f"{name}-asked", "seconds_2"), loop)
        without = f"{name}-without"
        bar(f"{name}: room for half", 1.6, (f"{name}-half", "seconds_2"), (without, "seconds_2"))
        bar(f"{name}: first epoch", 0.98, (f"{name}-auto", "seconds_1"), (without, "seconds_1"))
        bar(f"{name}: first epoch with cache()", 0.9, (f"{name}-cache", "seconds_1"), (without, "seconds_1"))
    return bars


if __name__ == "__main__":
    harness.main("keep", CONTENDERS, judge)
