"""A worker's computation: what it takes beside others of its node."""

import math
from dataclasses import replace

import pytest

from samovar.core.machine import NOMINAL
from samovar.predict.cluster import WorkerSpec, cluster_here
from samovar.predict.work import work_of
from samovar.report.profile import LayerProfile, Profile

ALONE = 2e9  # bytes a second
WORKER = WorkerSpec(memory=ALONE / 2, crowded_factor=2.0)
MOVES = LayerProfile("moves", "", 1, 0, 10_000_000, 1.0, 2.0, behind_bytes=20_000_000)
WEIGHS = LayerProfile("weighs", "", 100_000_000, 0, 0, 1.0, 2.0)


def test_bytes_that_move_take_longer_beside_others_and_computing_does_not() -> None:
    profile = Profile("net", 8, (MOVES, WEIGHS), update_s=0.5)
    alone, beside = (work_of(profile, WORKER, 8, slower) for slower in (1.0, 2.0))
    added = [
        (new.forward_s - old.forward_s, new.backward_s - old.backward_s)
        for old, new in zip(alone.segments, beside.segments, strict=True)
    ]
    assert added[0] == (pytest.approx(2 * 30e6 / ALONE, rel=1e-6), pytest.approx(3 * 30e6 / ALONE, rel=1e-6))
    assert added[1] == (pytest.approx(400e6 / ALONE), pytest.approx(800e6 / ALONE))
    assert (alone.update_s, beside.update_s) == (0.5, 1.0)


def test_bytes_that_are_counted_move_faster_alone_too() -> None:
    layers = (LayerProfile("fc", "", 1_000_000, 1_000, 0), LayerProfile("relu", "", 0, 0, 10_000_000))
    alone, beside = (work_of(Profile("net", 1, layers), replace(WORKER, speed=1e15), 1, slower) for slower in (1, 2))
    assert (alone.update_s, beside.update_s) == (pytest.approx(5 * 4e6 / ALONE), pytest.approx(10 * 4e6 / ALONE))
    assert beside.step_s == pytest.approx(2 * alone.step_s, rel=1e-3)


def test_a_layer_takes_no_longer_than_if_it_only_moved_bytes() -> None:
    quick = replace(WEIGHS, forward_s=0.01, backward_s=0.02)
    (segment,) = work_of(Profile("net", 8, (quick,), update_s=0.0), WORKER, 8, 2.0).segments
    assert (segment.forward_s, segment.backward_s) == (pytest.approx(0.02), pytest.approx(0.04))


def test_fresh_memory_of_gradients_takes_its_time_for_any_batch_and_none_of_what_was_counted() -> None:
    fresh = LayerProfile("fc", "", 1_000, 1_000, 0, 1.0, 2.0, fresh_s=0.5)
    profile = Profile("net", 8, (fresh,), update_s=0.0)
    for batch, backward_s in ((8, 2.0), (4, 0.75 + 0.5), (16, 3.0 + 0.5)):
        (segment,) = work_of(profile, WORKER, batch).segments
        assert (segment.backward_s, segment.fresh_s) == (pytest.approx(backward_s), 0.5)
    (segment,) = work_of(profile, replace(WORKER, speed=1e6), 8).segments
    assert (segment.backward_s, segment.fresh_s) == (pytest.approx(2e-3), 0.0)


def test_backward_ends_at_the_first_layer_that_learns_and_makes_no_gradient_of_frozen_weights() -> None:
    """A layer with products and no parameters of its own shares another's."""
    frozen, learns = LayerProfile("frozen", "", 0, 1_000, num_unlearned=10), LayerProfile("fc", "", 10, 1_000)
    shares, moves = LayerProfile("shares", "", 0, 1_000), LayerProfile("relu", "", 0, 0, 1_000)
    worker = WorkerSpec(speed=2_000.0, memory=1_000.0)
    for layers, backward_s in [
        ((learns, learns), 3.0),
        ((frozen, moves, frozen, moves, learns), 1.0),
        ((frozen, learns, moves, frozen, shares), 1.0 + 3.0 + 1.0 + 2.0),
    ]:
        assert work_of(Profile("net", 1, layers), worker, 1).backward_s == pytest.approx(backward_s)


def test_here_workers_share_what_the_doctor_copied_with_all_cores() -> None:
    record = replace(NOMINAL, cores=4, copy_bandwidth_one_bytes_per_s=20e9, copy_bandwidth_all_bytes_per_s=40e9)
    cluster = cluster_here(record)
    assert [cluster.slower(workers) for workers in (1, 2, 4, 8)] == pytest.approx([1.0, 4 / 3, 2.0, 2.0])
    assert cluster_here(replace(record, copy_bandwidth_all_bytes_per_s=90e9)).slower(4) == 1.0
    assert math.isclose(cluster.worker.memory * cluster.worker.crowded_factor, 20e9)
