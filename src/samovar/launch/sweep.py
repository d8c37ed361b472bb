"""`--workers auto`: which settings of workers and threads are tried."""

Setting = tuple[int, int]  # workers, threads of each


def sweep_settings(
    num_cores: int, threads_per_worker: int | None = None, most_workers: int | None = None
) -> tuple[Setting, ...]:
    """All workers x threads that fill `num_cores`, workers rising: 1x16, 2x8, 4x4, 8x2, 16x1.

    With `threads_per_worker` given: workers that divide what number of them there is room for (at least one). None has
    more than `most_workers`. No setting has more threads than there are cores, unless a single worker was given them.
    """
    room = num_cores if threads_per_worker is None else max(1, num_cores // threads_per_worker)
    counts = [count for count in range(1, room + 1) if room % count == 0]
    return tuple(
        (count, room // count if threads_per_worker is None else threads_per_worker)
        for count in counts
        if most_workers is None or count <= most_workers
    )
