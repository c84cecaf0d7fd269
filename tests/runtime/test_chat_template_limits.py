"""A chat template ends: in a text, or in one sentence, soon and without filling the memory."""

import time
import tracemalloc

import pytest

from edgeformer.errors import RequestError
from edgeformer.runtime.text import chat_template
from edgeformer.runtime.text.chat_template import ChatTemplate

HELLO = [{"role": "user", "content": "hello"}]
DOUBLED = "{% set x = namespace(n='aa') %}{% for i in range(60) %}{% set x.n = BODY %}{% endfor %}{{ x.n }}"

ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) recursive %}{% if loop.depth < 4 %}{{ loop(range(99999)) }}{% endif %}{% endfor %}",
    "{% macro f(n) %}{% for a in range(99) %}{{ f(n + 1) if n < 5 }}{% endfor %}{% endmacro %}{{ f(1) }}",
]

LARGE = [
    "{{ 'a' * 10 ** 10 }}",
    "{{ 10 ** 9 * ['a'] }}",
    "{{ 10 ** (10 ** 10) }}",
    "{{ ('9' * 5000) | int ** 100000 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ 'a'.center(1000000000) }}",
    "{{ 'a' | center(1000000000) }}",
    "{{ messages | tojson(indent=1000000000) }}",
    "{{ 'a\\nb' | indent(1000000000) }}",
    "{{ ('a' * 99999) | replace('a', 'b' * 99999) }}",
    "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
    "{{ ('b' * 99999).join(['a'] * 99999) }}",
    "{{ ['a'] * 99999 | join('b' * 99999) }}",
    "{% for a in range(99999) %}{{ 'a' * 99999 }}{% endfor %}",
    DOUBLED.replace("BODY", "x.n + x.n"),
    DOUBLED.replace("BODY", "x.n ~ x.n"),
    DOUBLED.replace("BODY", "[x.n, x.n]"),
    DOUBLED.replace("BODY", "(x.n, x.n)"),
    DOUBLED.replace("BODY", "{'a': x.n, 'b': x.n}"),
    DOUBLED.replace("BODY", "namespace(a=x.n, b=x.n)"),
    DOUBLED.replace("BODY", "dict(a=x.n, b=x.n)"),
    DOUBLED.replace("{% set x.n = BODY %}", "{% set y %}{{ x.n }}{{ x.n }}{% endset %}{% set x.n = y %}"),
]


@pytest.mark.parametrize("template", ENDLESS, ids=range(len(ENDLESS)))
def test_a_template_that_goes_on_for_ever_is_stopped(monkeypatch, template):
    monkeypatch.setattr(chat_template, "SECONDS", 0.2)
    start = time.monotonic()
    with pytest.raises(RequestError, match=r"refuses the conversation: it takes longer than 0\.2 s"):
        ChatTemplate(template).render(messages=HELLO)
    assert time.monotonic() - start < 20, "the deadline is far over"


@pytest.mark.parametrize("template", LARGE, ids=range(len(LARGE)))
def test_what_would_fill_the_memory_is_not_made(monkeypatch, template):
    monkeypatch.setattr(chat_template, "LARGEST", 20_000)
    tracemalloc.start()
    try:
        with pytest.raises(
            RequestError, match=r"refuses the conversation: .*(more than [\d,]+ characters|too many dig)"
        ):
            ChatTemplate(template).render(messages=HELLO)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_what_is_nested_too_deeply_is_said():
    for template in (
        "{% if " + "(" * 5000 + "1" + ")" * 5000 + " %}{% endif %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ):
        with pytest.raises(RequestError, match="refuses the conversation: (it is nested too deeply|.*recursion)"):
            ChatTemplate(template).render(messages=HELLO)


def test_limits_leave_long_conversations_alone():
    """A conversation of a million tokens, whose template trims, cuts, joins and replaces as those of models do."""
    template = (
        "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' + m['content'] | trim }}"
        "{{ m.content.split('</think>')[-1].replace('a', 'bb') | length }}"
        "{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"
        "{{ messages | map(attribute='role') | join(', ') | length }}"
    )
    messages = [{"role": "user", "content": "hello " * 500}] * 1000
    text = ChatTemplate(template).render(messages=messages)
    assert text.count("<|user|>hello") == 1000
    assert text.count("\n") == 999
    assert text.endswith("5998")


def test_a_template_is_compiled_once(monkeypatch):
    made = []
    compile_template = chat_template._Environment.from_string

    def from_string(self, *arguments):
        made.append(1)
        return compile_template(self, *arguments)

    monkeypatch.setattr(chat_template._Environment, "from_string", from_string)
    template = ChatTemplate("{{ messages[0].content }}")
    assert [template.render(messages=HELLO) for _ in range(3)] == ["hello"] * 3
    assert len(made) == 1
