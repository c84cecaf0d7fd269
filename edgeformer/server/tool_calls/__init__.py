"""Tool calls: how models write them, how they are read from an answer, and grammars that hold an answer to them.

    table           all formats by name; which one a chat template asks for
    reader          divides an answer, piece by piece, into text and calls
    format          what a format has to say: marks, how a call is read, how a grammar writes it
    source, lark    primitives of readers and of grammars

    json_objects    JSON objects behind a mark           Hermes, Qwen, Llama 3, Granite, Phi-4, Apertus, Command-R
    named_json      a name, then a JSON object           Mistral, DeepSeek, GLM-4
    xml_parameters  a tag for every parameter            Qwen3-Coder, GLM-4.5, Seed-OSS
    pythonic        calls of Python with keywords        LFM2, Gemma 3, OLMo 3
    gemma           Gemma's own notation                 FunctionGemma, Gemma 4
    harmony         messages in channels                 gpt-oss

A new format is an entry of `table.FORMATS`, and a file if its syntax is new. `tests/server/test_tool_calls.py` holds
the table complete: every format has an example, round trips and a grammar.
"""
