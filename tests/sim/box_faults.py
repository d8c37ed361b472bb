"""Faults between members and a box, drawn from a seed."""

import random
from dataclasses import dataclass


@dataclass
class Faults:
    """The faults of this seed for messages and their senders; rates are per message, or per operation."""

    loss: float
    doubling: float
    delay_s: float
    member_crash: float
    server_crash: float
    pause: float

    @classmethod
    def drawn(cls, generator: random.Random) -> "Faults":
        def rate(most: float) -> float:
            return generator.choice([0.0, generator.uniform(0.0, most)])

        delay_s = generator.uniform(0.01, 1.5)
        return cls(rate(0.4), rate(0.5), delay_s, rate(0.06), rate(0.04), rate(0.02))

    def heal(self) -> None:
        self.loss = self.doubling = self.member_crash = self.server_crash = self.pause = 0.0
