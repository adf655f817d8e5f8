"""The PASTA interpreter, sans-I/O: threads, segments, positions, constraints, critical path."""

from pasta.interpreter.ahead import emit_text, forced_token, may_emit, may_emit_text, supposed, turn
from pasta.interpreter.budget import token_budget
from pasta.interpreter.interpreter import Interpreter
from pasta.interpreter.lending import allowed_freely, drive_lent, lend, set_aside, take_back
from pasta.interpreter.limits import UNBOUNDED, Constraint, ConstraintError, Limits
from pasta.interpreter.linearise import IGNORE, Linearised, TokenKind, chosen_among, linearise
from pasta.interpreter.reading import ReadingOrder, copy_until
from pasta.interpreter.repetition import RepetitionDetection
from pasta.interpreter.snapshot import Snapshot
from pasta.interpreter.thread import Action, End, Feed, Finish, Fork, Join, Mode, Path, Thread, Wait
from pasta.interpreter.trace import ThreadTrace, Trace

__all__ = [
    "IGNORE",
    "UNBOUNDED",
    "Action",
    "Constraint",
    "ConstraintError",
    "End",
    "Feed",
    "Finish",
    "Fork",
    "Interpreter",
    "Join",
    "Limits",
    "Linearised",
    "Mode",
    "Path",
    "ReadingOrder",
    "RepetitionDetection",
    "Snapshot",
    "Thread",
    "ThreadTrace",
    "TokenKind",
    "Trace",
    "Wait",
    "allowed_freely",
    "chosen_among",
    "copy_until",
    "drive_lent",
    "emit_text",
    "forced_token",
    "lend",
    "linearise",
    "may_emit",
    "may_emit_text",
    "set_aside",
    "supposed",
    "take_back",
    "token_budget",
    "turn",
]
