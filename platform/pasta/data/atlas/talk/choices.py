"""How people ask for one or some of several things: ranks, values, whole sets. Tables of wordings, no code."""

# fmt: off
#: How people ask for a rank, by the word of the answer.
RANK_WORDS = {
    "largest": ("largest", "biggest", "largest in size", "larger", "bigger"),
    "smallest": ("smallest", "smallest in size", "smaller"),
    "longest": ("longest", "longest in kilometres", "longer"),
    "shortest": ("shortest", "shorter"),
    "farthest from the Sun": ("farthest from the sun", "furthest from the sun", "most distant from the sun",
        "furthest out", "farthest out"),
    "closest to the Sun": ("closest to the sun", "nearest to the sun", "nearest to our star", "closest",
        "closer to the sun", "nearer to the sun"),
    "one with the highest atomic number": ("one with the highest atomic number",
        "one with the largest atomic number"),
    "one with the lowest atomic number": ("one with the lowest atomic number",
        "one with the smallest atomic number"),
    "one with the most legs": ("one with the most legs",),
    "one with the fewest legs": ("one with the fewest legs", "one with the least legs"),
    "latest": ("latest", "last to be born", "most recent", "youngest", "most modern"),
    "earliest": ("earliest", "first to be born", "oldest", "first one to be born", "one who lived first"),
    "newest": ("newest", "youngest", "most recent", "latest"),
    "oldest": ("oldest", "earliest", "first to appear", "older"),
}

#: Things that have a value in common: kind, then column and how people say them.
SETS = {
    "planets": (("type", "{v}s", "planets that are {v}s"),),
    "animals": (
        ("class", "{v}s", "animals that are {v}s"),
        ("legs", "animals with {v}", "animals that have {v}"),
    ),
    "elements": (("group", "{v}s", "elements that are {v}s"), ("state", "{v}s", "elements that are {v}s")),
    "countries": (
        ("continent", "countries in {v}", "countries that lie in {v}"),
        ("language", "countries where people speak {v}", "{v} speaking countries"),
        ("currency", "countries that use the {v}", "countries that pay with the {v}"),
    ),
    "rivers": (
        ("continent", "rivers in {v}", "rivers that flow through {v}"),
        ("mouth", "rivers that end in {v}", "rivers that flow into {v}"),
    ),
    "instruments": (("family", "{v} instruments", "instruments of the {v} family"),),
    "scientists": (
        ("country", "scientists from {v}", "scientists who came from {v}"),
        ("job", "{v}s", "scientists who were {v}s"),
    ),
    "books": (
        ("author", "books by {v}", "books that {v} wrote"),
        ("kind", "{v}s", "books that are {v}s"),
        ("language", "books in {v}", "books that were written in {v}"),
    ),
}

SET_WORDS = (
    "which {s} do you know", "list the {s}", "name the {s}", "what are the {s}", "what {s} are there",
    "list all {s}", "name all {s}", "list {s}",
    "give me the {s}", "tell me the {s}", "which {s} are there", "show me all {s}", "which ones are {s}",
    "what {s} do you know", "list the {s} you know", "name some {s}",
)

SOME_WORDS = ("name {n} {s}", "list {n} {s}", "give me {n} {s}", "tell me {n} {s}", "{n} {s}",
"what are {n} {s}", "can you name {n} {s}", "name me {n} {s}", "I need {n} {s}", "mention {n} {s}")

NEXT = (
    "what comes after {a}", "which {k} comes after {a}", "what {k} follows {a}",
    "which {k} is right after {a}", "what is the next {k} after {a}",
    "what {k} stands after {a}", "after {a} comes which {k}", "which {k} is next to {a}",
    "name the {k} after {a}", "what is after {a}",
)

COUNT_TAILS = (
    ". How many of them {w}", " and say how many of them {w}", " and count those that {w}", ". How many {w}",
    ", then count how many {w}",
    " and tell me how many of them {w}", ". Count those that {w}", "; how many of these {w}",
    " and the number of those that {w}",
)

RANK_TAILS = (
    ". Which of them is the {r}", " and tell me which is the {r}", ". Which is the {r}",
    " and say which one is the {r}", ", then name the {r}",
    ". Which one is the {r}", ". Which of these is the {r}", "; which is the {r}",
    " and name the {r} of them",
)

RANK_ASKED = (
    "which is the {r}: {x}", "which of these is the {r}: {x}", "what is the {r} of {x}",
    "{x}: which is the {r}", "who or what is the {r} among {x}",
    "which one is the {r}, {x}", "which is the {r} of {x}", "of {x}, which is the {r}",
    "name the {r} of {x}", "find the {r} among {x}", "{x}, which is the {r}",
)

ALL_PLANETS = ("the planets", "all planets", "all the planets", "every planet", "the eight planets")
RANK_OF_ALL = (
    "which planet is the {r}", "what is the {r} planet", "which is the {r} of all planets",
    "which of the planets is the {r}",
)

#: The same rank asked with a verb or with the kind of things: the word of the answer, questions.
RANK_VERBS = {
    "one with the most legs": ("which of these animals has the most legs: {x}",
        "which has the most legs, {x}",
        "which of {x} has the most legs", "what has more legs: {x}", "who has the most legs of {x}"),
    "one with the fewest legs": ("which of these animals has the fewest legs: {x}",
        "which has the fewest legs, {x}",
        "which of {x} has the fewest legs", "what has fewer legs: {x}"),
    "one with the highest atomic number": ("which element has the highest atomic number: {x}",
        "which of {x} has the highest atomic number", "what has the higher atomic number, {x}",
        "which of these has the highest number: {x}"),
    "one with the lowest atomic number": ("which element has the lowest atomic number: {x}",
        "which of {x} has the lowest atomic number", "what has the lower atomic number, {x}",
        "which of these has the lowest number: {x}"),
    "earliest": ("who was born first, {x}", "who was born first: {x}", "who of {x} was born first",
        "which of {x} was born first", "who lived first: {x}", "who lived earlier, {x}"),
    "latest": ("who was born last, {x}", "who was born last: {x}", "who of {x} was born last",
        "who lived later, {x}",
        "who lived last: {x}"),
    "oldest": ("which of {x} is the oldest book", "which book is the oldest: {x}",
        "which appeared first: {x}",
        "which of these books came first: {x}", "which book is older, {x}"),
    "newest": ("which of {x} is the newest book", "which book is the newest: {x}",
        "which appeared last: {x}",
        "which of these books came last: {x}", "which book is newer, {x}"),
    "closest to the Sun": ("which planet is closest to the sun: {x}",
        "which planet is the nearest to the sun, {x}",
        "which of {x} is closest to the sun", "what is closer to the sun: {x}"),
    "farthest from the Sun": ("which planet is farthest from the sun: {x}",
        "which of {x} is farthest from the sun",
        "which planet is the furthest out, {x}", "what is farther from the sun: {x}"),
    "largest": ("which of {x} is largest", "which country or planet is the biggest: {x}",
        "what is bigger: {x}",
        "which is bigger, {x}", "what is the larger one, {x}"),
    "smallest": ("which of {x} is smallest", "what is smaller: {x}", "which is smaller, {x}",
        "which one is smallest, {x}"),
    "longest": ("which river is the longest: {x}", "which of the rivers {x} is longest",
        "which is longer, {x}",
        "what is longer: {x}", "which of {x} is the longest river"),
    "shortest": ("which river is the shortest: {x}", "which of the rivers {x} is shortest",
        "which is shorter, {x}",
        "what is shorter: {x}"),
}
#: Which of several things has a value: kind, then column, attribute of the answer, questions.
WHICH_OF = {
    "countries": (
        ("continent", "place", ("which of {x} is in {v}", "which of the countries {x} lies in {v}",
            "which of these is in {v}: {x}",
            "which country is in {v}: {x}", "{x}: which one is in {v}", "which one lies in {v}, {x}")),
        ("language", "language", ("in which of {x} do people speak {v}", "which of these speaks {v}: {x}",
            "which of {x} speaks {v}", "where do people speak {v}: {x}", "where is {v} spoken, {x}")),
        ("currency", "money", ("which of {x} uses the {v}", "where do I pay with the {v}: {x}",
            "which of these uses the {v}: {x}")),
    ),
    "rivers": (
        ("continent", "place", ("which of {x} is in {v}", "which of the rivers {x} is in {v}",
            "which of these flows through {v}: {x}",
            "which river is in {v}: {x}", "{x}: which one is in {v}", "which of {x} flows through {v}")),
        ("mouth", "mouth", ("which of {x} ends in {v}", "which of these flows into {v}: {x}",
            "which river ends in {v}: {x}")),
    ),
    "elements": (
        ("state", "state", ("which of {x} is a {v}", "which of these is a {v}: {x}",
            "which one is a {v}, {x}", "{x}: which one is {v}",
            "which of {x} is {v} at room temperature")),
        ("group", "group", ("which of {x} is a {v}", "which of these is a {v}: {x}",
            "which element is a {v}: {x}", "which one is a {v}, {x}")),
    ),
    "planets": (
        ("type", "type", ("which of {x} is a {v}", "which of these is a {v}: {x}",
            "which planet is a {v}: {x}", "which one is a {v}, {x}")),
        ("rings", "moons", ("which of {x} has {v}", "which of these has {v}: {x}",
            "which planet has {v}: {x}", "which one has {v}, {x}")),
    ),
    "animals": (
        ("class", "class", ("which of {x} is a {v}", "which of these is a {v}: {x}",
            "which animal is a {v}: {x}", "which one is a {v}, {x}",
            "{x}: which one is a {v}")),
        ("legs", "class", ("which of {x} has {v}", "which of these has {v}: {x}",
            "which animal has {v}: {x}", "which one has {v}, {x}")),
        ("food", "food", ("which of {x} eats {v}", "which of these eats {v}: {x}",
            "which animal eats {v}: {x}", "which one eats {v}, {x}")),
    ),
    "instruments": (
        ("family", "family", ("which of {x} is a {v} instrument", "which of these is a {v} instrument: {x}",
            "which one is a {v} instrument, {x}",
            "which of {x} belongs to the {v} family")),
    ),
    "scientists": (
        ("country", "work", ("who of {x} was from {v}", "which of these came from {v}: {x}",
            "which of {x} was from {v}", "who was from {v}: {x}")),
        ("job", "work", ("who of {x} was a {v}", "which of these was a {v}: {x}", "which of {x} was a {v}",
            "who was the {v}: {x}")),
    ),
    "books": (
        ("kind", "author", ("which of {x} is a {v}", "which of these is a {v}: {x}",
            "which book is a {v}: {x}", "which one is a {v}, {x}")),
        ("language", "language", ("which of {x} was written in {v}",
            "which of these was written in {v}: {x}", "which book was written in {v}: {x}")),
        ("author", "author", ("which of {x} is by {v}", "which of these did {v} write: {x}",
            "which book is by {v}: {x}", "which of {x} was written by {v}")),
    ),
}
