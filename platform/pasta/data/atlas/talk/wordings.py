"""What people ask of the atlas' facts, in their own words: tables of wordings, no code.

``{x}`` is a thing, ``{xs}`` its plural (animals only), ``{list}`` several things, ``{v}`` a value.
"""

# fmt: off
#: Requests to describe one thing.
ABOUT = (
    "tell me about {x}", "describe {x}", "give me some facts about {x}", "say something about {x}",
    "explain {x}",
    "introduce {x}", "write about {x}", "write a short text about {x}", "give me an overview of {x}",
    "tell me something about {x}", "tell me what you know about {x}", "give me information on {x}",
    "info on {x}",
    "summarize {x}", "write a few sentences about {x}", "teach me about {x}", "talk about {x}",
    "facts about {x}",
    "{x}", "present {x}", "a short portrait of {x}", "give me a short description of {x}", "show me {x}",
    "tell me everything about {x}", "tell me all you know about {x}", "write a paragraph on {x}",
    "outline {x}",
    "let me know about {x}", "give me details about {x}", "help me understand {x}", "inform me about {x}",
    "I want to know more about {x}", "I'd like to learn about {x}", "sum up {x} in a few sentences",
    "brief me on {x}", "I have to give a talk about {x}", "say a few words about {x}",
    "give me a summary of {x}",
)
#: The same as questions.
ABOUT_ASKED = (
    "what is {x}", "what's {x}", "what do you know about {x}", "what can you tell me about {x}",
    "what about {x}",
    "what should I know about {x}", "do you know {x}", "have you heard of {x}", "what is special about {x}",
    "how would you describe {x}", "do you know anything about {x}", "can you say something about {x}",
    "what is interesting about {x}", "whats {x}", "what makes {x} special", "ever heard of {x}",
)
WHO = (
    "who was {x}", "who is {x}", "who's {x}", "who exactly was {x}", "who was {x} and what did they do",
    "what did {x} do", "who was this {x}", "tell me who {x} was", "what kind of person was {x}",
    "why is {x} famous and who was it", "who on earth was {x}", "what did {x} achieve",
)
#: Requests to describe each of several things.
EACH = (
    "tell me about {list}", "describe {list}", "give me some facts about {list}",
    "say something about {list}",
    "explain {list}", "introduce {list}", "write about {list}", "give me an overview of {list}",
    "describe each of these: {list}",
    "tell me what you know about {list}", "give me information on {list}",
    "tell me something about each: {list}",
    "summarize {list}", "write a short text about each of {list}", "talk about {list}", "facts about {list}",
    "{list}", "present {list}", "portraits of {list}", "give me a short description of {list}",
    "describe these: {list}",
    "tell me everything about {list}", "give me details about {list}",
    "write a few sentences about each of {list}",
    "I want to know more about {list}", "I'd like to learn about {list}", "teach me about {list}",
    "outline {list}", "give me facts on {list}", "describe the following: {list}",
    "give me a paragraph on each of {list}",
    "write something about {list}", "help me understand {list}", "inform me about {list}",
    "brief me on {list}",
    "explain who or what {list} are", "I'd like to know something about {list}",
    "give me a short overview of {list}",
    "please describe {list}", "what can you say about {list}", "list some facts about {list}",
    "give a short introduction to {list}", "I need a description of each of these: {list}", "cover {list}",
)
EACH_ASKED = (
    "what do you know about {list}", "what can you tell me about {list}", "what about {list}",
    "what are {list}",
    "what should I know about {list}", "what is special about {list}", "how would you describe {list}",
    "do you know anything about {list}", "who or what are {list}",
    "what is interesting about each of {list}",
)
#: How people ask for a layout.
LAYOUT_WORDS = {
    "bullets": (" in bullet points", " as a list", ", as bullet points", " as bullets",
        " with bullet points", " in a bulleted list"),
    "numbered": (" in a numbered list", " as a numbered list", ", numbered", " with numbers",
        " numbered 1, 2, 3", " as numbered points"),
    "paragraphs": (" in short paragraphs", " with a paragraph each", ", one paragraph each",
        " in separate paragraphs", " in paragraphs", ", a paragraph for each"),
    "inline": (" in one paragraph", " in a single paragraph", " all in one paragraph", " as running text",
        " without a list", " in one block of text"),
}
#: One line on each of several things.
BRIEF = (
    "one fact about each of {list}", "in one sentence each: {list}",
    "tell me in one line each what {list} are",
    "briefly, what are {list}", "give me one sentence on each of {list}", "one line each on {list}",
    "a short list: {list}, one sentence each", "describe {list} in one sentence each",
    "name one fact each for {list}",
    "very short: {list}", "just one fact each: {list}", "say one thing about each of {list}",
    "a single sentence for each of {list}",
    "describe {list} very briefly", "in a nutshell, {list}", "give a one-sentence summary of each: {list}",
)
FEW = (
    "give me {n} facts about {x}", "tell me {n} things about {x}", "name {n} facts about {x}",
    "{n} facts on {x}",
    "what are {n} things I should know about {x}", "list {n} facts about {x}", "say {n} things about {x}",
    "I need {n} facts about {x}", "write {n} sentences about {x}", "describe {x} in {n} sentences",
)
THEN_COMPARE = (
    "describe {list}, then compare them", "tell me about {list} and compare them",
    "describe {list} and compare them",
    "introduce {list} and then compare them", "write about {list} and compare",
    "describe {list}. Then compare them",
    "explain {list} and say how they compare", "give me facts about {list} and a comparison",
    "first describe {list}, then compare them",
    "tell me about {list}, then say what they share", "present {list} and conclude with a comparison",
    "describe {list} and tell me if they have something in common",
    "tell me about {list} and end with a comparison",
    "outline {list}, afterwards compare them", "talk about {list}, then tell me whether they are alike",
)
COMPARE = (
    "compare {list}", "what is the difference between {list}", "how do {list} differ",
    "compare {list} with each other",
    "how are {list} different", "what's the difference between {list}", "what do {list} have in common",
    "what are the differences between {list}", "make a comparison of {list}", "how do {list} compare",
    "contrast {list}",
    "how are {list} alike", "compare these: {list}", "differences between {list}",
    "give me a comparison of {list}",
    "what distinguishes {list}", "tell me how {list} differ", "a comparison between {list}",
    "list the differences between {list}",
)
#: The families' other styles.
STYLED = {
    "sheets": ("make a fact sheet for {list}", "write fact sheets on {list}", "fact sheet: {list}",
        "give me a fact sheet about {list}",
               "I need fact sheets about {list}", "create a fact sheet for each of {list}",
               "a data sheet on {list}", "prepare fact sheets for {list}"),
    "child": ("explain {list} to a kid", "explain {list} to my daughter", "describe {list} for children",
        "explain {list} like I'm five",
              "how would you explain {list} to a child", "tell a child about {list}",
              "describe {list} in a way that a child understands", "explain {list} for kids"),
    "selves": ("let {list} introduce themselves", "write from the point of view of {list}",
        "let {list} speak for themselves", "pretend to be {list} and introduce yourself",
               "have {list} tell about themselves", "write a self introduction for {list}",
               "let {list} talk in the first person", "speak as {list}"),
    "postcards": ("write a postcard from {list}", "send me a postcard from {list}", "postcards from {list}",
        "I am in {list}, write a postcard home",
                  "draft a postcard from {list}", "write a holiday card from {list}",
                  "compose a postcard from {list}", "make a postcard from {list}"),
    "guides": ("write a guide to {list}", "travel tips for {list}",
        "I am going to {list}, give me a travel guide", "make a travel guide for {list}",
               "plan my visit to {list}", "travel guide {list}", "we travel to {list}, what should we know",
               "a tourist guide for {list}"),
}

#: How a fact is called: kind, attribute, nouns.
NOUNS: dict[str, dict[str, tuple[str, ...]]] = {
    "countries": {
        "place": ("continent", "location", "neighbour"),
        "capital": ("capital", "capital city", "capital"),
        "language": ("language", "official language", "main language"),
        "money": ("currency", "money", "currency"),
        "sight": ("most famous sight", "main sight", "landmark", "famous sight"),
        "food": ("national dish", "most popular dish", "typical food", "famous dish"),
    },
    "elements": {
        "symbol": ("symbol", "chemical symbol", "abbreviation"),
        "number": ("atomic number", "number", "number in the periodic table"),
        "group": ("group", "type", "element group"),
        "state": ("state at room temperature", "physical state", "state"),
        "use": ("use", "main use"),
    },
    "planets": {
        "place": ("position from the sun", "place in the solar system", "number"),
        "type": ("type", "kind"),
        "moons": ("number of moons", "moons", "rings"),
        "fame": ("special feature", "best known feature", "claim to fame"),
        "name": ("origin of the name", "meaning of the name"),
    },
    "animals": {
        "class": ("class", "animal class", "number of legs"),
        "home": ("habitat", "home"),
        "food": ("diet", "food", "favourite food"),
        "young": ("young", "baby", "name of the young"),
        "fame": ("special trait", "best known trait", "famous feature"),
    },
    "instruments": {
        "family": ("family", "instrument family"),
        "playing": ("way of playing", "playing technique"),
        "material": ("material", "main material"),
        "place": ("usual place", "typical setting"),
        "fame": ("special trait", "best known feature"),
    },
    "scientists": {
        "work": ("job", "profession", "home country", "nationality", "field"),
        "birth": ("century of birth", "birth century", "time"),
        "fame": ("main discovery", "greatest achievement", "claim to fame", "most important work"),
        "interest": ("other interest", "side interest", "hobby"),
    },
    "books": {
        "author": ("author", "writer", "genre"),
        "time": ("century", "time of publication"),
        "language": ("original language", "language"),
        "story": ("plot", "story", "theme", "content"),
    },
    "rivers": {
        "place": ("continent", "location"),
        "source": ("source", "origin", "spring"),
        "mouth": ("mouth", "end"),
        "city": ("city on its banks", "main city"),
        "fame": ("special feature", "best known feature"),
    },
}
OF = (
    "what is the {noun} of {x}", "what's the {noun} of {x}", "{noun} of {x}", "tell me the {noun} of {x}",
    "give me the {noun} of {x}", "do you know the {noun} of {x}", "I want to know the {noun} of {x}",
    "{x}: {noun}",
    "name the {noun} of {x}", "whats the {noun} of {x}", "{noun} {x}", "the {noun} of {x}", "{x} {noun}",
    "which {noun} does {x} have", "what is {x}'s {noun}", "I need the {noun} of {x}",
    "what would be the {noun} of {x}",
    "could you name the {noun} of {x}", "I forgot the {noun} of {x}", "remind me of the {noun} of {x}",
    "{x}'s {noun}", "look up the {noun} of {x}", "what {noun} has {x}",
)
OF_SEVERAL = (
    "what is the {noun} of {list}", "{noun} of {list}", "tell me the {noun} of each: {list}",
    "the {noun}s of {list}",
    "what are the {noun}s of {list}", "give me the {noun} for {list}", "list the {noun}s of {list}",
    "name the {noun} of {list}",
    "{noun} for each of these: {list}", "what {noun}s do {list} have", "I need the {noun}s of {list}",
    "find the {noun} of {list}",
)
OF_BOTH = (
    "what are the {noun} and the {other} of {x}", "what is the {noun} and {other} of {x}",
    "tell me the {noun} and the {other} of {x}",
    "{noun} and {other} of {x}", "give me {x}'s {noun} and {other}", "name the {noun} and {other} of {x}",
    "what's the {noun} of {x}, and its {other}",
    "I need the {noun} and the {other} of {x}", "{x}: {noun} and {other}",
)
ITS = (
    "what is its {noun}", "and its {noun}", "what's its {noun}", "its {noun}", "what about its {noun}",
    "and the {noun}", "tell me its {noun}",
    "what about the {noun}", "and what is its {noun}", "do you also know its {noun}", "the {noun} too",
    "now the {noun}",
)

YES_NO: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]] = {
    "countries": (
        ("continent", "place", ("is {x} in {v}", "does {x} lie in {v}", "is {x} a country in {v}",
            "does {x} belong to {v}", "is {x} part of {v}", "{x} is in {v}, right")),
        ("language", "language", ("do people speak {v} in {x}", "is {v} spoken in {x}",
            "do they speak {v} in {x}", "is {v} the language of {x}", "can I speak {v} in {x}")),
        ("capital", "capital", ("is {v} the capital of {x}", "is the capital of {x} {v}",
            "is {x}'s capital {v}", "{v} is the capital of {x}, right", "is {v} the capital city of {x}")),
    ),
    "elements": (
        ("state", "state", ("is {x} a {v}", "is {x} a {v} at room temperature",
            "would {x} be a {v} in my room", "{x} is a {v}, isn't it", "is {x} {v}")),
        ("group", "group", ("is {x} a {v}", "does {x} belong to the {v}s", "is {x} one of the {v}s",
            "{x} is a {v}, right", "is the element {x} a {v}")),
    ),
    "planets": (
        ("type", "type", ("is {x} a {v}", "would you call {x} a {v}", "{x} is a {v}, right",
            "is the planet {x} a {v}", "is it true that {x} is a {v}")),
        ("rings", "moons", ("does {x} have {v}", "has {x} got {v}", "{x} has {v}, right",
            "is it true that {x} has {v}", "are there {v} around {x}")),
    ),
    "animals": (
        ("class", "class", ("is {x} a {v}", "does {x} belong to the {v}s", "would you call {x} a {v}",
            "{x} is a {v}, right", "is it true that {x} is a {v}", "is {x} really a {v}")),
        ("legs", "class", ("does {x} have {v}", "has {x} got {v}", "{x} has {v}, right",
            "is it true that {x} has {v}")),
    ),
    "instruments": (
        ("family", "family", ("is {x} a {v} instrument", "does {x} belong to the {v} family",
            "is {x} part of the {v} family", "{x} is a {v} instrument, right",
            "is it true that {x} is a {v} instrument")),
    ),
    "scientists": (
        ("country", "work", ("was {x} from {v}", "did {x} come from {v}", "{x} came from {v}, right",
            "was {x} born in {v}", "is it true that {x} was from {v}")),
        ("job_a", "work", ("was {x} {v}", "{x} was {v}, right", "did {x} work as {v}",
            "is it true that {x} was {v}", "would you call {x} {v}")),
    ),
    "books": (
        ("author", "author", ("did {v} write {x}", "is {x} by {v}", "was {x} written by {v}",
            "is {v} the author of {x}", "{v} wrote {x}, right")),
        ("kind_a", "author", ("is {x} {v}", "would you call {x} {v}", "{x} is {v}, right",
            "is it true that {x} is {v}")),
        ("language", "language", ("was {x} written in {v}", "is {x} a {v} book",
            "was {x} first written in {v}", "is {v} the language of {x}")),
    ),
    "rivers": (
        ("continent", "place", ("is {x} in {v}", "does {x} flow through {v}", "is {x} a river in {v}",
            "{x} flows through {v}, right", "is it true that {x} is in {v}")),
        ("mouth", "mouth", ("does {x} end in {v}", "does {x} flow into {v}", "{x} flows into {v}, right",
            "is {v} where {x} ends")),
    ),
}

#: Greetings, thanks and other small talk, and the answer's form.
SMALL_TALK: dict[str, tuple[str, ...]] = {
    "hello": (
        "hi", "hello", "hey", "good morning", "hello there", "hi there", "good evening", "good day",
        "hey there", "yo",
        "greetings", "howdy", "hiya", "hello!", "hi!", "good afternoon", "hey you", "hello, how are you",
        "how are you",
        "what's up", "hi, nice to meet you", "are you there", "hello world", "hi bot", "hello assistant",
        "moin", "hola",
    ),
    "welcome": (
        "thanks", "thank you", "thanks a lot", "thank you very much", "great, thanks", "cool, thank you",
        "ok thanks",
        "perfect", "many thanks", "thx", "nice, thank you", "thank you so much", "that helps, thanks",
        "wonderful, thank you", "great",
    ),
    "bye": ("bye", "goodbye", "see you", "bye bye", "good night", "see you later", "that was all",
        "bye for now", "cheers, bye", "farewell"),
    "self": (
        "who are you", "what are you", "what can you do", "what do you know", "what can I ask you", "help",
        "how can you help me",
        "what topics do you know", "what are you good at", "tell me about yourself", "introduce yourself",
        "what is this",
        "what can I do here", "what should I ask you", "what do you know about",
        "which subjects do you know", "how does this work",
        "what kind of questions can I ask", "what is your name", "what's your name", "can you help me",
        "list what you know", "your topics",
    ),
}
