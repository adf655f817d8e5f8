"""Replay: decode given documents with their tokens forced, to time real thread structures at any model size.

The model's output is computed and ignored: the cost of every step is real, the weights may be random.
"""

from collections.abc import Sequence

from pasta.engine.engine import Engine
from pasta.engine.request import Request, Result
from pasta.errors import UserError
from pasta.interpreter import UNBOUNDED


def replay(engine: Engine, prompt_ids: Sequence[int], response_ids: Sequence[int], parallel: bool) -> Result:
    """Decode a response (storage order, end-of-text last) with its tokens forced.

    ``parallel`` false takes a response without tags. Raises ``UserError`` if it does not fit into the
    engine's context, ``ConstraintError`` if it is not well-formed.
    """
    context = min(engine.config.slot_tokens, engine.loaded.max_positions)
    if len(prompt_ids) + len(response_ids) >= context:
        raise UserError(
            f"replay: prompt and answer hold {len(prompt_ids) + len(response_ids)} tokens, but the engine's context "
            f"holds {context}; raise slot_tokens or leave the document out"
        )
    request = Request(prompt_ids=prompt_ids, limits=UNBOUNDED, parallel=parallel, forced=response_ids)
    return engine.generate(request)
