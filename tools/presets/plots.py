"""Plots of short stories: what happens step by step, each step in several wordings.

A plot has slots, of each of which a story draws one value, and steps, of each of which it takes one wording. Braces
name slots, or the pronouns of the hero ({he}, {He}, {him}, {his}) and of the friend ({friend}, {friend_he} …).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Plot:
    """topic: what to call the story in a request. slots: the values to choose from. steps: their wordings."""

    topic: str
    slots: dict[str, list[str]]
    steps: list[list[str]]


THINGS = ["red hat", "blue scarf", "little bell", "green ball", "wooden flute", "silver key", "kite", "warm coat"]
SPOTS = ["under the bed", "behind the door", "in the garden", "under the old bridge", "near the well", "in the barn"]
WEATHER = ["The sun was shining", "A soft wind was blowing", "It was a cold and clear day", "The sky was grey"]
TREATS = ["apple pie", "honey cake", "bread with jam", "hot soup", "cherry tart", "nut cake"]

PLOTS = [
    Plot(
        "a lost {thing}",
        {"thing": THINGS, "spot": SPOTS, "first": ["in the kitchen", "by the window", "on the shelf", "by the river"]},
        [
            [
                "One morning, {he} could not find {his} {thing}.",
                "One day, {his} {thing} was gone.",
                "Then something sad happened: {he} lost {his} {thing}.",
            ],
            [
                "{He} looked {first}, but it was not there.",
                "{He} looked everywhere, even {first}, and found nothing.",
                "It was not {first}, where {he} had left it.",
            ],
            [
                "{hero} asked {friend} for help.",
                '"Can you help me?" {he} asked {friend}.',
                "{friend} saw how sad {he} was and came to help.",
            ],
            [
                '"When did you last see it?" asked {friend}.',
                '{friend} thought for a moment and said, "Let us look together."',
                '"Do not worry," said {friend}. "We will find it."',
            ],
            [
                "After a while, they found the {thing} {spot}.",
                "At last {friend} looked {spot}, and there it was!",
                "They searched until the evening, and then they saw the {thing} {spot}.",
            ],
            [
                '{hero} was so happy that {he} laughed. "Thank you, {friend}!"',
                "{hero} put the {thing} in a safe place and thanked {friend}.",
                '"You are a true friend," said {hero}.',
            ],
        ],
    ),
    Plot(
        "a storm",
        {
            "shelter": ["a small cave", "an empty hut", "a hollow tree", "an old mill"],
            "sound": ["the thunder", "the wind", "the rain on the leaves"],
            "light": ["a warm fire", "a little lamp", "a candle"],
        },
        [
            [
                "One afternoon, dark clouds came over the hills.",
                "One day, {he} went for a long walk, and the sky turned black.",
                "{He} was far from home when a storm began.",
            ],
            [
                "It began to rain, and {he} ran as fast as {he} could.",
                "The rain came down hard, and soon {he} was wet and cold.",
                "{He} heard {sound} and was afraid.",
            ],
            [
                "Then {he} saw {shelter} and went inside.",
                "{He} found {shelter} and hid there.",
                "Not far away stood {shelter}, and {he} ran to it.",
            ],
            [
                "Inside sat {friend}, who had made {light}.",
                "{friend} was already there with {light}.",
                '"Come in!" said a voice. It was {friend}, who had {light}.',
            ],
            [
                "They told each other stories until the storm was over.",
                "They sang songs, and {sound} did not sound so bad any more.",
                "They shared some bread and waited for the sun.",
            ],
            [
                "When the sun came back, they saw a rainbow and walked home together.",
                "In the evening the sky was clear again, and they went home as friends.",
                "Soon the birds were singing again, and {hero} was not afraid of storms any more.",
            ],
        ],
    ),
    Plot(
        "{treat}",
        {
            "treat": TREATS,
            "missing": ["sugar", "butter", "flour", "milk"],
            "guest": ["grandmother", "the new neighbour", "the old teacher", "everyone in the village"],
        },
        [
            [
                "One day, {he} wanted to make {treat} for {guest}.",
                "{hero} had an idea: {he} would make {treat} for {guest}.",
                "On Sunday morning, {he} went into the kitchen to make {treat} for {guest}.",
            ],
            [
                "But there was no {missing} in the house.",
                "{He} opened the cupboard and saw that there was no {missing}.",
                "Everything was ready, but the {missing} was gone.",
            ],
            [
                "So {he} went to {friend} and asked for some {missing}.",
                '{He} knocked on the door of {friend}. "Do you have some {missing}?"',
                "{friend} lived next door and had enough {missing} for two.",
            ],
            [
                '"Of course," said {friend}. "May I help you?"',
                "{friend} gave {him} the {missing} and came along to help.",
                "{friend} laughed and brought a whole bag.",
            ],
            [
                "They worked all morning, and soon the house smelled wonderful.",
                "There was a little mess, but the {treat} looked very good.",
                "They mixed and stirred and sang a song.",
            ],
            [
                "In the end, there was enough {treat} for {guest} and for the two of them.",
                '"This is the best {treat} in the world," said {friend}, and {hero} smiled.',
                "They ate the first piece together and were proud of their work.",
            ],
        ],
    ),
    Plot(
        "building a {craft}",
        {
            "craft": ["small boat", "tree house", "big kite", "wooden bridge", "snow castle"],
            "trouble": ["it fell apart", "it broke in the middle", "the wind blew it away", "it was not strong enough"],
            "advice": [
                "Use more rope",
                "Begin with a strong base",
                "Work slowly and with care",
                "Make a small one first",
            ],
        },
        [
            [
                "{hero} had a dream: {he} wanted to build a {craft}.",
                "One summer, {he} began to build a {craft}.",
                '"Today I will build a {craft}," said {hero} one morning.',
            ],
            [
                "{He} worked the whole day, but {trouble}.",
                "{He} tried once, and {trouble}.",
                "It looked easy, but when {he} was done, {trouble}.",
            ],
            [
                "{hero} sat down and wanted to give up.",
                "{hero} was angry and threw {his} tools into the grass.",
                "A tear ran down {his} face.",
            ],
            [
                '{friend} came by and looked at it. "{advice}," {friend_he} said.',
                '"{advice}," said {friend}, who knew a lot about such things.',
                'Then {friend} sat down beside {him} and said, "Try again. {advice}."',
            ],
            [
                "{hero} tried again, and again, and it got better each time.",
                "The next day, {he} began once more and did not hurry.",
                "Together they worked for three days.",
            ],
            [
                "At last the {craft} was ready, and it was beautiful.",
                "This time it held. {hero} jumped for joy.",
                "When the {craft} was finished, all their friends came to see it.",
            ],
        ],
    ),
    Plot(
        "a hurt bird",
        {
            "bird": ["robin", "sparrow", "swallow", "blackbird"],
            "place": ["on the path", "in the grass", "under a bush", "beside the road"],
            "bed": ["a box with soft hay", "a basket with a warm cloth", "a nest of leaves"],
        },
        [
            [
                "One day, {he} found a little {bird} {place}.",
                "On the way home, {he} saw a {bird} lying {place}.",
                "Early in the morning, {he} heard a weak cry. A {bird} lay {place}.",
            ],
            [
                "Its wing was hurt, and it could not fly.",
                "It had a broken wing and was very afraid.",
                "The poor bird could not move its wing.",
            ],
            [
                "{hero} took it home with care and made it {bed}.",
                "{He} carried it home and put it into {bed}.",
                '"I will help you," {he} said, and made {bed} for it.',
            ],
            [
                "Every day, {he} gave it water and seeds.",
                "{friend} came every day and brought seeds and worms.",
                "{hero} and {friend} took turns and fed it day and night.",
            ],
            [
                "After two weeks, the {bird} began to move its wing again.",
                "Slowly the bird grew strong, and one day it sang.",
                "When spring came, the wing was well again.",
            ],
            [
                "They opened the window, and the {bird} flew high into the sky.",
                "The {bird} flew away, but every morning it came back and sang for {hero}.",
                "{hero} was a little sad when it flew away, but {he} was happy too.",
            ],
        ],
    ),
    Plot(
        "a race",
        {
            "goal": ["the big oak tree", "the river", "the church", "the top of the hill"],
            "prize": ["a golden cup", "a basket of apples", "a new pair of boots", "a blue ribbon"],
            "slip": ["fell over a stone", "hurt {friend_his} foot", "got stuck in the mud"],
        },
        [
            [
                "One day, there was a race to {goal}, and the prize was {prize}.",
                "Every year there was a race to {goal}. The winner got {prize}.",
                "In the spring, everyone ran a race to {goal} to win {prize}.",
            ],
            [
                "{hero} had practised for many weeks.",
                "{hero} was small, but {he} was very fast.",
                "{hero} wanted to win more than anything.",
            ],
            [
                "{friend} ran beside {him} and was just as fast.",
                "Soon only {friend} was in front of {him}.",
                "{hero} was first, and {friend} was close behind.",
            ],
            [
                "Suddenly {friend} {slip}.",
                "Then something happened: {friend} {slip}.",
                "Just before the end, {friend} {slip}.",
            ],
            [
                "{hero} stopped and went back to help {friend_him}.",
                "{hero} could have won, but {he} turned around and helped {friend_him} up.",
                '"Are you all right?" asked {hero}, and {he} gave {friend_him} a hand.',
            ],
            [
                "They reached {goal} together, and both of them got {prize}.",
                'They came in last, but everyone cheered. "Friends come first," said {hero}.',
                "Nobody remembers who won {prize} that day, but everyone remembers what {hero} did.",
            ],
        ],
    ),
    Plot(
        "an old map",
        {
            "where": ["in a dusty book", "in a bottle on the beach", "behind an old picture", "in a box in the attic"],
            "mark": ["a red cross", "a black star", "a small green tree"],
            "found": ["a box full of old letters", "a chest with golden coins", "a book of songs", "a jar of pearls"],
        },
        [
            [
                "One rainy day, {he} found an old map {where}.",
                "It all began when {he} found a map {where}.",
                "One evening, {he} saw something {where}. It was a map!",
            ],
            [
                "There was {mark} in the middle of it.",
                "On the map was {mark}, not far from {his} home.",
                "Somebody had drawn {mark} on it.",
            ],
            [
                '"It must be a treasure," said {friend}.',
                "{He} showed it to {friend}, and they made a plan.",
                "{friend} could read the map and knew the way.",
            ],
            [
                "They took a lamp and a rope and walked through the forest.",
                "The way was long, over a hill and across a stream.",
                "They walked for hours, and {hero} grew tired, but they did not stop.",
            ],
            [
                "Under a big stone they found {found}.",
                "They dug a deep hole, and there was {found}.",
                "Between two trees they found {found}.",
            ],
            [
                "They shared it with the whole village.",
                '"The best part was the way with you," said {friend}.',
                "They took it home and kept the secret for the rest of their lives.",
            ],
        ],
    ),
    Plot(
        "a quarrel",
        {
            "toy": ["a red ball", "a toy train", "a drum", "a swing", "a sledge"],
            "days": ["two days", "three days", "a whole week"],
            "gift": ["a bunch of flowers", "a drawing", "a piece of cake", "a letter"],
        },
        [
            [
                "{hero} and {friend} were best friends, but one day they both wanted {toy}.",
                "One day, {hero} and {friend} had a quarrel about {toy}.",
                "{hero} had {toy}, and {friend} wanted to play with it too.",
            ],
            [
                '"It is mine!" shouted {hero}, and {friend} went home.',
                '"You never share," said {friend}, and {friend_he} ran away.',
                "They shouted at each other until both of them were tired.",
            ],
            [
                "For {days}, they did not speak a word.",
                "For {days}, {hero} played alone, and it was no fun at all.",
                "{days_cap} went by, and {hero} missed {his} friend.",
            ],
            [
                "Then {hero} made {gift} and walked to the house of {friend}.",
                "At last {hero} had an idea and brought {friend_him} {gift}.",
                "{hero} took {gift} and knocked on the door of {friend}.",
            ],
            [
                '"I am sorry," said {hero}. "I am sorry too," said {friend}.',
                '"I was wrong," {he} said, and {friend} gave {him} a hug.',
                "{friend} smiled at once, for {friend_he} had missed {him} too.",
            ],
            [
                "From then on, they took turns.",
                "They played together until it got dark.",
                "They learned that a friend is worth more than {toy}.",
            ],
        ],
    ),
    Plot(
        "a garden",
        {
            "seed": ["sunflower", "pumpkin", "bean", "tomato", "rose"],
            "enemy": ["the snails", "the crows", "a hungry rabbit", "the dry summer"],
            "size": ["taller than the house", "as big as a wheel", "the finest in the land"],
        },
        [
            [
                "In spring, {he} put a {seed} seed into the ground.",
                "{friend} once gave {him} a {seed} seed, and {he} planted it behind the house.",
                "One day in April, {he} planted a {seed} seed.",
            ],
            [
                "Every morning, {he} brought water, but nothing happened.",
                "{He} waited for many days and saw nothing but earth.",
                "{He} watered it every day and talked to it.",
            ],
            [
                '"Be patient," said {friend}. "Good things take time."',
                '{friend} said, "It sleeps. You must wait a little longer."',
                "{friend} told {him} not to give up.",
            ],
            [
                "Then, one warm day, a small green leaf came out of the earth.",
                "After a night of rain, there was a tiny plant.",
                "One morning, {he} saw something green and called {friend}.",
            ],
            [
                "It was not easy to keep it safe from {enemy}, but {he} took good care of it.",
                "{enemy_cap} nearly killed it, but {hero} watched over it.",
                "With the help of {friend}, it lived through {enemy} and grew and grew.",
            ],
            [
                "In the end, the {seed} was {size}, and people came to see it.",
                "In autumn, the {seed} was {size}, and {hero} gave its seeds to all {his} friends.",
                "When summer was over, the {seed} was {size}. {hero} was very proud.",
            ],
        ],
    ),
    Plot(
        "the dark",
        {
            "noise": ["a strange sound", "a soft knock", "a long whistle", "small steps"],
            "thing": ["a branch at the window", "a mouse in the wall", "the old clock", "the wind in the chimney"],
            "gift": ["a small lamp", "a glass jar with fireflies", "a candle", "a toy bear"],
        },
        [
            [
                "There was only one thing that {he} did not like: the dark.",
                "Every night, {he} was afraid when the light went out.",
                "{hero} was brave by day, but at night {he} was afraid.",
            ],
            [
                "One night, {he} heard {noise} and pulled the blanket over {his} head.",
                "One night, there was {noise}, and {he} could not sleep.",
                "Then one night {he} heard {noise} in the room.",
            ],
            [
                "In the morning, {he} told {friend} about it.",
                '"I heard {noise}," {he} told {friend} the next day.',
                "{friend} asked why {he} was so tired, and {hero} told the whole story.",
            ],
            [
                "{friend} did not laugh, but gave {him} {gift}.",
                '"I was afraid too once," said {friend}, and gave {him} {gift}.',
                '"Take this," said {friend}. It was {gift}.',
            ],
            [
                "The next night, {he} heard {noise} again, and this time {he} got up to look.",
                "When {he} heard {noise} again, {he} took {gift} and looked.",
                "That night, {he} took a deep breath and looked into every corner.",
            ],
            [
                "It was only {thing}. {hero} laughed and slept until morning.",
                "And what was it? It was {thing}!",
                "It was nothing but {thing}, and {he} was never afraid of the dark again.",
            ],
        ],
    ),
]
