"""`--collective auto`: what is predicted, what is chosen, and the record behind it."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from samovar.collectives.cost import choose_all_reduce, cost, predicted_s
from samovar.collectives.plans import ALL_REDUCES
from samovar.core.errors import InputError
from samovar.core.machine import NOMINAL, CalibrationRecord, TransportFigures
from samovar.core.plain import to_plain

LATENCY_S = 1e-3
# Latency is all, or bandwidth is: where either is alone, a prediction can be counted by hand.
SLOW_MESSAGES = TransportFigures(LATENCY_S, 1.0, 1.0, ((1, 1e18),))
SLOW_BYTES = TransportFigures(1e-15, 1e-15, 1e-15, ((1, 1e6),))


def machine(figures: TransportFigures, cores: int = 64, all_per_one: float = 64.0) -> CalibrationRecord:
    return CalibrationRecord("test", cores, 1, 1e-5, 1e9, all_per_one * 1e9, {"shm": figures})


@pytest.mark.parametrize("name", ALL_REDUCES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7, 8, 16])
def test_where_messages_are_all_that_costs_the_time_is_the_counted_steps(name: str, world_size: int) -> None:
    plans = [ALL_REDUCES[name](rank, world_size) for rank in range(world_size)]
    expected_s = cost(plans, 1024).steps * LATENCY_S
    assert predicted_s(machine(SLOW_MESSAGES), name, world_size, 4096, False) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("name", "world_size", "passes"),
    [
        ("direct", 2, 2.0),  # half of two buffers read, half of two written
        ("direct", 4, 2.0),
        ("ring", 2, 3.5),  # put half (2 x 1/2), add half (3 x 1/2), put half
        ("tree", 2, 7.0),  # put all, add all, put all, one after the other
        ("server", 4, 2 + 5 + 6.0),  # one put, one sum of four, three puts
    ],
)
def test_where_bytes_are_all_that_costs_the_time_is_that_of_the_longest_chain(
    name: str, world_size: int, passes: float
) -> None:
    num_bytes = 1 << 20
    seconds = predicted_s(machine(SLOW_BYTES), name, world_size, num_bytes, False)
    assert seconds == pytest.approx(passes * num_bytes / 2e6, rel=1e-6)


def test_all_ranks_together_are_no_faster_than_the_machine() -> None:
    alone = predicted_s(machine(SLOW_BYTES, all_per_one=64.0), "direct", 8, 1 << 20, False)
    shared = predicted_s(machine(SLOW_BYTES, all_per_one=2.0), "direct", 8, 1 << 20, False)
    assert shared == pytest.approx(4 * alone)


@pytest.mark.parametrize(
    ("shared_s", "sending_s", "counted"),
    [
        (LATENCY_S, 1e-12, 8),  # all four ranks begin; the root goes on when all three have sent; they go on
        (1e-12, LATENCY_S, 6),  # three messages there, three back
    ],
)
def test_ranks_that_share_cores_pay_for_every_turn_and_every_message(
    shared_s: float, sending_s: float, counted: int
) -> None:
    figures = dataclasses.replace(SLOW_MESSAGES, shared_core_latency_s=shared_s, spinning_latency_s=sending_s)
    for cores in (1, 2):
        seconds = predicted_s(machine(figures, cores), "server", 4, 4096, True)
        assert seconds == pytest.approx(counted * LATENCY_S / cores, rel=1e-6)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 32])
@pytest.mark.parametrize("num_bytes", [0, 4, 4096, 28 << 20, 256 << 20])
def test_the_choice_can_run_and_nothing_is_predicted_to_be_faster(world_size: int, num_bytes: int) -> None:
    for mapped in (False, True):
        for oversubscribed in (False, True):
            chosen = choose_all_reduce(NOMINAL, world_size, num_bytes, mapped, oversubscribed)
            names = [name for name in ALL_REDUCES if mapped or name != "direct"]
            times = {name: predicted_s(NOMINAL, name, world_size, num_bytes, oversubscribed) for name in names}
            assert chosen in names
            assert times[chosen] == min(times.values())


def test_nominal_chooses_as_measured() -> None:
    """Figures of benchmarks/collectives.py; a change here changes the bits of runs with --collective auto."""
    for num_bytes in (4096, 28 << 20, 256 << 20):
        assert choose_all_reduce(NOMINAL, 2, num_bytes, True, False) == "direct"
    assert choose_all_reduce(NOMINAL, 8, 256 << 20, True, True) == "direct"
    assert choose_all_reduce(NOMINAL, 4, 4096, True, True) == "kary-tree"
    assert choose_all_reduce(NOMINAL, 8, 4096, True, True) == "server"
    assert choose_all_reduce(NOMINAL, 2, 28 << 20, False, False) == "halving-doubling"


def test_equals_are_chosen_in_a_fixed_order() -> None:
    halves, ring = (predicted_s(NOMINAL, name, 2, 1 << 20, False) for name in ("halving-doubling", "ring"))
    assert halves == ring
    assert choose_all_reduce(NOMINAL, 2, 1 << 20, False, False) == "halving-doubling"


def test_one_worker_has_nothing_to_do() -> None:
    chosen = choose_all_reduce(NOMINAL, 1, 1 << 20, True, False)
    assert ALL_REDUCES[chosen](0, 1).operations == ()


def test_bandwidth_between_sizes() -> None:
    figures = TransportFigures(1.0, 1.0, 1.0, ((1 << 10, 1e9), (1 << 20, 3e9)))
    rates = [figures.bandwidth_at(size) for size in (1, 1 << 10, 1 << 15, 1 << 20, 1 << 30)]
    assert rates == pytest.approx([1e9, 1e9, 2e9, 3e9, 3e9])


def test_a_record_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(to_plain(NOMINAL)))
    assert CalibrationRecord.load(path) == NOMINAL


def changed(**changes: Any) -> dict[str, Any]:
    return to_plain(NOMINAL) | changes


def with_figures(**changes: Any) -> dict[str, Any]:
    return changed(transports={"shm": to_plain(NOMINAL)["transports"]["shm"] | changes})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a calibration"),
        ("[]", r"CalibrationRecord is \[\], not an object"),
        ("[" * 100_000, "is not a calibration"),
        ({"machine": "x"}, "CalibrationRecord lacks copy_bandwidth_all_bytes_per_s, "),
        (changed(speed=1), "CalibrationRecord has unknown fields: speed"),
        (changed(cores=0), "cores is 0; it must be positive"),
        (changed(cores=2.0), "CalibrationRecord.cores is 2.0, not int"),
        (changed(wake_up_s="1"), "CalibrationRecord.wake_up_s is '1', not float"),
        (changed(wake_up_s=math.nan), "wake_up_s is nan; it must be positive"),
        (changed(wake_up_s=10**400), "is not a calibration"),
        (changed(cores=10**400), "is not a calibration"),
        (changed(transports=[]), r"CalibrationRecord.transports is \[\], not an object"),
        (changed(transports={}), "transports lacks 'shm'"),
        (changed(transports={"shm": 1}), "TransportFigures is 1, not an object"),
        (with_figures(bandwidth=3), "TransportFigures.bandwidth is 3, not an array"),
        (with_figures(bandwidth=[[1.5, 2.0]]), r"TransportFigures.bandwidth\[0\]\[0\] is 1.5, not int"),
        (with_figures(bandwidth=[]), r"bandwidth has the sizes \[\]; they must rise"),
        (with_figures(bandwidth=[[8, 1.0], [4, 1.0]]), r"bandwidth has the sizes \[8, 4\]; they must rise"),
        (with_figures(bandwidth=[[8, -1.0]]), "bandwidth has a rate that is not a positive number"),
        (with_figures(sleeping_latency_s=-1), "sleeping_latency_s is -1.0; it must be positive"),
    ],
)
def test_what_is_no_record_is_refused_with_the_file_and_the_field(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InputError, match=message) as refusal:
        CalibrationRecord.load(path)
    assert "calibration.json" in str(refusal.value)
    assert "samovar doctor --save" in str(refusal.value)


def test_a_missing_file_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere cannot be read: No such file.*samovar doctor --save"):
        CalibrationRecord.load(tmp_path / "nowhere")
