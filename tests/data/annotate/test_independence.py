"""What the judge of independence is asked: every stretch that cannot see an earlier one."""

from pasta.data.annotate.independence import Stretch, questions_for, stretches_of
from pasta.data.annotate.prompt import EXAMPLES, read_task
from pasta.lang import Codec, parse, strip
from tests.support.tokenizers import byte_level

CODEC = Codec(byte_level())
ANNOTATED = (
    'Two drinks:\n-<promise topic="tea" tokens="10"/><async> Tea</async>'
    '\n-<promise topic="coffee" tokens="10"/><async> Coffee</async>. Hot.<sync/> Both.'
)


def stretches(annotated: str) -> list[Stretch]:
    return stretches_of(parse(annotated), CODEC)


def test_chunks_do_not_see_each_other_and_a_sync_shows_them() -> None:
    assert stretches(ANNOTATED) == [
        Stretch("Two drinks:\n-", ()),
        Stretch(" Tea", ()),
        Stretch("\n-", ()),
        Stretch(" Coffee", (1,)),
        Stretch(". Hot.", (1, 3)),
        Stretch(" Both.", ()),
    ]


def test_text_without_a_sync_does_not_see_the_chunks_before_it() -> None:
    assert stretches(ANNOTATED.replace("<sync/>", ""))[-1] == Stretch(". Hot. Both.", (1, 3))


def test_stretches_make_up_the_answer() -> None:
    for example in EXAMPLES:
        assert "".join(each.text for each in stretches(example.annotated)) == strip(example.annotated)


def test_the_judge_reads_conversation_stretches_and_what_is_hidden_from_which() -> None:
    system, user = questions_for([{"role": "user", "content": "Which?"}], stretches(ANNOTATED))
    assert "yes if it needs a hidden stretch" in system["content"]
    asked, rest = read_task(user["content"]) or ("", "")
    assert asked == "Which?"
    assert '<stretch number="4"> Coffee</stretch>' in rest
    assert rest.endswith("QUESTIONS\n\n4: hidden from it: 2\n5: hidden from it: 2, 4")
