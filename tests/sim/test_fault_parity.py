"""Faults on the simulator and on real processes: the same errors, the same names, and the same ranks go on."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from samovar.box.board import Member
from samovar.box.mapped import create_center
from samovar.core.clock import Deadline
from samovar.transports.sim.world import SimConfig, SimTransport, simulate
from tests.sim.fault_scenarios import ENDED, KILLED, LAYOUT, SCENARIOS, Scenario, play
from tests.sim.mapped_centers import VirtualCenter

ROOT = Path(__file__).parents[2]
QUICK = (
    "sync, the first killed",
    "sync, one not finite",
    "shm-easgd, the first killed",
    "hybrid-easgd, one of a group killed",
)
QUICK_S, SLOW_S, BUSY, LIMIT_S = 1.0, 2.0, 8, 240
SEEDS = range(5)


class _Dead(BaseException):
    """This rank's process is no more."""


class Simulated:
    """One rank's place on a simulated machine; a timeout is a second of its clock."""

    def __init__(self, transport: SimTransport, center: int) -> None:
        self.transport, self._center = transport, center

    def deadline(self) -> Deadline:
        return self.transport.deadline(1.0)

    def sleep(self, timeouts: float) -> None:
        self.transport.sleep(timeouts)

    def die(self) -> NoReturn:
        self.transport.die()
        raise _Dead

    def center(self) -> Any:
        center = VirtualCenter(self._center, Member(self.transport.group.rank, 1))
        center.transport = self.transport
        return center


def simulated(scenario: Scenario, seed: int) -> list[list[str]]:
    velocity = bool(scenario.config.center_momentum)
    locks = not scenario.strategy.startswith("hogwild")
    center = create_center(LAYOUT.num_elements, scenario.world_size, with_velocity=velocity, with_locks=locks)
    try:
        config = SimConfig(seed, check=False, max_delay_s=1e-3)
        return simulate(partial(_rank, scenario, center), scenario.world_size, config).results
    finally:
        os.close(center)


def _rank(scenario: Scenario, center: int, transport: SimTransport) -> list[str]:
    shown: list[str] = []
    try:
        play(scenario, Simulated(transport, center), shown.append)
    except _Dead:
        return [*shown, KILLED]
    transport.die()
    return [*shown, ENDED]


def real(names: tuple[str, ...], timeout_s: float) -> dict[str, list[list[str]]]:
    command = [sys.executable, "-m", "tests.sim.fault_ranks", str(timeout_s), *names]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, list[list[str]]] = json.loads(ended.stdout)
    return found


def assert_same(names: tuple[str, ...], timeout_s: float) -> None:
    """A process of a busy machine may be as late as one that stands still: then all have longer timeouts."""
    found = real(names, timeout_s)
    if any(simulated(SCENARIOS[name], 0) != shown for name, shown in found.items()):
        found = real(names, BUSY * timeout_s)
    for name, shown in found.items():
        for seed in SEEDS:
            assert simulated(SCENARIOS[name], seed) == shown, f"{name}, seed {seed}"


def test_some_faults_look_the_same_on_simulated_machines_and_in_processes() -> None:
    assert_same(QUICK, QUICK_S)


@pytest.mark.slow
@pytest.mark.parametrize("names", [tuple(SCENARIOS)[k::3] for k in range(3)])
def test_faults_look_the_same_on_simulated_machines_and_in_processes(names: tuple[str, ...]) -> None:
    assert_same(names, SLOW_S)


def test_there_are_thirty_and_each_fault_is_seen() -> None:
    """A scenario whose fault nobody notices compares nothing."""
    assert len(SCENARIOS) >= 30
    for name, scenario in SCENARIOS.items():
        shown = simulated(scenario, 0)
        waits_for_nobody = scenario.config.is_async and scenario.fault.what in ("stopped", "not finite")
        if scenario.fault.what not in ("", "slow", "late") and not waits_for_nobody:
            assert any(ranks[-2:] != ["trained", ENDED] for ranks in shown), name
