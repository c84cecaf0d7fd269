"""Problems of sorting and copying."""

# ruff: noqa: SIM905 - split() on one string is easier to read than a list of quoted words

from random import Random
from string import ascii_lowercase

from presets.corpora.problem import Problem

WORDS = (
    "apple arrow autumn ball basket bean bell berry bird blue boat book bottle bowl box bread bridge bright brown "
    "brush bucket butter button cake candle carrot castle chair cheese cherry circle clock cloud coat coffee corn "
    "cup curtain dance desk dinner door dream drum egg empty engine evening farm feather fence field finger fire "
    "flag floor flower forest fork garden gate glass glove gold grass green guitar hammer hat heart hill honey "
    "house ice island jacket jam key kitchen kite ladder lake lamp leaf lemon letter light lion map market milk "
    "mirror moon morning mountain music needle nest night ocean orange oven paper park path peach pear pencil "
    "piano picture pillow plate pocket pond potato purple queen quiet rabbit rain red ribbon river road rocket "
    "roof rope rose sail salt sand school shadow ship shoe silver sky sleep snow soap song soup spoon spring star "
    "stone storm street sugar summer sun table tea tent tiger tomato tower train tree turtle umbrella valley "
    "village violin wall water wheel white wind window winter wood yellow"
).split()


def sorting(random: Random) -> Problem:
    """Ask to sort three to five different numbers below 100, up or down."""
    return _sorted(random, random.sample(range(100), random.randint(3, 5)))


def sorting_near(random: Random) -> Problem:
    """Ask to sort numbers of one digit, and of one or two decades: cases where the first digit decides least."""
    decades = random.sample(range(1, 10), random.randint(1, 2))
    near = [*range(10), *(10 * decade + ones for decade in decades for ones in range(10))]
    return _sorted(random, random.sample(near, random.randint(3, 5)))


def _sorted(random: Random, numbers: list[int]) -> Problem:
    falling = random.random() < 0.3
    listed, ordered = (", ".join(map(str, some)) for some in (numbers, sorted(numbers, reverse=falling)))
    if falling:
        asked = random.choice([f"Sort from largest to smallest: {listed}", f"Sort in falling order: {listed}"])
        return Problem("sorting", f"{listed} falling", asked, ordered, (f"{listed} in falling order:", f" {ordered}"))
    asked = random.choice([f"Sort these numbers: {listed}", f"Sort: {listed}", f"Put in order: {listed}"])
    return Problem("sorting", listed, asked, ordered, (f"{listed} in order:", f" {ordered}"))


def copying(random: Random) -> Problem:
    """Ask to copy two to seven words, numbers or strings of letters.

    They stand in quotes or on a line of their own, where the first word is the same token as at the start of the
    answer.
    """
    text = " ".join(_anything(random) for _ in range(random.randint(2, 7)))
    asked = random.choice(
        [f'Copy "{text}".', f'Repeat "{text}".', f"Copy:\n{text}", f"Repeat:\n{text}", f"Repeat after me:\n{text}"]
    )
    return Problem("copying", text, asked, text)


def _anything(random: Random) -> str:
    kind = random.random()
    if kind < 0.7:
        return random.choice(WORDS)
    if kind < 0.85:
        return str(random.randrange(10 ** random.randint(1, 4)))
    return "".join(random.choices(ascii_lowercase, k=random.randint(2, 5)))
