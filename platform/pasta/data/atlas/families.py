"""All task families by name, those with independent parts first."""

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

INDEPENDENT: tuple[Family, ...] = (
    Profiles(), Mixed(), Sheets(), Child(), Selves(), Postcards(), Guides(), Planets(), ElementRange(), Quiz(),
    Count(), Compare(), Encyclopedia(),
)  # fmt: skip
DEPENDENT: tuple[Family, ...] = (
    Shop(), Bus(), Plant(), Trip(), CountDown(), Chain(), Circle(), Letters(), Bag(), Tower(),
)  # fmt: skip
FAMILIES: dict[str, Family] = {family.name: family for family in (*INDEPENDENT, *DEPENDENT)}
