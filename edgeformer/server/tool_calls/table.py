"""All formats of tool calls by name, and the one that a chat template asks for."""

import re

from edgeformer.server.tool_calls.format import END_THINK, THINK, ToolFormat
from edgeformer.server.tool_calls.gemma import Gemma
from edgeformer.server.tool_calls.harmony import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START, Harmony
from edgeformer.server.tool_calls.json_objects import JsonObjects
from edgeformer.server.tool_calls.named_json import (
    ARGS,
    CALL_BEGIN,
    CALL_END,
    CALL_ID,
    CALLS_BEGIN,
    CALLS_END,
    SEPARATOR,
    TOOL_CALLS,
    DeepSeek,
    Mistral,
    NameAndJson,
)
from edgeformer.server.tool_calls.pythonic import Pythonic
from edgeformer.server.tool_calls.xml_parameters import XmlParameters

THINKING_OF_MISTRAL = {THINK: END_THINK, "[THINK]": "[/THINK]"}
THINKING_OF_GEMMA_4 = {"<|channel>thought\n": "<channel|>"}
ARGUMENTS = '{"city": "Rome", "days": 2}'
CALL_OBJECT = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'

_FORMATS = (
    Harmony(
        name="gpt-oss", models="gpt-oss",
        example=f"{CHANNEL}commentary to=functions.weather {CONSTRAIN}json{MESSAGE}{ARGUMENTS}{CALL}",
        signs=((CHANNEL, MESSAGE, "functions"), ("to=functions",)),
        openings=(CHANNEL, START), inner=(CONSTRAIN, MESSAGE), thinking={}, silent=(END, RETURN, CALL),
    ),
    Gemma(
        name="gemma4", models="Gemma 4",
        example='<|tool_call>call:weather{city:<|"|>Rome<|"|>,days:2}<tool_call|>',
        signs=(("<|tool_call>",),), openings=("<|tool_call>",), quote='<|"|>', closing="<tool_call|>",
        thinking=THINKING_OF_GEMMA_4, inner=("<|channel>",), silent=("<|tool_response>",),
        begin="<|tool_call>", between="<tool_call|><|tool_call>", end="<tool_call|>",
    ),
    Gemma(
        name="functiongemma", models="FunctionGemma",
        example="<start_function_call>call:weather{city:<escape>Rome<escape>,days:2}<end_function_call>",
        signs=(("<start_function_call>",), ("<start_function_declaration>",)),
        openings=("<start_function_call>",), quote="<escape>", closing="<end_function_call>",
        silent=("<start_function_response>",),
        begin="<start_function_call>", between="<end_function_call><start_function_call>", end="<end_function_call>",
    ),
    Pythonic(
        name="lfm2", models="LFM2, LFM2.5, MiniCPM3",
        example='<|tool_call_start|>[weather(city="Rome", days=2)]<|tool_call_end|>',
        signs=(("<|tool_call_start|>",), ("<|tool_list_start|>",)),
        openings=("<|tool_call_start|>",), closings=("<|tool_call_end|>",),
        begin="<|tool_call_start|>[", between=", ", end="]<|tool_call_end|>",
    ),
    Pythonic(
        name="olmo3", models="OLMo 3",
        example='<function_calls>\nweather(city="Rome", days=2)\n</function_calls>',
        signs=(("<function_calls>",),), openings=("<function_calls>",), closings=("</function_calls>",), listed=False,
        begin="<function_calls>\n", between="\n", end="\n</function_calls>",
    ),
    Pythonic(
        name="gemma3", models="Gemma 3, with a template for tools",
        example='[weather(city="Rome", days=2)]',
        signs=(("<start_of_turn>", "python list"), ("<start_of_turn>", "func_name1(")), bare=True,
        begin="[", between=", ", end="]",
    ),
    DeepSeek(
        name="deepseek-v3", models="DeepSeek V3, R1",
        example=f"{CALLS_BEGIN}{CALL_BEGIN}function{SEPARATOR}weather\n```json\n{ARGUMENTS}\n```{CALL_END}{CALLS_END}",
        signs=((CALLS_BEGIN, "```json"),),
        openings=(CALLS_BEGIN, CALL_BEGIN), inner=(SEPARATOR, CALL_END, CALLS_END), fenced=True,
        begin=CALLS_BEGIN, between="\n", end=CALLS_END,
    ),
    DeepSeek(
        name="deepseek-v3.1", models="DeepSeek V3.1",
        example=f"{CALLS_BEGIN}{CALL_BEGIN}weather{SEPARATOR}{ARGUMENTS}{CALL_END}{CALLS_END}",
        signs=((CALLS_BEGIN,),), unless=("```json",),
        openings=(CALLS_BEGIN, CALL_BEGIN), inner=(SEPARATOR, CALL_END, CALLS_END),
        begin=CALLS_BEGIN, end=CALLS_END,
    ),
    XmlParameters(
        name="seed-oss", models="Seed-OSS",
        example="<seed:tool_call>\n<function=weather>\n<parameter=city>Rome</parameter>\n<parameter=days>2</parameter>\n"
        "</function>\n</seed:tool_call>",
        signs=(("<seed:tool_call>",),), openings=("<seed:tool_call>", "<function="),
        thinking={"<seed:think>": "</seed:think>"},
        name_tag=("<function=", ">"), key_tag=("<parameter=", ">"), value_tag=("", "</parameter>"),
        closings=("</function>", "</seed:tool_call>"),
        begin="<seed:tool_call>\n", between="</function>\n</seed:tool_call>\n<seed:tool_call>\n",
        end="</function>\n</seed:tool_call>",
    ),
    XmlParameters(
        name="qwen3-coder", models="Qwen3-Coder, Qwen3.5",
        example="<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        "</function>\n</tool_call>",
        signs=(("<function=", "<parameter="), ("<function=", "<tool_call>")), openings=("<tool_call>", "<function="),
        name_tag=("<function=", ">"), key_tag=("<parameter=", ">"), value_tag=("", "</parameter>"), lines=True,
        closings=("</function>", "</tool_call>"),
        begin="<tool_call>\n", between="</function>\n</tool_call>\n<tool_call>\n", end="</function>\n</tool_call>",
    ),
    XmlParameters(
        name="glm-4.5", models="GLM-4.5, GLM-4.6, GLM-4.7",
        example="<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>2</arg_value>\n</tool_call>",
        signs=(("<arg_key>",),), openings=("<tool_call>",),
        name_tag=("", ""), key_tag=("<arg_key>", "</arg_key>"), value_tag=("<arg_value>", "</arg_value>"),
        closings=("</tool_call>",),
        begin="<tool_call>", between="</tool_call>\n<tool_call>", end="</tool_call>",
    ),
    NameAndJson(
        name="glm-4", models="GLM-4",
        example=f"weather\n{ARGUMENTS}",
        signs=(("<|observation|>",),), between="\n",
    ),
    Mistral(
        name="mistral-v11", models="Mistral Small 3.2",
        example=f"{TOOL_CALLS}weather{CALL_ID}abcdef123{ARGS}{ARGUMENTS}",
        signs=((TOOL_CALLS, CALL_ID),), openings=(TOOL_CALLS,), inner=(CALL_ID, ARGS), thinking=THINKING_OF_MISTRAL,
        begin=TOOL_CALLS, between=TOOL_CALLS, with_id=True,
    ),
    Mistral(
        name="mistral-v13", models="Devstral, Magistral 1.1, Ministral 3",
        example=f"{TOOL_CALLS}weather{ARGS}{ARGUMENTS}",
        signs=((TOOL_CALLS, ARGS),), openings=(TOOL_CALLS,), inner=(CALL_ID, ARGS), thinking=THINKING_OF_MISTRAL,
        begin=TOOL_CALLS, between=TOOL_CALLS,
    ),
    Mistral(
        name="mistral", models="Mistral 7B v0.3, Nemo, Small 3.1, Ministral 8B",
        example=f"{TOOL_CALLS}[{CALL_OBJECT}]",
        signs=((TOOL_CALLS,),), openings=(TOOL_CALLS,), inner=(CALL_ID, ARGS), thinking=THINKING_OF_MISTRAL,
        begin=f"{TOOL_CALLS}[", between=", ", end="]", listed=True,
    ),
    JsonObjects(
        name="command-r", models="Command-R, Command-R7B, Command A",
        example='<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "weather", "parameters": '
        f"{ARGUMENTS}}}]<|END_ACTION|>",
        signs=(("<|START_ACTION|>",), ("<|CHATBOT_TOKEN|>", "tool_name")),
        openings=("<|START_ACTION|>", "Action:"), closings=("<|END_ACTION|>",),
        thinking={"<|START_THINKING|>": "<|END_THINKING|>"}, silent=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        name_key="tool_name", arguments_key="parameters", before='"tool_call_id": "0", ',
        begin="<|START_ACTION|>[", between=", ", end="]<|END_ACTION|>",
    ),
    JsonObjects(
        name="phi4", models="Phi-4-mini",
        example=f"<|tool_call|>[{CALL_OBJECT}]<|/tool_call|>",
        signs=(("<|tool|>",), ("<|/tool_call|>",), ("functools",)),
        openings=("<|tool_call|>", "functools"), closings=("<|/tool_call|>",),
        begin="<|tool_call|>[", between=", ", end="]<|/tool_call|>",
    ),
    JsonObjects(
        name="apertus", models="Apertus",
        example=f'<|tools_prefix|>[{{"weather": {ARGUMENTS}}}]<|tools_suffix|>',
        signs=(("<|tools_prefix|>",),), openings=("<|tools_prefix|>",), closings=("<|tools_suffix|>",), by_name=True,
        thinking={"<|inner_prefix|>": "<|inner_suffix|>"},
        begin="<|tools_prefix|>[", between=", ", end="]<|tools_suffix|>",
    ),
    JsonObjects(
        name="hunyuan", models="Hunyuan",
        example=f"<tool_calls>[{CALL_OBJECT}]</tool_calls>",
        signs=(("<tool_calls>",),), openings=("<tool_calls>",), closings=("</tool_calls>",),
        begin="<tool_calls>[", between=", ", end="]</tool_calls>",
    ),
    JsonObjects(
        name="granite", models="Granite 3",
        example=f"<|tool_call|>[{CALL_OBJECT}]",
        signs=(("<|tool_call|>",),), openings=("<|tool_call|>", "<tool_call>"), closings=("</tool_call>",),
        begin="<|tool_call|>[", between=", ", end="]",
    ),
    JsonObjects(
        name="nemotron", models="Nemotron Nano 2, Llama-3.3-Nemotron",
        example=f"<TOOLCALL>[{CALL_OBJECT}]</TOOLCALL>",
        signs=(("<TOOLCALL>",),), openings=("<TOOLCALL>",), closings=("</TOOLCALL>",),
        begin="<TOOLCALL>[", between=", ", end="]</TOOLCALL>",
    ),
    JsonObjects(
        name="llama3", models="Llama 3.1, 3.2, 3.3, Llama 4",
        example=f'{{"name": "weather", "parameters": {ARGUMENTS}}}',
        signs=(('"parameters"', "<|start_header_id|>"), ('"parameters"', "<|header_start|>")),
        openings=("<|python_tag|>",), bare=True, arguments_key="parameters", between="; ",
    ),
    JsonObjects(
        name="hermes", models="Hermes 2 and 3, Qwen 2.5, Qwen 3, SmolLM3, Granite 4, Falcon-H1, EXAONE 4",
        example=f"<tool_call>\n{CALL_OBJECT}\n</tool_call>",
        signs=(("<tool_call>", "tojson"), ("<tool_call>", "</tool_call>")),
        openings=("<tool_call>",), closings=("</tool_call>",),
        begin="<tool_call>\n", between="\n</tool_call>\n<tool_call>\n", end="\n</tool_call>",
    ),
)  # fmt: skip

FORMATS: dict[str, ToolFormat] = {each.name: each for each in _FORMATS}
"""All formats by name. The first one that a template asks for is taken."""


def recognise(template: str) -> ToolFormat | None:
    """Return the format that a chat template asks the model for; None for one without tools, or of another format."""
    if not re.search(r"\b(xml_)?tools\b", template):
        return None
    return next((each for each in FORMATS.values() if each.is_asked_for_by(template)), None)
