"""Clusters in TOML: what a description means, and what is said about one that is wrong."""

import math
from pathlib import Path

import pytest

from samovar.core import units
from samovar.core.errors import InputError
from samovar.core.machine import NOMINAL, Link, Ports, Racks
from samovar.predict.cluster import HERE, load_cluster, parse_cluster, preset_names

WHOLE = """
title = "two levels"
[worker]
speed = "4 Tflop/s"
memory = "200 GB/s"
jitter = "5 %"
slow_every = 3
slow_factor = 2
[node]
workers = 4
bandwidth = "8 GiB/s"
latency = "2 us"
price_per_hour = 3
[network]
bandwidth = "10 Gbit/s"
latency = "25 us"
overhead = "500 ns"
ports = "half-duplex"
[rack]
nodes = 16
oversubscription = 4
[server]
place = "own nodes"
count = 2
"""


@pytest.mark.parametrize(
    ("written", "kind", "wanted"),
    [
        ("10 Gbit/s", units.BANDWIDTH, 1.25e9),
        ("3.3 GB/s", units.BANDWIDTH, 3.3e9),
        ("1 MiB/s", units.BANDWIDTH, 1048576),
        ("25us", units.SECONDS, 25e-6),
        ("1_000 ms", units.SECONDS, 1.0),
        ("4 Tflop/s", units.SPEED, 4e12),
        ("5 %", units.SHARE, 0.05),
    ],
)
def test_quantities(written: str, kind: str, wanted: float) -> None:
    assert units.quantity(written, kind) == pytest.approx(wanted)


def test_figures_are_shown_with_three_digits() -> None:
    assert [units.seconds(0.0123), units.seconds(2e-6), units.duration(7200), units.size(54_100_000)] == [
        "12.3 ms",
        "2 us",
        "2 h",
        "54.1 MB",
    ]
    assert [units.seconds(0.9996), units.size(999_600)] == ["1,000 ms", "1,000 kB"]


def test_a_whole_description() -> None:
    cluster = parse_cluster(WHOLE, "x")
    machine = cluster.machine
    assert machine.link == Link(25e-6, 1.25e9, 5e-7)
    assert machine.host_link == Link(2e-6, 8 * 2.0**30)
    assert (machine.ranks_per_host, machine.ports, machine.compute_factors) == (4, Ports.SHARED, (1.0, 1.0, 2.0))
    assert machine.racks == Racks(16, Link(0.0, 16 * 1.25e9 / 4))
    assert cluster.price_per_hour(9, has_center=False) == 9
    assert cluster.price_per_hour(9, has_center=True) == 15


def test_what_is_left_out_costs_nothing() -> None:
    cluster = parse_cluster('title = "free"', "x")
    assert cluster.machine.link.is_instant
    assert cluster.machine.racks is None
    assert math.isinf(cluster.worker.memory)
    assert cluster.price_per_hour(4, has_center=True) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title = ", "is not TOML"),
        ("", "has no title"),
        ('title = "a"\nnetwrk = 1', "unknown 'netwrk'; did you mean 'network'"),
        (
            'title = "a"\n[network]\nbandwith = "1 GB/s"',
            r"\[network\] has an unknown 'bandwith'; did you mean 'bandwidth'",
        ),
        (
            'title = "a"\n[network]\nbandwidth = 10',
            "bandwidth is 10, without a unit; write a bandwidth such as '10 Gbit/s'",
        ),
        ('title = "a"\n[network]\nbandwidth = "10 Gbit"', "bandwidth is '10 Gbit'; write a bandwidth such as"),
        ('title = "a"\n[network]\nlatency = "1e9999999 s"', "which is not finite"),
        ('title = "a"\n[network]\nlatency = "fast"', "latency is 'fast'; write a time such as '25 us'"),
        ('title = "a"\n[network]\nbandwidth = "0 B/s"', "bandwidth is '0 B/s'; give at least 1"),
        ('title = "a"\n[network]\nports = "three"', "ports is 'three'; choose 'duplex' or"),
        ('title = "a"\n[node]\nworkers = 0', "workers is 0; give at least 1"),
        ('title = "a"\n[node]\nworkers = 1.5', "workers is 1.5; give a whole number"),
        ('title = "a"\n[worker]\nspare_core = 1', "spare_core is 1; give true or false"),
        ('title = "a"\n[rack]\noversubscription = 4', "oversubscription has no effect without nodes"),
        ('title = "a"\n[worker]\nslow_factor = 4', "slow_factor has no effect without slow_every"),
        ('title = "a"\n[worker]\nslow_every = 0\nslow_factor = 4', "slow_every is 0; give at least 1"),
        ('title = "a"\n[rack]\nnodes = 0\noversubscription = 4', "nodes is 0; give at least 1"),
        ('title = "a"\n[node]\nbandwidth = "1 Mbit/s"', r"\[node\] bandwidth has no effect without workers"),
        ('title = "a"\n[rack]\nlatency = "1 us"', r"\[rack\] latency has no effect without nodes"),
        (f'title = "a"\n[node]\nworkers = 1{"0" * 400}', "give a number"),
        ('title = "a"\n[worker]\nslow_every = 10_000_000_000\nslow_factor = 2', "give at most 4,096"),
        ('title = "a"\n[server]\ncount = 5_000', "give at most 4,096"),
        ('title = "a"\n[network]\nlatency = "1e18 s"', "latency is '1e18 s'; give at most 1 h"),
        ('title = "a"\n[worker]\njitter = "1e9 %"', "give at most 10000 %"),
        ('title = "a"\nrack = 16', r"rack is 16; it is a section, \[rack\]"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(InputError, match=f"^x: .*{said}"):
        parse_cluster(text, "x")


def test_presets_and_files(tmp_path: Path) -> None:
    for name in preset_names():
        cluster = load_cluster(name, NOMINAL)
        assert cluster.title
        assert cluster.source
        assert cluster.machine
    path = tmp_path / "mine.toml"
    path.write_text(WHOLE)
    assert load_cluster(str(path), NOMINAL) == parse_cluster(WHOLE, "x")
    assert load_cluster(HERE, NOMINAL).node.workers == NOMINAL.cores
    with pytest.raises(InputError, match="no such preset; did you mean 'firecaffe'"):
        load_cluster("firecafe", NOMINAL)
    with pytest.raises(InputError, match="cannot be read"):
        load_cluster(str(tmp_path / "none.toml"), NOMINAL)
