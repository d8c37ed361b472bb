"""A described cluster as processes of one host emulate it: what is shaped, and what cannot be."""

import math
from collections.abc import Sequence

from samovar.core import units
from samovar.core.errors import InputError
from samovar.core.machine import CalibrationRecord, DescribedStep, Emulation, Link
from samovar.predict.cluster import Cluster
from samovar.predict.work import work_of
from samovar.report.profile import Profile
from samovar.report.wording import counted

_BYTES_MOVED = 4  # a message is read and written twice: into a copy, and from there to its peer


def emulated(
    cluster: Cluster, num_workers: int, profile: Profile | None, here: CalibrationRecord
) -> tuple[Emulation, list[str]]:
    """The emulation of the cluster by `num_workers` processes of the machine `here`, and sentences about it.

    Raises InputError for what they cannot do.

    Computation takes the seconds of `work_of`, with the profile's batch; without a profile what it takes here.
    """
    machine, num_nodes = cluster.machine, cluster.num_nodes(num_workers)
    if profile is None and (cluster.worker.speed or cluster.worker.jitter or cluster.worker.slow_every):
        raise InputError(
            f"--emulate: {cluster.title}: its [worker] says how fast one computes, which needs the net's layers; give "
            "--profile FILE (replica.profile writes one), or leave speed, jitter and slow_every out"
        )
    _require_room(cluster, num_workers, here)
    step = None if profile is None else _step(cluster, num_workers, profile)
    hosts = cluster.server_hosts(num_workers)
    emulation = Emulation(machine, hosts, cluster.server.memory, here.wake_up_s, step)
    workers, nodes = counted(num_workers, "worker"), counted(num_nodes, "node")
    sentences = [f"emulated: {cluster.title}; {workers} on {nodes}"]
    if num_nodes > 1:
        sentences.append(f"between nodes: {_described(machine.link)}; ports {cluster.network.ports}{_racks(cluster)}")
    if num_workers > 1 and cluster.node.workers > 1:
        sentences.append(f"inside a node: {_described(machine.host_link)}")
    sentences.append(_computation(step, profile, [machine.compute_s(rank, 1.0) for rank in range(num_workers)]))
    least_s = 2 * here.wake_up_s
    if num_nodes > 1 and machine.link.message_s(0) < least_s:
        sentences.append(
            f"messages that would take less come after about {units.seconds(least_s)}, the time of a wake-up here"
        )
    if cluster.network.processing < math.inf:
        sentences.append("processor time of messages: that of this host, not the described one")
    sentences.append("not shaped: start and end, reading data, tests, and messages of other libraries")
    return emulation, sentences


def _require_room(cluster: Cluster, num_workers: int, here: CalibrationRecord) -> None:
    """Raises InputError if links are faster than memory here."""
    inside = num_workers if cluster.node.workers > 1 else 0
    links = (cluster.network, cluster.num_nodes(num_workers)), (cluster.node, inside)
    for link, count in links:
        if link.bandwidth == math.inf or count < 2:
            continue
        moved = _BYTES_MOVED * count * link.bandwidth
        if moved > here.copy_bandwidth_all_bytes_per_s:
            raise InputError(
                f"--emulate: {count} links of {link.bandwidth / 1e9:g} GB/s at once move {moved / 1e9:,.0f} GB/s "
                f"through memory here, and it moves {here.copy_bandwidth_all_bytes_per_s / 1e9:,.0f}; give fewer "
                "workers, or describe slower links"
            )


def _step(cluster: Cluster, num_workers: int, profile: Profile) -> DescribedStep:
    work = work_of(profile, cluster.worker, profile.batch_size, cluster.slower(num_workers))
    backward = [*reversed(work.segments)]
    return DescribedStep(
        work.forward_s,
        tuple(segment.num_parameters for segment in backward),
        tuple(segment.backward_s for segment in backward),
        work.after_s,
        work.update_s,
        cluster.worker.jitter,
    )


def _computation(step: DescribedStep | None, profile: Profile | None, factors: Sequence[float]) -> str:
    if step is None or profile is None:
        return "computation: as fast as it is here (--profile FILE gives its described time)"
    least, most = (units.seconds(factor * step.seconds) for factor in (min(factors), max(factors)))
    shown = least if least == most else f"{least} to {most}"
    return f"computation: {shown} a step of {profile.batch_size} samples; ranks sleep where this host is faster"


def _described(link: Link) -> str:
    rate = "any rate" if link.bandwidth_bytes_per_s == math.inf else f"{8 * link.bandwidth_bytes_per_s / 1e9:g} Gbit/s"
    return f"{rate}, {units.seconds(link.latency_s)} latency, {units.seconds(link.overhead_s)} a message"


def _racks(cluster: Cluster) -> str:
    if not cluster.rack.nodes:
        return ""
    return f", racks of {cluster.rack.nodes} with uplinks of 1/{cluster.rack.oversubscription:g}"
