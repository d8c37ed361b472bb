"""Faults between members and a box, drawn from a seed."""

from dataclasses import dataclass, field
from random import Random

from tests.sim.script import Script

HEALED_S = 400.0  # from then on nothing fails


@dataclass(frozen=True)
class Away:
    """From one moment to another a member is cut off from the box."""

    index: int
    from_s: float
    until_s: float

    def __str__(self) -> str:
        return f"member {self.index} is cut off from the box from {self.from_s:.1f} s to {self.until_s:.1f} s"


@dataclass
class BoxFaults:
    """The faults of this seed for messages, their senders and the box; rates are per message, or per operation."""

    loss: float
    doubling: float
    delay_s: float
    member_crash: float
    member_pause: float
    server_crash: float
    memory_loss: float
    pause: float
    cuts: list[Away] = field(default_factory=list)
    joins_s: list[float] = field(default_factory=list)
    leaves_after: dict[int, int] = field(default_factory=dict)  # a member, its last update

    @classmethod
    def drawn(cls, script: Script, num_members: int, num_operations: int) -> "BoxFaults":
        draw = Random(script.seed)

        def rate(most: float) -> float:
            return draw.choice([0.0, draw.uniform(0.0, most)])

        delay_s = draw.uniform(0.01, 1.5)
        rates = rate(0.4), rate(0.5), delay_s, rate(0.06), rate(0.02), rate(0.04), rate(0.01) * 0.4, rate(0.02)
        faults = cls(*rates)
        for _ in range(draw.choice((0, 0, 1, 3))):
            begin_s = draw.uniform(0.0, 60.0)
            cut = Away(draw.randrange(num_members), begin_s, begin_s + draw.uniform(1.0, 60.0))
            faults.cuts += [cut] if script.keeps(str(cut)) else []
        for number in range(draw.choice((0, 0, 1, 2))):
            come_s = draw.uniform(1.0, 40.0)
            if script.keeps(f"member {num_members + number} comes after {come_s:.1f} s"):
                faults.joins_s.append(come_s)
        if draw.random() < 0.3:
            leaving, last = draw.randrange(num_members), draw.randrange(1, num_operations)
            if script.keeps(f"member {leaving} leaves after its update {last}"):
                faults.leaves_after[leaving] = last
        return faults

    def heal(self) -> None:
        self.loss = self.doubling = self.member_crash = self.member_pause = 0.0
        self.server_crash = self.memory_loss = self.pause = 0.0
        self.cuts.clear()

    def is_cut(self, index: int, now_s: float) -> bool:
        return any(cut.index == index and cut.from_s <= now_s < cut.until_s for cut in self.cuts)
