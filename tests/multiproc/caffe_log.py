"""A reader of Caffe's training log, as the scripts that people have for it read it: by its well-known words."""

import re
from dataclasses import dataclass, field
from datetime import datetime

_NUMBER = r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf))"
_HEAD = re.compile(r"^[IWEF](?:\d{4})?(\d{4} \d\d:\d\d:\d\d\.\d{6}) +(\d+) ([\w.]+(?::\d+)?)\] (.*)")
_ITERATION = re.compile(r"Iteration (\d+)")
_OUTPUT = re.compile(r"(Train|Test) net output #(\d+): (\S+) = " + _NUMBER)
_RATE = re.compile(r"lr = " + _NUMBER)
_SMOOTHED = re.compile(r"Iteration (\d+)(?: \(.*\))?, loss = " + _NUMBER)
_NET = re.compile(r"Testing net \(#(\d+)\)")


@dataclass
class ParsedLog:
    """Rows by phase, each with `NumIters`, `Seconds` and outputs; training rows with `LearningRate`."""

    train: list[dict[str, float]] = field(default_factory=list)
    test: list[dict[str, float]] = field(default_factory=list)
    smoothed: dict[int, float] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    """Every entry without its time and process, speeds left out."""


def parse_log(text: str) -> ParsedLog:
    """Entries whose heads are glog's; anything else is a further line of the entry above."""
    log = ParsedLog()
    started: datetime | None = None
    iteration, rate, net = -1, float("nan"), 0
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head is None:
            continue
        stamp = datetime.strptime(f"2024 {head[1]}", "%Y %m%d %H:%M:%S.%f")
        if "Solving" in head[4]:
            started = stamp
        log.lines.append(f"{line[0]} {head[3]}] " + re.sub(r"\(\S+ iter/s, \S+s/", "(", head[4]))
        if found := _ITERATION.search(head[4]):
            iteration = int(found[1])
        if iteration < 0 or started is None:
            continue
        row_time = (stamp - started).total_seconds()
        if found := _NET.search(head[4]):
            net = int(found[1])
        if found := _RATE.search(head[4]):
            rate = float(found[1])
            log.train[-1]["LearningRate"] = rate
        if found := _SMOOTHED.search(head[4]):
            log.smoothed[int(found[1])] = float(found[2])
        if found := _OUTPUT.search(head[4]):
            _add(log.train if found[1] == "Train" else log.test, iteration, row_time, net, found)
    return log


def _add(rows: list[dict[str, float]], iteration: int, seconds: float, net: int, found: re.Match[str]) -> None:
    if found[2] == "0":
        rows.append({"NumIters": iteration, "Seconds": seconds})
        if found[1] == "Test":
            rows[-1]["net"] = net
    rows[-1][found[3]] = float(found[4])
