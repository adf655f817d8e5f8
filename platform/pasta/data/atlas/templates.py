"""The wording of the atlas world: every sentence, as a template over named fields."""

# Several sentences that together describe one thing; the first names it.
PROFILE: dict[str, tuple[str, ...]] = {
    "countries": (
        "{name} lies in {continent}, next to {beside}.",
        "Its capital is {capital}.",
        "People there speak {language} and pay with the {currency}.",
        "A famous sight is {sight}, and a popular dish is {dish}.",
    ),
    "elements": (
        "The element {name} has the symbol {symbol} and the atomic number {number}.",
        "It is {group_a}, and at room temperature it is a {state}.",
        "In the periodic table it stands right after {previous}.",
        "It is used in {use}.",
    ),
    "planets": (
        "{name} is planet number {number} from the Sun.",
        "It is {type_a} with {moons} and {rings}.",
        "It is known for {feature}.",
        "Its name comes from {namesake}.",
    ),
    "animals": (
        "The {name} is {class_a} with {legs}.",
        "It lives in {home} and eats {food}.",
        "Its young is called {young_a}.",
        "It is known for {trait}.",
    ),
    "instruments": (
        "The {name} is a {family} instrument.",
        "It is played by {action}.",
        "It is made mostly of {material}, and you often hear it in {place}.",
        "It is known for {trait}.",
    ),
    "scientists": (
        "{name} was {job_a} from {country}.",
        "{pronoun} was born in the {century}th century.",
        "{pronoun} is remembered for {work}.",
        "{pronoun} also took an interest in {also}.",
    ),
    "books": (
        "{name} is {kind_a} by {author}.",
        "It appeared in the {century}th century.",
        "It was first written in {language}.",
        "It tells of {about}.",
    ),
    "rivers": (
        "The {name} flows through {continent}.",
        "It rises in {source} and ends in {mouth}.",
        "On its way it passes the city of {city}.",
        "It is known for {trait}.",
    ),
}

# Lines of a fact sheet.
SHEET: dict[str, tuple[str, ...]] = {
    "countries": (
        "Continent: {continent}",
        "Neighbour: {beside}",
        "Capital: {capital}",
        "Language: {language}",
        "Money: {currency}",
        "Sight: {sight}",
        "Dish: {dish}",
    ),
    "elements": (
        "Symbol: {symbol}",
        "Atomic number: {number}",
        "Group: {group}",
        "At room temperature: {state}",
        "Follows: {previous}",
        "Use: {use}",
    ),
    "planets": (
        "Place from the Sun: {number}",
        "Type: {type}",
        "Moons: {moons}",
        "Rings: {rings}",
        "Known for: {feature}",
        "Named after: {namesake}",
    ),
    "animals": (
        "Class: {class}",
        "Legs: {legs}",
        "Home: {home}",
        "Food: {food}",
        "Young: {young}",
        "Known for: {trait}",
    ),
    "instruments": (
        "Family: {family}",
        "Played by: {action}",
        "Material: {material}",
        "Heard in: {place}",
        "Known for: {trait}",
    ),
    "scientists": (
        "Work: {job}",
        "Country: {country}",
        "Born in century: {century}",
        "Remembered for: {work}",
        "Also liked: {also}",
    ),
    "books": (
        "Author: {author}",
        "Kind: {kind}",
        "Century: {century}",
        "Language: {language}",
        "About: {about}",
    ),
    "rivers": (
        "Continent: {continent}",
        "Source: {source}",
        "Mouth: {mouth}",
        "City: {city}",
        "Known for: {trait}",
    ),
}

CHILD: dict[str, tuple[str, ...]] = {
    "animals": (
        "Picture the {name}!",
        "It has {legs}, and its home is in {home}.",
        "When it is hungry, it looks for {food}.",
        "Its baby is called {young_a}.",
        "Everybody knows it for {trait}.",
    ),
    "planets": (
        "Let us fly to {name}!",
        "Count from the Sun, and you meet it at number {number}.",
        "It is {type_a}, and it has {moons} and {rings}.",
        "Everybody knows it for {feature}.",
    ),
    "elements": (
        "Have you heard of {name}?",
        "Scientists write it as {symbol} and give it the number {number}.",
        "In your room it would be a {state}.",
        "You can find it in {use}.",
    ),
    "instruments": (
        "Listen to the {name}!",
        "You play it by {action}.",
        "It belongs to the {family} family and is made mostly of {material}.",
        "You can hear it in {place}.",
        "Everybody knows it for {trait}.",
    ),
}

SELF: dict[str, tuple[str, ...]] = {
    "animals": (
        "Hello, I am the {name}!",
        "I am {class_a} with {legs}, and I live in {home}.",
        "I like to eat {food}.",
        "My young is called {young_a}.",
        "I am famous for {trait_my}.",
    ),
    "planets": (
        "Hello, I am {name}!",
        "I am planet number {number} from the Sun.",
        "I am {type_a} with {moons} and {rings}.",
        "I am famous for {feature_my}.",
        "I have my name from {namesake}.",
    ),
    "instruments": (
        "Hello, I am the {name}!",
        "I am a {family} instrument, made mostly of {material}.",
        "You play me by {action}.",
        "You can hear me in {place}.",
        "I am famous for {trait_my}.",
    ),
    "rivers": (
        "Hello, I am the {name}!",
        "I rise in {source} and flow through {continent}.",
        "I pass the city of {city}, and I end in {mouth}.",
        "I am famous for {trait_my}.",
    ),
}

POSTCARD: dict[str, tuple[str, ...]] = {
    "countries": (
        "Dear friend, greetings from {capital} in {name}!",
        "Today I saw {sight}, and for dinner I had {dish}.",
        "I pay with the {currency} and try to speak {language}.",
        "It is lovely here in {continent}.",
    ),
}

GUIDE_HEAD = "A guide to {name}."
# Sections of a travel guide: topic, sentences.
GUIDE: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "arrival",
        (
            "Arrival: fly to {capital}, the capital of {name}.",
            "The country lies in {continent}, next to {beside}.",
        ),
    ),
    (
        "daily life",
        (
            "Daily life: in {name} you pay with the {currency}.",
            "It helps to learn a few words of {language}.",
        ),
    ),
    (
        "highlights",
        (
            "Highlights: in {name} you should see {sight}.",
            "For dinner, try the {dish}.",
        ),
    ),
)

# One sentence a fact, each naming its subject; used for quiz answers and comparisons.
LINE: dict[str, dict[str, str]] = {
    "countries": {
        "place": PROFILE["countries"][0],
        "capital": "The capital of {name} is {capital}.",
        "language": "In {name} people speak {language}.",
        "money": "In {name} people pay with the {currency}.",
        "sight": "In {name} you can visit {sight}.",
        "food": "A popular dish in {name} is {dish}.",
    },
    "elements": {
        "symbol": "The symbol of {name} is {symbol}.",
        "number": "The atomic number of {name} is {number}.",
        "group": "The element {name} is {group_a}.",
        "state": "At room temperature {name} is a {state}.",
        "use": "You can find {name} in {use}.",
    },
    "planets": {
        "place": PROFILE["planets"][0],
        "type": "{name} is {type_a}.",
        "moons": "{name} has {moons} and {rings}.",
        "fame": "{name} is known for {feature}.",
        "name": "The name of {name} comes from {namesake}.",
    },
    "animals": {
        "class": PROFILE["animals"][0],
        "home": "The {name} lives in {home}.",
        "food": "The {name} eats {food}.",
        "young": "The young of the {name} is called {young_a}.",
        "fame": "The {name} is known for {trait}.",
    },
    "instruments": {
        "family": PROFILE["instruments"][0],
        "playing": "The {name} is played by {action}.",
        "material": "The {name} is made mostly of {material}.",
        "place": "You often hear the {name} in {place}.",
        "fame": "The {name} is known for {trait}.",
    },
    "scientists": {
        "work": PROFILE["scientists"][0],
        "birth": "{name} was born in the {century}th century.",
        "fame": "{name} is remembered for {work}.",
        "interest": "{name} also took an interest in {also}.",
    },
    "books": {
        "author": PROFILE["books"][0],
        "time": "{name} appeared in the {century}th century.",
        "language": "{name} was first written in {language}.",
        "story": "{name} tells of {about}.",
    },
    "rivers": {
        "place": PROFILE["rivers"][0],
        "source": "The {name} rises in {source}.",
        "mouth": "The {name} ends in {mouth}.",
        "city": "The {name} passes the city of {city}.",
        "fame": "The {name} is known for {trait}.",
    },
}

# Sentences whose fields are not facts of a subject.
FREE: dict[str, str] = {
    "intro.facts": "Here are the facts:",
    "intro.facts.": "Here are the facts.",
    "intro.tour": "Off we go.",
    "intro.child": "Come closer and listen.",
    "intro.self": "Here they come.",
    "intro.cards": "Here are your postcards.",
    "intro.answers": "Here are the answers:",
    "intro.answers.": "Here are the answers.",
    "intro.book": "A small encyclopedia.",
    "intro.guide": "Have a good trip.",
    "intro.compare": "Let us compare them.",
    "closing": "I hope this helps!",
    "sheet.head": "Fact sheet: {title}",
    "chapter": "Chapter on {topic}.",
    "wish": "Wish you were here!",
    "count": "Number of those that {what}: {k} of {n}.",
    # talk
    "hello": "Hello!",
    "welcome": "You are welcome!",
    "bye": "Goodbye!",
    "topics": "Ask me about countries, elements, planets, animals, instruments, scientists, books or rivers.",
    "outside": "I only know countries, elements, planets, animals, instruments, scientists, books and rivers.",
    "rank": "Of these, {name} is the {what}.",
    "next": "Right after {one} comes {other}.",
    "they": "They are {names}.",
    "yes": "So the answer is yes.",
    "no": "So the answer is no.",
    "same": "They all share the same {attribute}: {value}.",
    "different": "They do not all share the same {attribute}.",
    # running arithmetic
    "shop.start": "{who} begins with {a} coins.",
    "shop.buy": "{who} buys {item} for {d} coins.",
    "shop.sell": "{who} sells {item} for {d} coins.",
    "shop.minus": "{a} minus {d} is {b}, so {who} has {b} coins.",
    "shop.plus": "{a} plus {d} is {b}, so {who} has {b} coins.",
    "shop.end": "In the end {who} has {a} coins.",
    "bus.start": "The bus leaves with {a} people.",
    "bus.on": "At {stop} {d} people get on.",
    "bus.off": "At {stop} {d} people get off.",
    "bus.plus": "{a} plus {d} is {b}, so {b} people ride on.",
    "bus.minus": "{a} minus {d} is {b}, so {b} people ride on.",
    "bus.end": "The bus arrives with {a} people.",
    "plant.start": "At first the {plant} is {a} centimetres tall.",
    "plant.grow": "In {month} it grows {d} centimetres.",
    "plant.cut": "In {month} the gardener cuts off {d} centimetres.",
    "plant.plus": "{a} plus {d} is {b}, so it is {b} centimetres tall.",
    "plant.minus": "{a} minus {d} is {b}, so it is {b} centimetres tall.",
    "plant.end": "At last the {plant} is {a} centimetres tall.",
    "trip.start": "The trip begins on day {a}.",
    "trip.stay": "On day {a} we reach {city} in {country} and stay {d} days.",
    "trip.plus": "{a} plus {d} is {b}, so we leave on day {b}.",
    "trip.end": "We are home on day {a}.",
    "count.start": "We start at {a}.",
    "count.down": "We take {d} away from {a}.",
    "count.minus": "{a} minus {d} is {b}, so now we are at {b}.",
    "count.end": "We have reached {a}.",
    # chains
    "chain.start": "We start at {element}, number {a}.",
    "chain.up": "From {element}, number {a}, we go up {d}.",
    "chain.down": "From {element}, number {a}, we go down {d}.",
    "chain.plus": "{a} plus {d} is {b}, and number {b} is {element}.",
    "chain.minus": "{a} minus {d} is {b}, and number {b} is {element}.",
    "chain.end": "The path ends at {element}.",
    "circle.start": "{who} holds the ball first.",
    "circle.pass": "{who} passes the ball {d} places on.",
    "circle.land": "Counting {passed}, the ball is now with {who}.",
    "circle.end": "{who} keeps the ball.",
    "letters.start": "We start at the letter {letter}.",
    "letters.move": "From {letter} we move on {d} letters.",
    "letters.land": "Counting {passed}, we land on {letter}.",
    "letters.end": "The last letter is {letter}.",
    "bag.start": "The bag is empty.",
    "bag.add": "Now {item} goes into the bag.",
    "bag.all": "The bag holds {items}.",
    "bag.end": "Now the bag is full.",
    "tower.start": "There is nothing on the table.",
    "tower.add": "A {colour} block goes on top.",
    "tower.take": "The {colour} block comes off the top.",
    "tower.all": "From the bottom, the tower is {colours}.",
    "tower.end": "The block on top is {colour}.",
}
