"""Small talk, roles that a system message gives the assistant, and the chat template."""

# ruff: noqa: SIM905 - split() on one string is easier to read than a list of quoted words

from random import Random

from presets.corpora.characters import BOYS, GIRLS
from presets.corpora.problem import Problem

END, START, STOP = SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

SYSTEMS = [
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "You help people with short answers.",
    "Be kind and answer in one sentence.",
]
JOBS = "baker teacher doctor farmer gardener painter sailor singer cook nurse pilot tailor".split()

SMALL_TALK = [
    (["Hello!", "Hi!", "Hi there!", "Hello", "Hey!"], ["Hello! How can I help you?", "Hi! What can I do for you?"]),
    (["Good morning!", "Good morning."], ["Good morning! How can I help you today?"]),
    (["Good evening!", "Good evening."], ["Good evening! What can I do for you?"]),
    (["How are you?", "How are you today?", "How do you do?"], ["I am fine, thank you. How can I help you?"]),
    (["Thank you!", "Thanks!", "Thank you very much.", "Thanks a lot!"], ["You are welcome!", "I am glad to help."]),
    (["Goodbye!", "Bye!", "See you!", "Good night!"], ["Goodbye! Have a nice day.", "See you soon!"]),
    (
        ["What can you do?", "How can you help me?", "What do you know?"],
        ["I can add and subtract, sort and copy, write numbers in words, count days, and tell short stories."],
    ),
    (
        ["Are you a human?", "Are you a person?", "Are you real?"],
        ["No, I am a very small language model, and I make mistakes."],
    ),
    (["That is great!", "Very good!", "Well done!", "Wonderful!"], ["Thank you! Is there anything else?"]),
    (["That is wrong.", "I do not think so.", "Are you sure?"], ["I am sorry. I may be wrong, for I am very small."]),
]


def small_talk(random: Random) -> Problem:
    """Return a greeting, thanks, or a question about the assistant, with its answer."""
    asked, answers = random.choice(SMALL_TALK)
    asked_once, answer = random.choice(asked), random.choice(answers)
    return Problem("small talk", f"{asked_once} {answer}", asked_once, answer)


def persona(random: Random) -> Problem:
    """Return a system message that says who the assistant is, and a question about it; any name may have any job."""
    name, job = random.choice(GIRLS + BOYS), random.choice(JOBS)
    system = f"You are {name}, a {job}."
    asked, answer = random.choice(
        [
            ("What is your name?", f"My name is {name}."),
            ("Who are you?", f"I am {name}, a {job}."),
            ("What do you do?", f"I am a {job}."),
            ("What is your job?", f"I am a {job}."),
        ]
    )
    return Problem("system message", f"{system} {asked}", asked, answer, system=system)


def turn(role: str, content: str) -> str:
    """Return one message as the chat template formats it."""
    return f"{START}{role}\n{content}{STOP}\n"


def prompt(question: str, system: str | None = None) -> str:
    """Return a chat up to where the assistant answers."""
    opening = turn("system", system) if system else ""
    return f"{opening}{turn('user', question)}{START}assistant\n"
