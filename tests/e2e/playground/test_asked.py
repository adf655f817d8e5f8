"""What the guides ask of a service is answered by one."""

import runpy

import pytest

from tests.support.guides import GUIDES, blocks, shell, workplace

ASKED = [block for guide in GUIDES for block in blocks(guide) if block.mark == "needs the service"]


@pytest.mark.parametrize("block", ASKED, ids=lambda block: block.place)
def test_what_needs_the_service_runs_against_it(block, url, tmp_path):
    text = block.text.replace("http://127.0.0.1:8000", url)
    if block.is_shell:
        assert shell(text, workplace(tmp_path)) or list(tmp_path.glob("*.json"))
        return
    file = tmp_path / "snippet.py"
    file.write_text(text)
    runpy.run_path(str(file))
