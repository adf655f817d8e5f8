"""All task families by name, those with independent parts first."""

from collections.abc import Mapping

from pasta.data.atlas.conclusions import Compare, Count, Encyclopedia
from pasta.data.atlas.descriptions import (
    Child,
    ElementRange,
    Guides,
    Mixed,
    Planets,
    Postcards,
    Profiles,
    Selves,
    Sheets,
)
from pasta.data.atlas.family import Family
from pasta.data.atlas.ledgers import Bus, Plant, Shop, Trip
from pasta.data.atlas.quiz import Quiz
from pasta.data.atlas.walks import Bag, Chain, Circle, CountDown, Letters, Tower
from pasta.errors import UserError

INDEPENDENT: tuple[Family, ...] = (
    Profiles(), Mixed(), Sheets(), Child(), Selves(), Postcards(), Guides(), Planets(), ElementRange(), Quiz(),
    Count(), Compare(), Encyclopedia(),
)  # fmt: skip
DEPENDENT: tuple[Family, ...] = (
    Shop(), Bus(), Plant(), Trip(), CountDown(), Chain(), Circle(), Letters(), Bag(), Tower(),
)  # fmt: skip
FAMILIES: dict[str, Family] = {family.name: family for family in (*INDEPENDENT, *DEPENDENT)}


def weights_of(mixture: Mapping[str, float]) -> list[float]:
    """The weight of each of ``FAMILIES`` in their order: its own, multiplied by ``mixture`` where that names it.

    Raises UserError for a family that is none, and if no family has a weight.
    """
    unknown = next((name for name in mixture if name not in FAMILIES), None)
    if unknown is not None:
        raise UserError(f"mixture: unknown family {unknown!r}; expected some of {', '.join(FAMILIES)}")
    weights = [family.weight * mixture.get(name, 1.0) for name, family in FAMILIES.items()]
    if not sum(weights) > 0:
        raise UserError("mixture: every family has weight 0; expected one at least above it")
    return weights
