"""Measures where a step's time goes: sampling, training, or neither."""

import time


class StepClock:
    """Times of rank 0, in seconds of ``time.perf_counter``. A step is the time from one batch's end of training to the
    next one's."""

    def __init__(self) -> None:
        self._ended: float | None = None
        self._began = 0.0
        self._tokens = 0
        self._last: dict[str, float] = {}
        self._rolled: tuple[float, float] = (0.0, 0.0)

    def training_ended(self) -> None:
        """Note that training on a batch has ended, or that none has begun yet."""
        now = time.perf_counter()
        if self._ended is not None:
            seconds = max(now - self._began, 1e-9)
            waited = self._began - self._ended
            # Time in which answers were sampled and nothing trained.
            rolled = max(0.0, min(self._rolled[1], self._began) - max(self._rolled[0], self._ended))
            self._last = {
                "training_tokens_per_second": self._tokens / seconds,
                "idle_share": max(waited - rolled, 0.0) / max(now - self._ended, 1e-9),
            }
        self._ended = now

    def training_began(self, tokens: int) -> None:
        """Note that a batch of so many tokens has arrived."""
        self._began, self._tokens = time.perf_counter(), tokens

    def figures(self, began: float, ended: float, tokens: int) -> dict[str, float]:
        """Figures of a batch of ``tokens`` that was sampled from ``began`` to ``ended``, and of the training before
        it."""
        self._rolled = (began, ended)
        return {"rollout_tokens_per_second": tokens / max(ended - began, 1e-9), **self._last}
