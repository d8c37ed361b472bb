"""One rank of the conformance suite on TCP: a process of its own that reports as JSON lines.

`python -m tests.conformance.tcp_rank_program RANK KEY_FILE LISTENING_DESCRIPTOR PORT...`
"""

import json
import socket
import sys
from pathlib import Path

from samovar import _native
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.transports.keys import read_key
from samovar.transports.tcp import TcpTransport
from samovar.transports.tcp_listen import LOOPBACK
from samovar.transports.tcp_service import TcpConfig
from tests.conformance import cases
from tests.conformance.rank_program import TIMEOUT_S, run_case


def main() -> None:
    rank, key_file, descriptor, *ports = sys.argv[1:]
    _native.die_with_parent()
    group = Group(int(rank), len(ports))
    addresses = [(LOOPBACK, int(port)) for port in ports]
    config = TcpConfig("conformance", TIMEOUT_S)
    transport = TcpTransport(group, config, read_key(Path(key_file)), socket.socket(fileno=int(descriptor)), addresses)
    chosen = [case for case in cases.cases() if case.executor == "python"]
    data = transport.open_window("data", max(case.size * int(case.dtype[-2:]) // 8 for case in chosen), 0)
    reports = [report for case in chosen for report in run_case(transport, data, case)]
    transport.close(Deadline.after(TIMEOUT_S))
    sys.stdout.writelines(json.dumps(report) + "\n" for report in reports)


if __name__ == "__main__":
    main()
