"""Tools get where a chat template reads them: a variable of one of two names, or a message."""

import pytest

from edgeformer.runtime.text.chat_template import ChatTemplate

TOOLS = [{"type": "function", "function": {"name": "weather"}}]
USER = {"role": "user", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be short."}
LLAMA = """{% if not tools is defined %}{% set tools = none %}{% endif %}\
{% if tools is not none %}{{ tools | tojson }}{% endif %}"""
SMOL = "{% if xml_tools %}{% for tool in xml_tools[:] %}{{ tool.function.name }}{% endfor %}{% endif %}"
SMOL_NOW = "{% if tools %}{% set xml_tools = tools %}{% endif %}" + SMOL
PHI = """{% for message in messages %}\
{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}\
{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' }}\
{% else %}{{ '<|' + message['role'] + '|>' + message['content'] }}{% endif %}{% endfor %}"""
GLM = """{% for item in messages %}{% if item['tools'] is defined and item['role'] == 'system' %}\
{% for tool in item['tools'] %}## {{ tool['function']['name'] }} {% endfor %}{% endif %}\
{{ item['content'] }}{% endfor %}"""


@pytest.mark.parametrize(
    ("source", "messages", "text"),
    [
        (LLAMA, [USER], '[{"type": "function", "function": {"name": "weather"}}]'),
        (SMOL, [USER], "weather"),
        (SMOL_NOW, [USER], "weather"),
        (PHI, [USER], '<|system|><|tool|>[{"name": "weather"}]<|/tool|><|user|>Hi'),
        (PHI, [SYSTEM, USER], '<|system|>Be short.<|tool|>[{"name": "weather"}]<|/tool|><|user|>Hi'),
        (GLM, [USER], "## weather Hi"),
        (GLM, [SYSTEM, USER], "## weather Be short.Hi"),
        ("{{ messages[0].content }}", [USER], "Hi"),
    ],
    ids=["tools", "xml_tools", "both", "text", "text and a system", "list", "list and a system", "none"],
)
def test_tools_get_where_the_template_reads_them(source, messages, text):
    template = ChatTemplate(source)
    assert template.render(**template.with_tools(messages, TOOLS)) == text


@pytest.mark.parametrize("source", [SMOL, PHI, GLM])
def test_a_conversation_without_tools_stays_as_it_is(source):
    variables = ChatTemplate(source).with_tools([USER], [])
    assert variables == {"messages": [USER], "tools": None}
