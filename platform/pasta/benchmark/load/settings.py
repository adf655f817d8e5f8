"""The settings of a measurement under load. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path

from pasta.benchmark.options import check_interval, check_least
from pasta.errors import UserError

#: Parts in the order in which they are measured; the soak only runs when it is asked for.
SCENARIOS = ("latency", "breakdown", "throughput", "speedup", "spread", "kill", "disconnect", "refuse")
SOAK = "soak"
#: The same holds for hostile requests.
HOSTILE = "hostile"
#: And for another server beside the service.
PEER = "peer"


@dataclass(frozen=True)
class LoadSettings:
    """What to measure, checked on construction. Raises ``UserError`` naming the option that is wrong.

    ``clients`` are the numbers of clients at once, ``prompts`` those that each of these asks; every answer has at
    most ``max_tokens``. ``rounds`` repeats latency, throughput and kills; ``pairs`` is the number of prompts of
    breakdown, speedup and spread, and of answers that are left; ``refusals`` are those that are timed. ``soak`` is
    the number of requests of the soak, by ``soak_clients``, with a process killed every ``kill_every_s`` seconds
    (0: none); after ``soak_s`` seconds it sends no more. ``hostile`` is the number of hostile requests. ``peer`` is the
    URL of another server to compare with, ``peer_model`` its model (``None``: its first); beside it prompts are asked
    in conversations of ``turns``, each ``think_s`` seconds after the answer before it.
    """

    out: Path
    scenarios: tuple[str, ...] = SCENARIOS
    clients: tuple[int, ...] = (1, 8, 32)
    prompts: int = 48
    max_tokens: int = 1024
    rounds: int = 2
    pairs: int = 24
    refusals: int = 600
    soak: int = 2000
    soak_clients: int = 12
    soak_seed: int = 0
    soak_s: float | None = None
    kill_every_s: float = 15.0
    hostile: int = 2000
    hostile_seed: int = 0
    peer: str | None = None
    peer_model: str | None = None
    turns: int = 1
    think_s: float = 0.0
    timeout_s: float = 180.0
    fresh: bool = False

    def __post_init__(self) -> None:
        if not self.clients or min(self.clients) < 1:
            raise UserError(f"--clients: {','.join(map(str, self.clients))}, expected positive integers")
        check_least(self, 1, "rounds", "max_tokens", "refusals", "soak", "soak_clients", "hostile", "turns")
        check_interval(self, "prompts", "pairs")
        if self.kill_every_s < 0:
            raise UserError(f"--kill-every: {self.kill_every_s:g}, expected seconds, or 0 for no kills")
        if self.soak_s is not None and not self.soak_s > 0:
            raise UserError(f"--soak-seconds: {self.soak_s:g}, expected a positive number of seconds")
        if self.peer is not None and not self.peer.startswith(("http://", "https://")):
            raise UserError(f"--peer: {self.peer!r}, expected a URL, such as http://127.0.0.1:8080")
        if self.peer_model is not None and self.peer is None:
            raise UserError("--peer-model: expected with --peer, whose model it is")
        if self.turns > 1 and self.peer is None:
            raise UserError(
                f"--turns: {self.turns}, expected with --peer: conversations are held beside another server"
            )
        if not 0 <= self.think_s < float("inf"):
            raise UserError(f"--think: {self.think_s:g}, expected seconds, or 0 for none")
        if self.think_s and self.turns == 1:
            raise UserError(
                f"--think: {self.think_s:g}, expected with --turns: it is the time between two of them"
            )
        if self.prompts % self.turns:
            raise UserError(f"--turns: {self.turns}, expected a divisor of --prompts, {self.prompts}")
        if not self.timeout_s > 0:
            raise UserError(f"--timeout: {self.timeout_s:g}, expected a positive number of seconds")

    @property
    def held_by(self) -> tuple[int, ...] | None:
        """The numbers of clients if they decide which prompts a block has: in conversations each has its own."""
        return self.clients if self.turns > 1 else None

    @property
    def prompts_needed(self) -> int:
        """How many different prompts are asked. Conversations are held once: a server would find what it has answered
        before."""
        return self.prompts * (self.rounds * len(self.clients) if self.turns > 1 else 1)
