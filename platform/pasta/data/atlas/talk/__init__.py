"""Talk: what people ask of the atlas in their own words, one turn or several, with the answers."""

from pasta.data.atlas.talk.talks import Talk, grade_talk, sample_talk, sample_talks
from pasta.data.atlas.talk.wordings import TALK_SPLITS, TalkSplit

__all__ = ["TALK_SPLITS", "Talk", "TalkSplit", "grade_talk", "sample_talk", "sample_talks"]
