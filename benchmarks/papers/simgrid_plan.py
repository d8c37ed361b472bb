"""Runs a collective's messages in SimGrid: `/usr/bin/python3 simgrid_plan.py < PLAN`, with Debian's python3-simgrid.

stdin is JSON: `latency_s`, `bandwidth`, and for each rank a list of ["put", peer, slot, bytes] and ["wait", slot]. It
prints the simulated seconds. Hosts are on a star, each with one duplex link that carries
one message at a time in each direction. The model is CM02 without a TCP window.
"""

import json
import sys
from typing import Any

from simgrid import Actor, Engine, LinkInRoute, Mailbox, NetZone

_SETTINGS = (
    "--cfg=network/model:CM02",
    "--cfg=network/TCP-gamma:0",
    "--cfg=network/crosstraffic:0",
    "--log=root.thres:error",
)


def main() -> None:
    asked = json.load(sys.stdin)
    engine = Engine(["simgrid_plan", *_SETTINGS])
    zone = NetZone.create_star_zone("star")
    hosts = []
    for rank in range(len(asked["ranks"])):
        host = zone.create_host(f"host{rank}", 1e9)
        link = zone.create_split_duplex_link(f"link{rank}", asked["bandwidth"])
        link.set_latency(asked["latency_s"] / 2)  # two links on the way
        link.set_concurrency_limit(1)  # a port carries one message at a time
        zone.add_route(host.netpoint, None, None, None, [LinkInRoute(link, LinkInRoute.UP)], True)
        hosts.append(host)
    zone.seal()
    for rank, operations in enumerate(asked["ranks"]):
        Actor.create(f"rank{rank}", hosts[rank], perform, rank, operations)
    engine.run()
    print(Engine.clock)


def perform(rank: int, operations: list[Any]) -> None:
    """A put is one-sided: it does not wait until its receiver waits for it, so all receives are posted first."""
    sent = []
    awaited = {
        values[0]: Mailbox.by_name(f"{rank}/{values[0]}").get_async() for what, *values in operations if what == "wait"
    }
    for what, *values in operations:
        if what == "put":
            peer, slot, num_bytes = values
            sent.append(Mailbox.by_name(f"{peer}/{slot}").put_async(b"x", num_bytes))
        else:
            awaited[values[0]][0].wait()  # the other one holds what comes, and must live as long
    for message in sent:
        message.wait()


if __name__ == "__main__":
    main()
