"""``pasta stand-in``: serve a stand-in for the large models that a run asks."""

from pasta.errors import UserError
from pasta.judges.stand_in import StandIn, StandInServer


def serve_stand_in(port: int, judge_error: float) -> int:
    """Serve until Ctrl-C. Raises UserError for a probability that is none, or a port that is taken."""
    try:
        server = StandInServer(StandIn(judge_error=judge_error), port)
    except (ValueError, OSError, OverflowError) as error:
        raise UserError(f"stand-in on port {port}: {error}") from None
    with server:
        print(f"teacher and judges at {server.url}; Ctrl-C ends it", flush=True)
        server.serve_forever()
    return 0
