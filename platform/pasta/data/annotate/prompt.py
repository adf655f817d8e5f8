"""The teacher's prompt: the rules of the language, and seven worked examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pasta.data.instructions import Instruction
from pasta.lang import strip

SYSTEM = r"""You mark the parts of an answer that can be written at the same time.

You are given a conversation and the answer that ends it. Copy the answer and put tags into it:

<promise topic="TOPIC" tokens="N"/><async>PART</async>
    PART is a stretch of the answer that somebody could write who has seen the conversation, TOPIC, and the answer up
    to the promise without the insides of earlier parts; and nothing of PART is needed to write what follows it, up to
    the next <sync/>. TOPIC is a phrase of one to six words that says what PART is about. N is the length of PART in
    tokens, estimated in tens: 10, 20, 30 and so on.
<sync/>
    From here on the text needs what earlier parts say: it sums them up, compares them, counts them, refers to them.

Rules:
1. Without its tags your text must be the given answer, character by character. Correct nothing, leave nothing out,
   add nothing, also no code fence around it and no remark before or after it.
2. Mark whatever is independent in its content, however it is laid out: items of a list, paragraphs, sections,
   sentences in a row, files of a program.
3. Leave unmarked what depends on the step before it: calculations, proofs, stories, instructions in which one step
   uses the outcome of the last. If no part is independent, give the answer back without tags.
4. A part should be worth the effort: at least about ten words. Mark no lone part that nothing follows: nobody would
   be writing at the same time.
5. Begin a part with the space or line break in front of it where that is possible, and close it right after its last
   character. List markers and titles may stand before the promise or inside the part.
6. Put <sync/> directly before the first text that needs earlier parts, and nowhere else.
7. A part may hold parts of its own. Its <sync/> waits for its own parts only.
8. If the answer itself contains one of the character sequences <promise  />  <async>  </async>  <sync/>, write a
   backslash before it: <br\/> stands for a literal <br/>."""

_ANSWER = "\n\nANSWER\n\n"


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """A question with its annotated answer, in text form; the plain answer is what it strips to."""

    question: str
    annotated: str


EXAMPLES: tuple[WorkedExample, ...] = (
    WorkedExample(
        "Name three uses of beeswax, each with a sentence or two.",
        "Beeswax has many uses. Here are three:\n"
        '\n1.<promise topic="candles" tokens="30"/><async> **Candles.** It burns slowly and hardly drips, so candles'
        " made of it last long and leave little soot.</async>"
        '\n2.<promise topic="polish" tokens="30"/><async> **Polish.** Rubbed into wood or leather, it fills fine'
        " scratches and keeps water out.</async>"
        '\n3.<promise topic="wraps" tokens="30"/><async> **Food wraps.** Cloth soaked in melted wax clings to a bowl'
        " and can be washed and used again.</async>",
    ),
    WorkedExample(
        "I can spend one free afternoon in Basel or in Bern. What would you do?",
        '<promise topic="an afternoon in Basel" tokens="40"/><async>In Basel I would look at the old masters in the'
        " Kunstmuseum and then cross the Rhine on one of the ferries that only the current drives.</async>"
        '<promise topic="an afternoon in Bern" tokens="40"/><async> In Bern I would walk under the arcades to the Bear'
        " Park and watch the river Aare from the Nydegg bridge.</async>"
        "<sync/> Both are walks along a river; the difference is the museum, so rain decides for Basel.",
    ),
    WorkedExample(
        "A shop sells pencils at 4 for 3 euros. What do 20 pencils cost after a discount of 10 percent?",
        "Twenty pencils are 20 / 4 = 5 packs. Five packs cost 5 × 3 = 15 euros. Ten percent of 15 euros is 1.50 euros,"
        " so the price is 15 − 1.50 = 13.50 euros.",
    ),
    WorkedExample(
        "Show me how to greet a user in HTML and in Python.",
        'Two small files do it.\n\n<promise topic="HTML version" tokens="50"/><async>The page asks the browser to break'
        " the line after the greeting:\n\n```html\n<p>Hello, Ada!<br\\/>Welcome back.</p>\n```</async>\n\n"
        '<promise topic="Python version" tokens="40"/><async>The script asks for the name before it greets:\n\n'
        '```python\nname = input("Your name: ")\nprint(f"Hello, {name}!")\n```</async>\n\n'
        "Save them as hello.html and hello.py.",
    ),
    WorkedExample(
        "Plan a weekend in two parts: what to pack, and what to cook. Keep it short and tell me the total weight.",
        '<promise topic="packing list" tokens="90"/><async>## To pack\n'
        '<promise topic="clothes to pack" tokens="20"/><async>\n- Clothes: a rain jacket, two shirts, warm socks and'
        " a hat; 2 kg altogether.</async>"
        '<promise topic="tools to pack" tokens="20"/><async>\n- Tools: a gas stove, one pot, a knife and two spoons;'
        " 1 kg altogether.</async><sync/>\n\nPacked, this makes 3 kg.</async>\n\n"
        '<promise topic="meals" tokens="40"/><async>## To cook\n\nOn Saturday pasta with dried tomatoes, on Sunday'
        " oats with apples. The food for both days weighs another 2 kg.</async>"
        "<sync/>\n\nIn total you carry 5 kg.",
    ),
    WorkedExample(
        "Tell me in one paragraph how a heron, a kingfisher and an otter catch fish.",
        "All three wait for the right moment."
        '<promise topic="heron" tokens="30"/><async> The heron stands still in shallow water until a fish swims by and'
        " then thrusts its bill forward like a spear.</async>"
        '<promise topic="kingfisher" tokens="30"/><async> The kingfisher watches from a branch and dives head first,'
        " its eyes protected by a third eyelid.</async>"
        '<promise topic="otter" tokens="30"/><async> The otter swims after its prey and feels its movements with its'
        " whiskers when the water is muddy.</async>",
    ),
    WorkedExample(
        "What is the capital of Mongolia?",
        "The capital of Mongolia is Ulaanbaatar.",
    ),
)


def prompt_for(record: Instruction) -> list[dict[str, str]]:
    """The chat messages that ask for the annotation of one record: rules, examples, the record."""
    messages = [{"role": "system", "content": SYSTEM}]
    for example in EXAMPLES:
        asked = ({"role": "user", "content": example.question},)
        messages += [
            {"role": "user", "content": task_text(asked, strip(example.annotated))},
            {"role": "assistant", "content": example.annotated},
        ]
    return [*messages, {"role": "user", "content": task_text(record.messages, record.answer)}]


def ask_again(messages: Sequence[dict[str, str]], annotated: str, fault: str) -> list[dict[str, str]]:
    """The messages that show a teacher its fault and ask once more."""
    again = (
        f"That cannot be used: {fault}. Give the whole answer again, with tags, and otherwise character by character"
        " as it was given to you."
    )
    return [*messages, {"role": "assistant", "content": annotated}, {"role": "user", "content": again}]


def task_text(messages: Sequence[Mapping[str, str]], answer: str) -> str:
    """A conversation and the answer that ends it, as one message."""
    turns = "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in messages)
    return f"CONVERSATION\n\n{turns}{_ANSWER}{answer}"


def read_task(content: str) -> tuple[str, str] | None:
    """The last message of the conversation, and what follows it, in a ``task_text``; None if it is none."""
    conversation, is_task, answer = content.partition(_ANSWER)
    return (conversation.rpartition("[user]\n")[2], answer) if is_task else None
