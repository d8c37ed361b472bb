"""`samovar doctor`: what is here, what is wrong, how fast it is."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from samovar.cli import flags
from samovar.cli.command import OUTPUT, require_place
from samovar.config import DEFAULT_TIMEOUT_S
from samovar.core.errors import SamovarError
from samovar.core.host import Others, family_seconds
from samovar.core.machine import CalibrationRecord
from samovar.core.plain import to_plain
from samovar.launch.script import Hosts
from samovar.launch.wishes import state_folder
from samovar.launcher.calibrate import HostLinkFigures, calibrate, measure_hosts, with_links
from samovar.launcher.hosts import place_of
from samovar.launcher.placing import torch_devices
from samovar.predict.kept import Kept, is_quiet
from samovar.report.host import Finding, HostFigures, diagnose, read_host
from samovar.report.run_folder import write_json_atomic
from samovar.report.tables import print_json, printer, show_facts
from samovar.report.wording import cpu_ranges
from samovar.strategies.catalog import ADVICE, shortest_step_s

Row = tuple[str, str]

_GIB = 1 << 30
_MOST_CLOCK_S = 1.0
_SAVE = "Also save the measurements, for `samovar train --calibration`."


def doctor(
    nodes: flags.Nodes = 1,
    node_rank: flags.NodeRank = None,
    master_addr: flags.MasterAddress = None,
    master_port: flags.MasterPort = None,
    key_file: flags.KeyFile = None,
    save: Annotated[Path | None, OUTPUT("FILE", _SAVE)] = None,
    as_json: Annotated[bool, OUTPUT("", "Print host, devices, calibration and findings as JSON.", "--json")] = False,
) -> None:
    """Show and measure this machine, and say what is wrong with it. With --nodes, also measure links between hosts."""
    place = place_of(Hosts.of(nodes, node_rank, master_addr, master_port), key_file)
    if save is not None:
        require_place("--save", save, CalibrationRecord.load)
    host, other_programs = read_host(), Others(own_s=family_seconds)
    devices = "not known" if host.missing_modules else torch_devices().described
    record = calibrate(host) if host.memfd_error is None else None
    links: tuple[HostLinkFigures, ...] = ()
    if place is not None:
        met, links = measure_hosts(place, DEFAULT_TIMEOUT_S, partial(print, "samovar: warning:", file=sys.stderr))
        met.close()
    if record is not None and links:
        record = with_links(record, links)
    findings = [*diagnose(host, record), *_clock_findings(links)]
    if record is not None and is_quiet(other_programs.share()):
        Kept(state_folder()).keep_machine(record)
    if as_json:
        found = {"host": host, "devices": devices, "calibration": record, "findings": findings}
        print_json(found | {"advice": dict(advice(host, links))} | ({"links": links} if links else {}))
    else:
        console = printer()
        for number, (title, rows) in enumerate(_sections(host, devices, record, findings, links)):
            if number:
                console.print()
            show_facts(console, title, rows)
    if save is not None:
        _save(record, save)


def _save(record: CalibrationRecord | None, path: Path) -> None:
    if record is None:
        raise SamovarError(f"--save {path}: is not written, because nothing was measured; mend what is wrong first")
    write_json_atomic(path, to_plain(record), "give --save a file elsewhere")


def _clock_findings(links: Sequence[HostLinkFigures]) -> list[Finding]:
    """A clock that is off disturbs no run, but times in logs."""
    return [
        Finding("warning", f"the clock of {link.host} is {link.clock_ahead_s:+.1f} s off", "let NTP set the clocks")
        for link in links
        if abs(link.clock_ahead_s) > _MOST_CLOCK_S
    ]


def _sections(
    host: HostFigures,
    devices: str,
    record: CalibrationRecord | None,
    findings: list[Finding],
    links: Sequence[HostLinkFigures],
) -> Iterator[tuple[str, Sequence[Row]]]:
    yield "What is here", [*host_rows(host), ("devices", devices)]
    if record is not None:
        yield "Measured", record_rows(record)
    told = [(finding.level, f"{finding.text}; {finding.next_step}") for finding in findings]
    yield "What is wrong" if told else "Nothing is wrong.", told
    if links:
        yield "Between hosts", [row for link in links for row in _link_rows(link)]
    yield "What to train with", advice(host, links)


def _link_rows(link: HostLinkFigures) -> list[Row]:
    sizes = ", ".join(f"{_size(size)} {rate / 1e6:,.0f}" for size, rate in link.figures.bandwidth)
    return [
        (f"to {link.host}: put + notify", _microseconds(link.figures.sleeping_latency_s)),
        (f"to {link.host}: put, MB/s", sizes),
        (f"to {link.host}: of a core, MB/s", f"{link.figures.processing_bytes_per_s / 1e6:,.0f} sent or received"),
        (f"to {link.host}: its clock", f"{link.clock_ahead_s * 1e3:+.1f} ms"),
    ]


def advice(host: HostFigures, links: Sequence[HostLinkFigures]) -> list[Row]:
    """The strategies that fit here, by the same table as docs/how-to/choose-a-strategy.md."""
    cores = len(host.cores)
    if cores == 1 and not links:
        return [("on this host", "one worker: there is one core")]
    return [
        ("on this host", f"up to {cores} workers; find their number by --workers auto"),
        *((f"{one.link}, {one.speeds} speed", f"{one.flags}: {one.words}") for one in ADVICE),
        *((f"to {link.host}", _told(link)) for link in links),
    ]


def _told(link: HostLinkFigures) -> str:
    return f"a fast link, for a net of 1 M weights whose step takes {shortest_step_s(link.figures):.2g} s or longer"


def host_rows(host: HostFigures) -> list[Row]:
    """The machine as text."""
    allowed = f"{len(host.cpus_allowed)} of {host.cores_present} (cpu {cpu_ranges(host.cpus_allowed)})"
    quota = f", time of {host.cpu_quota_cores:g}" if host.cpu_quota_cores is not None else ""
    limit = f", limit {_gib(host.memory_limit_bytes)}" if host.memory_limit_bytes is not None else ""
    memory = f"{_gib(host.memory_available_bytes)} free of {_gib(host.memory_total_bytes)}{limit}"
    limits = ", ".join(f"{name} {'unlimited' if n is None else f'{n:,}'}" for name, n in host.limits.items())
    return [
        ("processor", host.cpu_model),
        ("cores", allowed + quota),
        ("NUMA nodes", str(host.numa_nodes)),
        ("governor", ", ".join(host.governors) or "not shown"),
        ("memory", f"{memory}, swapped out {_gib(host.swap_used_bytes)}"),
        ("shared memory", f"memfd {'works' if host.memfd_error is None else host.memfd_error}"),
        ("huge pages", f"{host.huge_pages or 'none'}, shared memory {host.shared_huge_pages or 'none'}"),
        ("limits", limits),
        ("kernel", host.kernel),
        ("versions", ", ".join(f"{name} {number}" for name, number in host.versions.items())),
    ]


def record_rows(record: CalibrationRecord) -> list[Row]:
    """The figures as text."""
    rows = [
        ("copy, one process", f"{record.copy_bandwidth_one_bytes_per_s / 1e9:.1f} GB/s read + written"),
        ("copy, all cores", f"{record.copy_bandwidth_all_bytes_per_s / 1e9:.1f} GB/s read + written"),
        ("wake-up by futex", _microseconds(record.wake_up_s)),
    ]
    for name, figures in record.transports.items():
        sizes = ", ".join(f"{_size(size)} {rate / 1e9:.1f}" for size, rate in figures.bandwidth)
        rows += [
            (f"{name}: put + notify, spinning", _microseconds(figures.spinning_latency_s)),
            (f"{name}: put + notify, sleeping", _microseconds(figures.sleeping_latency_s)),
            (f"{name}: put + notify, on one core", _microseconds(figures.shared_core_latency_s)),
            (f"{name}: put, GB/s", sizes),
        ]
    return rows


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.1f} GiB"


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.2g} us" if seconds < 10e-6 else f"{seconds * 1e6:.0f} us"


def _size(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MiB" if num_bytes >= 1 << 20 else f"{num_bytes >> 10} KiB"
