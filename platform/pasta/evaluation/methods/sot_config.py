"""What Skeleton-of-Thought is told: the ``sot`` section of a method in ``configs/evaluate/*.yaml``."""

from dataclasses import dataclass

from pasta.data.skeletons import STYLES, SkeletonPrompts, Style


@dataclass(frozen=True, slots=True)
class SotSection:
    """How skeletons and points are asked for.

    ``style`` chooses the words: ``prompted`` for a model that follows instructions, ``trained`` for one that was
    trained on what ``jobs.annotate`` makes with ``annotator: sot``; ``prompts`` gives words of your own instead. A
    skeleton that is cut at ``max_skeleton_tokens`` is none; a point's text ends at ``max_point_tokens``.
    """

    style: Style = "prompted"
    prompts: SkeletonPrompts | None = None
    max_skeleton_tokens: int = 256
    max_point_tokens: int = 512

    def __post_init__(self) -> None:
        for name in ("max_skeleton_tokens", "max_point_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected a positive integer")

    @property
    def words(self) -> SkeletonPrompts:
        """The words to use."""
        return self.prompts or STYLES[self.style]
