"""The commands in README.md, CONTRIBUTING.md and docs/ run.

A block without a mark runs as it stands. ``# takes …`` runs too, and takes longer. ``# needs the service`` runs against
one service (playground/test_asked.py). Any other ``# needs …`` is not run, but read (tests/docs/test_commands.py).
"""

import runpy

import pytest

from tests.support.guides import GUIDES, blocks, shell, workplace


def by_guide(chosen):
    """Parametrise by guide, those of them that have such blocks."""
    guides = [guide for guide in GUIDES if any(chosen(block) for block in blocks(guide))]
    return pytest.mark.parametrize("guide", guides, ids=lambda guide: guide.stem)


def runs(block):
    return block.is_shell and (not block.mark or block.mark.startswith("takes "))


@pytest.mark.timeout(1500)
@by_guide(runs)
def test_the_commands_of_a_guide_run_in_their_order(guide, tmp_path):
    folder = workplace(tmp_path)
    for block in filter(runs, blocks(guide)):
        shell(block.text, folder, timeout_s=900)


def is_snippet(block):
    return block.language == "python" and not block.mark


@by_guide(is_snippet)
def test_the_snippets_of_a_guide_run_in_their_order(guide, tmp_path):
    file = tmp_path / "snippets.py"
    file.write_text("\n".join(block.text for block in filter(is_snippet, blocks(guide))))
    runpy.run_path(str(file))
