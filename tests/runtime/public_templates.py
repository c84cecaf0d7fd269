"""Chat templates in the forms of public models, shortened and in words of our own: each takes what its model's takes.

The marks, the order of the parts, the loops and conditions are those of the models, as are the filters and functions
that they call; long instructions are cut to a few words.
"""

CHATML = """\
{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You help.<|im_end|>
' }}{% endif %}{{ '<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

QWEN2_5 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- else %}{{- 'You help.' }}{%- endif %}
    {{- "\n\n# Tools\n<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools>\nCall within <tool_call></tool_call>:\n<tool_call>\n{\"name\": <name>}\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou help.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first)
        or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}{{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' }}{{- message.content }}{{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""

QWEN3 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- "# Tools\n<tools>" }}{%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools>\n<tool_call>\n{\"name\": <name>}\n</tool_call><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string
        and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}
    {%- else %}{%- set content = '' %}{%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' }}
            {{- content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}
                {%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' }}{{- content }}{{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}"""

QWEN3_THINKING = QWEN3[: QWEN3.rindex("{%- if add_generation_prompt %}")] + (
    r"""{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}"""
)

QWEN3_CODER = r"""{% macro render_extra_keys(json_dict, handled_keys) %}
    {%- if json_dict is mapping %}
        {%- for json_key in json_dict if json_key not in handled_keys %}
            {%- if json_dict[json_key] is mapping or (json_dict[json_key] is sequence and json_dict[json_key] is not string) %}
                {{- '\n<' ~ json_key ~ '>' ~ (json_dict[json_key] | tojson | safe) ~ '</' ~ json_key ~ '>' }}
            {%- else %}
                {{- '\n<' ~ json_key ~ '>' ~ (json_dict[json_key] | string) ~ '</' ~ json_key ~ '>' }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{% endmacro %}
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = [] %}{%- endif %}
{%- if system_message is defined %}
    {{- "<|im_start|>system\n" + system_message }}
{%- elif tools is iterable and tools | length > 0 %}
    {{- "<|im_start|>system\nYou help." }}
{%- endif %}
{%- if tools is iterable and tools | length > 0 %}
    {{- "\n\n# Tools\n<tools>" }}
    {%- for tool in tools %}
        {%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
        {{- "\n<function>\n<name>" ~ tool.name ~ "</name>" }}
        {%- if tool.description is defined %}
            {{- '\n<description>' ~ (tool.description | trim) ~ '</description>' }}
        {%- endif %}
        {{- '\n<parameters>' }}
        {%- if tool.parameters is defined and tool.parameters is mapping and tool.parameters.properties is defined
            and tool.parameters.properties is mapping %}
            {%- for param_name, param_fields in tool.parameters.properties|items %}
                {{- '\n<parameter>' }}{{- '\n<name>' ~ param_name ~ '</name>' }}
                {%- if param_fields.type is defined %}{{- '\n<type>' ~ (param_fields.type | string) ~ '</type>' }}{%- endif %}
                {%- set handled_keys = ['name', 'type', 'description'] %}
                {{- render_extra_keys(param_fields, handled_keys) }}{{- '\n</parameter>' }}
            {%- endfor %}
        {%- endif %}
        {%- set handled_keys = ['type', 'properties'] %}
        {{- render_extra_keys(tool.parameters, handled_keys) }}{{- '\n</parameters>\n</function>' }}
    {%- endfor %}
    {{- "\n</tools>\n<tool_call>\n<function=f>\n<parameter=p>\nv\n</parameter>\n</function>\n</tool_call>" }}
{%- endif %}
{%- if system_message is defined or (tools is iterable and tools | length > 0) %}{{- '<|im_end|>\n' }}{%- endif %}
{%- for message in loop_messages %}
    {%- if message.role == "assistant" and message.tool_calls is defined and message.tool_calls is iterable
        and message.tool_calls | length > 0 %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content is defined and message.content is string and message.content | trim | length > 0 %}
            {{- '\n' + message.content | trim + '\n' }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\n<tool_call>\n<function=' + tool_call.name + '>\n' }}
            {%- if tool_call.arguments is defined %}
                {%- for args_name, args_value in tool_call.arguments|items %}
                    {{- '<parameter=' + args_name + '>\n' }}
                    {%- set args_value = args_value | tojson | safe if args_value is mapping or (args_value is sequence
                        and args_value is not string) else args_value | string %}
                    {{- args_value }}{{- '\n</parameter>\n' }}
                {%- endfor %}
            {%- endif %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "user" or message.role == "system" or message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}{{- '<|im_start|>user\n' }}{%- endif %}
        {{- '<tool_response>\n' }}{{- message.content }}{{- '\n</tool_response>\n' }}
        {%- if not loop.last and loop.nextitem.role != "tool" %}{{- '<|im_end|>\n' }}
        {%- elif loop.last %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""

LLAMA2 = """\
{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}\
{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}\
{% set system_message = false %}{% endif %}{% for message in loop_messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if loop.index0 == 0 and system_message != false %}\
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}\
{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}\
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}\
{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

LLAMA3 = """\
{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

LLAMA3_1 = r"""{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not tools_in_user_message is defined %}{%- set tools_in_user_message = true %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}{{- "Environment: ipython\n" }}{%- endif %}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- 'Respond as {"name": function name, "parameters": dictionary}.\n\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\n\nRespond as {"name": function name, "parameters": dictionary}.\n\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}
    {{- first_user_message + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("This model only supports single tool-calls at once!") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or (message.content is iterable and message.content is not string) %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
"""

LLAMA3_2_VISION = r"""{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- if messages[0]['content'] is string %}{%- set system_message = messages[0]['content']|trim %}
    {%- else %}{%- set system_message = messages[0]['content'][0]['text']|trim %}{%- endif %}
    {%- set messages = messages[1:] %}
    {{- "<|start_header_id|>system<|end_header_id|>\n\n" + system_message + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
    {%- if message['content'] is string %}
        {{- message['content'] }}
    {%- else %}
        {%- for content in message['content'] %}
            {%- if content['type'] == 'image' %}{{- '<|image|>' }}
            {%- elif content['type'] == 'text' %}{{- content['text'] }}{%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
"""

LLAMA4 = r"""{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- if messages[0]['content'] is string %}{%- set system_message = messages[0]['content']|trim %}
    {%- else %}{%- set system_message = messages[0]['content'][0]['text']|trim %}{%- endif %}
    {%- set messages = messages[1:] %}{%- set user_supplied_system_message = true %}
{%- else %}
    {%- set system_message = "" %}{%- set user_supplied_system_message = false %}
{%- endif %}
{%- if user_supplied_system_message %}{{- "<|header_start|>system<|header_end|>\n\n" + system_message + "<|eot|>" }}{%- endif %}
{%- if tools %}
    {{- '<|header_start|>user<|header_end|>\n\n{"name": function name, "parameters": dictionary}\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}{{- "<|eot|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|header_start|>' + message['role'] + '<|header_end|>\n\n' }}
        {%- if message['content'] is string %}{{- message['content'] }}
        {%- else %}
            {%- for content in message['content'] %}
                {%- if content['type'] == 'image' %}{{- '<|image|>' }}
                {%- elif content['type'] == 'text' %}{{- content['text'] | trim }}{%- endif %}
            {%- endfor %}
        {%- endif %}
        {{- "<|eot|>" }}
    {%- elif 'tool_calls' in message and message.tool_calls|length > 0 %}
        {{- '<|header_start|>assistant<|header_end|>\n\n' -}}
        {%- if message['content'] is string %}{{- message['content'] }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {{- '{"name": "' + tool_call.function.name + '", "parameters": ' }}{{- tool_call.function.arguments | tojson }}{{- "}" }}
        {%- endfor %}
        {{- "<|eot|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|header_start|>ipython<|header_end|>\n\n" }}
        {%- if message.content is string %}{{- message.content | tojson }}
        {%- else %}
            {%- for content in message['content'] %}{%- if content['type'] == 'text' %}{{- content['text'] | tojson }}{%- endif %}{%- endfor %}
        {%- endif %}
        {{- "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header_start|>assistant<|header_end|>\n\n' }}{%- endif %}
"""

MISTRAL_V1 = """\
{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}\
{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""

MISTRAL_V3 = r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
            {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
        {%- endif %}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
{%- endfor %}
"""

MISTRAL_SMALL_3_1 = r"""{%- set today = strftime_now("%Y-%m-%d") %}
{%- set default_system_message = "You help. Today is " + today + "." %}
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- if messages[0]['content'] is string %}{%- set system_message = messages[0]['content'] %}
    {%- else %}{%- set system_message = messages[0]['content'][0]['text'] %}{%- endif %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = default_system_message %}{%- set loop_messages = messages %}
{%- endif %}
{{- '[SYSTEM_PROMPT]' + system_message + '[/SYSTEM_PROMPT]' }}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if message['content'] is string %}
            {{- '[INST]' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST]' }}
            {%- for block in message['content'] %}
                {%- if block['type'] == 'text' %}{{- block['text'] }}
                {%- elif block['type'] in ['image', 'image_url'] %}{{- '[IMG]' }}
                {%- else %}{{- raise_exception('Only text and image blocks are supported in message content!') }}{%- endif %}
            {%- endfor %}
            {{- '[/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'system' %}
        {%- if message['content'] is string %}{{- '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}
        {%- else %}{{- '[SYSTEM_PROMPT]' + message['content'][0]['text'] + '[/SYSTEM_PROMPT]' }}{%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {%- if message['content'] is string %}{{- message['content'] + eos_token }}
        {%- else %}{{- message['content'][0]['text'] + eos_token }}{%- endif %}
    {%- else %}
        {{- raise_exception('Only user, system and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}
"""

MISTRAL_V11 = r"""{{- bos_token }}
{%- if messages[0]["role"] == "system" %}{{- "[SYSTEM_PROMPT]" + messages[0]["content"] + "[/SYSTEM_PROMPT]" }}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- if tools %}{{- "[AVAILABLE_TOOLS]" + (tools | tojson) + "[/AVAILABLE_TOOLS]" }}{%- endif %}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}{{- "[INST]" + message["content"] + "[/INST]" }}
    {%- elif message["role"] == "assistant" %}
        {%- if message.tool_calls is defined and message.tool_calls is not none and message.tool_calls|length > 0 %}
            {%- if message["content"] is defined and message["content"] is not none and message["content"]|length > 0 %}{{- message["content"] }}{%- endif %}
            {%- for tool_call in message.tool_calls %}
                {{- "[TOOL_CALLS]" + tool_call["function"]["name"] + "[CALL_ID]" + tool_call["id"] + "[ARGS]" }}
                {%- set arguments = tool_call["function"]["arguments"] %}
                {{- (arguments if arguments is string else arguments | tojson) }}
            {%- endfor %}
            {{- eos_token }}
        {%- else %}
            {{- message["content"] + eos_token }}
        {%- endif %}
    {%- elif message["role"] == "tool" %}
        {{- "[TOOL_RESULTS]" + message["tool_call_id"] + "[TOOL_CONTENT]" + message["content"] + "[/TOOL_RESULTS]" }}
    {%- else %}{{- raise_exception("Only user, system, assistant and tool roles are supported!") }}{%- endif %}
{%- endfor %}
"""

MAGISTRAL = r"""{{- bos_token }}
{%- set default = "Think within [THINK] and [/THINK] first." %}
{%- if messages[0]['role'] != 'system' %}{%- set loop_messages = messages %}
{{- '[SYSTEM_PROMPT]' + default + '[/SYSTEM_PROMPT]' }}
{%- else %}{%- set loop_messages = messages[1:] %}
    {{- '[SYSTEM_PROMPT]' -}}
    {%- if messages[0]['content'] is string %}{{- messages[0]['content'] -}}
    {%- else %}
        {%- for block in messages[0]['content'] %}
            {%- if block['type'] == 'text' %}{{- block['text'] }}
            {%- elif block['type'] == 'thinking' %}{{- '[THINK]' + block['thinking'] + '[/THINK]' }}{%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '[/SYSTEM_PROMPT]' -}}
{%- endif %}
{%- if tools %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {{- '[INST]' }}
        {%- if message['content'] is string %}{{- message['content'] }}
        {%- else %}{%- for block in message['content'] %}{%- if block['type'] == 'text' %}{{- block['text'] }}{%- endif %}{%- endfor %}{%- endif %}
        {{- '[/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {%- if message['content'] is string %}{{- message['content'] }}
        {%- elif message['content'] is iterable %}
            {%- for block in message['content'] %}
                {%- if block['type'] == 'text' %}{{- block['text'] }}
                {%- elif block['type'] == 'thinking' %}{{- '[THINK]' + block['thinking'] + '[/THINK]' }}{%- endif %}
            {%- endfor %}
        {%- endif %}
        {%- for tool in message['tool_calls'] or [] %}
            {{- '[TOOL_CALLS]' + tool['function']['name'] + '[ARGS]' }}
            {%- set arguments = tool['function']['arguments'] %}
            {{- (arguments if arguments is string else arguments | tojson) }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif message['role'] == 'tool' %}
        {{- '[TOOL_RESULTS]' + message['content'] | string + '[/TOOL_RESULTS]' }}
    {%- else %}{{- raise_exception('Only user, assistant, system and tool roles are supported.') }}{%- endif %}
{%- endfor %}
"""

GEMMA2 = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""

GEMMA3 = r"""{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}
    {%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\n'}}{%- endif -%}
"""

GEMMA4 = r"""{%- macro strip_thinking(text) -%}
    {%- set ns = namespace(result='') -%}
    {%- for part in text.split('<channel|>') -%}
        {%- if '<|channel>' in part -%}{%- set ns.result = ns.result + part.split('<|channel>')[0] -%}
        {%- else -%}{%- set ns.result = ns.result + part -%}{%- endif -%}
    {%- endfor -%}
    {{- ns.result | trim -}}
{%- endmacro -%}
{%- macro format_argument(argument) -%}
    {%- if argument is string -%}{{- '<|"|>' + argument + '<|"|>' -}}
    {%- elif argument is boolean -%}{{- 'true' if argument else 'false' -}}
    {%- elif argument is mapping -%}
        {{- '{' -}}{%- for key, value in argument | dictsort -%}{{- key -}}:{{- format_argument(value) -}}{%- if not loop.last %},{% endif -%}{%- endfor -%}{{- '}' -}}
    {%- elif argument is sequence -%}
        {{- '[' -}}{%- for item in argument -%}{{- format_argument(item) -}}{%- if not loop.last %},{% endif -%}{%- endfor -%}{{- ']' -}}
    {%- else -%}{{- argument -}}{%- endif -%}
{%- endmacro -%}
{{ bos_token }}
{%- if (enable_thinking is defined and enable_thinking) or tools or messages[0]['role'] in ['system', 'developer'] -%}
    {{- '<|turn>system\n' -}}
    {%- if enable_thinking is defined and enable_thinking -%}{{- '<|think|>' -}}{%- endif -%}
    {%- if messages[0]['role'] in ['system', 'developer'] -%}
        {{- messages[0]['content'] | trim -}}{%- set messages = messages[1:] -%}
    {%- endif -%}
    {%- for tool in tools or [] -%}{{- '<|tool>declaration:' + tool['function']['name'] + format_argument(tool['function']['parameters']) + '<tool|>' -}}{%- endfor -%}
    {{- '<turn|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{- '<|turn>' + role + '\n' }}
    {%- for tool_call in message['tool_calls'] or [] -%}
        {%- set function = tool_call['function'] -%}
        {{- '<|tool_call>call:' + function['name'] + '{' -}}
        {%- if function['arguments'] is mapping -%}
            {%- for key, value in function['arguments'] | dictsort -%}{{- key + ':' + format_argument(value) -}}{%- if not loop.last %},{% endif -%}{%- endfor -%}
        {%- endif -%}
        {{- '}<tool_call|>' -}}
    {%- endfor -%}
    {%- if message['content'] is string -%}
        {%- if role == 'model' -%}{{- strip_thinking(message['content']) -}}{%- else -%}{{- message['content'] | trim -}}{%- endif -%}
    {%- elif message['content'] is sequence -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{- strip_thinking(item['text']) if role == 'model' else item['text'] | trim -}}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{- '<turn|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|turn>model\n' -}}{%- endif -%}
"""

FUNCTIONGEMMA = r"""{{ bos_token }}
{%- set first = messages[0] -%}
{%- if first['role'] in ['system', 'developer'] or tools -%}
    {{ '<start_of_turn>developer\n' }}
    {%- if first['role'] in ['system', 'developer'] -%}{{ first['content'] | trim }}{%- endif -%}
    {%- for tool in tools or [] -%}
        {{ '<start_function_declaration>declaration:' + tool.function.name + '{description:<escape>' + (tool.function.description or '') + '<escape>}<end_function_declaration>' }}
    {%- endfor -%}
    {{ '<end_of_turn>\n' }}
{%- endif -%}
{%- for message in messages -%}
    {%- if message['role'] not in ['system', 'developer'] -%}
        {{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}
        {%- if message['content'] is string -%}{{ message['content'] | trim }}{%- endif -%}
        {%- for call in message['tool_calls'] or [] -%}
            {{ '<start_function_call>call:' + call.function.name + '{' }}
            {%- for key, value in call.function.arguments.items() -%}{{ key + ':<escape>' ~ value ~ '<escape>' }}{%- if not loop.last -%},{%- endif -%}{%- endfor -%}
            {{ '}<end_function_call>' }}
        {%- endfor -%}
        {{ '<end_of_turn>\n' }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
"""

PHI3 = """\
{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}\
{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}\
{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""

PHI4 = """\
{% for message in messages %}{% if (message['role'] == 'system') %}{{'<|im_start|>system<|im_sep|>' + message['content'] + '<|im_end|>'}}\
{% elif (message['role'] == 'user') %}{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}\
{% elif (message['role'] == 'assistant') %}{{'<|im_start|>assistant<|im_sep|>' + message['content'] + '<|im_end|>'}}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"""

PHI4_MINI = """\
{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}\
{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}\
{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"""

SMOLLM3 = r"""{%- if enable_thinking is not defined -%}{%- set enable_thinking = true -%}{%- endif -%}
{%- if enable_thinking -%}{%- set reasoning_mode = "/think" -%}{%- else -%}{%- set reasoning_mode = "/no_think" -%}{%- endif -%}
{{- "<|im_start|>system\n" -}}
{%- if messages[0].role == "system" -%}
    {%- set system_message = messages[0].content -%}
    {%- if "/no_think" in system_message -%}{%- set reasoning_mode = "/no_think" -%}
    {%- elif "/think" in system_message -%}{%- set reasoning_mode = "/think" -%}{%- endif -%}
    {%- set custom_instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{%- if "/system_override" in system_message -%}
    {{- custom_instructions.replace("/system_override", "").rstrip() -}}{{- "<|im_end|>\n" -}}
{%- else -%}
    {{- "## Metadata\n\nToday Date: " -}}{%- set today = strftime_now("%d %B %Y") -%}{{- today ~ "\n" -}}
    {{- "Reasoning Mode: " + reasoning_mode + "\n\n## Custom Instructions\n\n" -}}
    {%- if custom_instructions -%}{{- custom_instructions + "\n\n" -}}{%- else -%}{{- "You help.\n\n" -}}{%- endif -%}
    {%- if xml_tools or python_tools or tools -%}
        {{- "### Tools\n\n" -}}
        {%- if xml_tools or tools -%}
            {%- if tools -%}{%- set xml_tools = tools -%}{%- endif -%}
            {%- set ns = namespace(xml_tool_string="<tools>\n") -%}
            {%- for tool in xml_tools[:] -%}{%- set ns.xml_tool_string = ns.xml_tool_string ~ (tool | string) ~ "\n" -%}{%- endfor -%}
            {{- ns.xml_tool_string + "</tools>\n<tool_call>\n{\"name\": <name>}\n</tool_call>" -}}
        {%- endif -%}
        {{- "\n\n" -}}
    {%- endif -%}
    {{- "<|im_end|>\n" -}}
{%- endif -%}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}
        {{ "<|im_start|>" + message.role + "\n" + content + "<|im_end|>\n" }}
    {%- elif message.role == "assistant" -%}
        {%- generation -%}
        {%- if reasoning_mode == "/think" -%}
            {{ "<|im_start|>assistant\n" + content.lstrip("\n") + "<|im_end|>\n" }}
        {%- else -%}
            {{ "<|im_start|>assistant\n" + "<think>\n\n</think>\n" + content.lstrip("\n") + "<|im_end|>\n" }}
        {%- endif -%}
        {%- endgeneration -%}
    {%- elif message.role == "tool" -%}
        {{ "<|im_start|>" + "user\n" + content + "<|im_end|>\n" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {%- if reasoning_mode == "/think" -%}{{ "<|im_start|>assistant\n" }}
    {%- else -%}{{ "<|im_start|>assistant\n" + "<think>\n\n</think>\n" }}{%- endif -%}
{%- endif -%}
"""

SMOLVLM = """\
<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}\
{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}\
{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}\
{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>
{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""

LLAVA = """\
{% for message in messages %}{{'<|im_start|>' + message['role'] + ' '}}\
{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>' }}{% endfor %}\
{% if message['role'] != 'assistant' %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}\
{{ '\\n' + content['text'] }}{% endfor %}{% else %}\
{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{% generation %}{{ '\\n' + content['text'] }}{% endgeneration %}\
{% endfor %}{% endif %}{{'<|im_end|>'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

GRANITE3 = r"""{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "Knowledge Cutoff Date: April 2024.\nToday's Date: " + strftime_now('%B %d, %Y') + ".\nYou are Granite." %}
    {%- if tools and documents %}{%- set system_message = system_message + " Use tools and documents." %}
    {%- elif tools %}{%- set system_message = system_message + " Use tools." %}
    {%- elif thinking %}{%- set system_message = system_message + " Think within <think></think>, answer within <response></response>." %}
    {%- endif %}
    {%- if 'citations' in controls and documents %}{%- set system_message = system_message + " Cite." %}{%- endif %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\n' }}
{%- if tools %}
    {{- '<|start_of_role|>tools<|end_of_role|>' }}{{- tools | tojson(indent=4) }}{{- '<|end_of_text|>\n' }}
{%- endif %}
{%- if documents %}
    {%- for document in documents %}
        {{- '<|start_of_role|>document {"document_id": "' + document['doc_id'] | string + '"}<|end_of_role|>\n' + document['text'] + '<|end_of_text|>\n' }}
    {%- endfor %}
{%- endif %}
{%- for message in loop_messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' }}
    {%- if message['role'] == 'assistant' and message['tool_calls'] %}{{- '<|tool_call|>' + message['tool_calls'] | map(attribute='function') | list | tojson }}
    {%- else %}{{- message['content'] }}{%- endif %}
    {{- '<|end_of_text|>\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant' }}
        {%- if controls %}{{- ' ' + controls | tojson() }}{%- endif %}
        {{- '<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}"""

GRANITE4 = r"""{%- set tools_prefix = 'You may call tools.\n<tools>' %}
{%- set ns = namespace(system=messages[0]['content'] if messages[0]['role'] == 'system' else '') %}
{%- set ns.start = 1 if messages[0]['role'] == 'system' else 0 %}
{%- if tools %}
    {%- set ns.tools = tools_prefix %}
    {%- for tool in tools %}{%- set ns.tools = ns.tools ~ '\n' ~ (tool | tojson) %}{%- endfor %}
    {%- set ns.system = ns.system ~ ('\n\n' if ns.system else '') ~ ns.tools ~ '\n</tools>\n<tool_call>\n{"name": <name>}\n</tool_call>' %}
{%- endif %}
{%- if ns.system %}{{- '<|start_of_role|>system<|end_of_role|>' + ns.system + '<|end_of_text|>\n' }}{%- endif %}
{%- for message in messages[ns.start:] %}
    {%- set content = namespace(val='') %}
    {%- if message.content is string %}{%- set content.val = message.content %}
    {%- elif message.content is iterable %}
        {%- for entry in message.content %}
            {%- if entry.type == 'text' %}{%- set content.val = content.val ~ ('' if loop.first else '\n') ~ entry.text %}{%- endif %}
        {%- endfor %}
    {%- endif %}
    {%- if message.role == 'user' or message.role == 'system' %}
        {{- '<|start_of_role|>' + message.role + '<|end_of_role|>' + content.val + '<|end_of_text|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|start_of_role|>' + message.role + '<|end_of_role|>' + content.val }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '<tool_call>\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments if tool_call.arguments is string else tool_call.arguments | tojson }}{{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|end_of_text|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[ns.start:][loop.index0 - 1].role != 'tool' %}{{- '<|start_of_role|>user<|end_of_role|>' }}{%- endif %}
        {{- '\n<tool_response>\n' + content.val + '\n</tool_response>' }}
        {%- if loop.last or messages[ns.start:][loop.index0 + 1].role != 'tool' %}{{- '<|end_of_text|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}
"""

GLM4 = """\
[gMASK]<sop>{% for item in messages %}{% if item['tools'] is defined %}<|system|>
You are ChatGLM.{% set tools = item['tools'] %}{% for tool in tools %}{% if tool['type'] == 'function' %}

## {{ tool['function']['name'] }}

{{ tool['function'] | tojson(indent=4) }}
Call it in JSON.{% endif %}{% endfor %}{% endif %}{% if item['content'] %}<|{{ item['role'] }}|>{{ item['metadata'] }}
{{ item['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""

GLM4_5 = r"""[gMASK]<sop>
{%- if tools -%}
<|system|>
# Tools
<tools>
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
</tools>
<tool_call>{name}
<arg_key>{key}</arg_key>
<arg_value>{value}</arg_value>
</tool_call>{%- endif -%}
{%- macro visible_text(content) -%}
    {%- if content is string -%}{{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if item is mapping and item.type == 'text' -%}{{- item.text }}
            {%- elif item is string -%}{{- item }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{- content }}{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last_user_index=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{% set ns.last_user_index = loop.index0 -%}{%- endif %}{%- endfor %}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible_text(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not visible_text(m.content).endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}
<|assistant|>
{%- set reasoning_content = '' %}
{%- set content = visible_text(m.content) %}
{%- if m.reasoning_content is string %}{%- set reasoning_content = m.reasoning_content %}
{%- else %}
    {%- if '</think>' in content %}
        {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
{%- endif %}
{%- if loop.index0 > ns.last_user_index and reasoning_content -%}
{{ '\n<think>' + reasoning_content.strip() +  '</think>'}}
{%- else -%}
{{ '\n<think></think>' }}
{%- endif -%}
{%- if content.strip() -%}{{ '\n' + content.strip() }}{%- endif -%}
{% if m.tool_calls %}
{% for tc in m.tool_calls %}
{%- if tc.function %}{%- set tc = tc.function %}{%- endif %}
{{ '\n<tool_call>' + tc.name }}
{% set _args = tc.arguments %}
{% for k, v in _args.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}
</tool_call>{% endfor %}
{% endif %}
{%- elif m.role == 'tool' -%}
{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|observation|>' }}{%- endif %}
{{- '\n<tool_response>\n' }}{{- visible_text(m.content) }}{{- '\n</tool_response>' }}
{%- elif m.role == 'system' -%}
<|system|>
{{ visible_text(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    <|assistant|>{{- '\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}
{%- endif -%}"""

DEEPSEEK_V3 = """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}\
{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}\
{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}\
{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}\
{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}\
{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}\
{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and 'tool_calls' in message %}\
{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls'] %}{%- if loop.first %}{%- if message['content'] is undefined %}\
{{'<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments'] + '\\n' + '```' + '<｜tool▁call▁end｜>'}}\
{%- else %}{{'<｜Assistant｜>' + message['content'] + '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments'] + '\\n' + '```' + '<｜tool▁call▁end｜>'}}{%- endif %}\
{%- else %}{{'\\n' + '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments'] + '\\n' + '```' + '<｜tool▁call▁end｜>'}}{%- endif %}\
{%- endfor %}{{'<｜tool▁calls▁end｜><｜end▁of▁sentence｜>'}}{%- endif %}\
{%- if message['role'] == 'assistant' and 'tool_calls' not in message %}{%- if ns.is_tool %}\
{{'<｜tool▁outputs▁end｜>' + message['content'] + '<｜end▁of▁sentence｜>'}}{%- set ns.is_tool = false -%}{%- else %}\
{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}\
{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endif %}\
{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}\
{{'<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}{%- set ns.is_output_first = false %}\
{%- else %}{{'<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}{%- endif %}{%- endif %}{%- endfor -%}\
{% if ns.is_tool %}{{'<｜tool▁outputs▁end｜>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜>'}}{% endif %}"""

DEEPSEEK_R1 = DEEPSEEK_V3.replace("{{'<｜Assistant｜>'}}{% endif %}", "{{'<｜Assistant｜><think>\\n'}}{% endif %}")

DEEPSEEK_V3_1 = r"""{% if not thinking is defined %}{% set thinking = false %}{% endif %}
{%- set ns = namespace(system_prompt='', is_last_user=false) %}
{%- for message in messages %}{%- if message['role'] == 'system' %}{%- set ns.system_prompt = ns.system_prompt + message['content'] %}{%- endif %}{%- endfor %}
{{- bos_token }}{{- ns.system_prompt }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}{%- set ns.is_last_user = true %}{{- '<｜User｜>' + message['content'] }}
    {%- elif message['role'] == 'assistant' %}
        {%- if ns.is_last_user %}{{- '<｜Assistant｜></think>' }}{%- endif %}
        {%- set ns.is_last_user = false %}
        {%- set content = message['content'] or '' %}
        {%- if '</think>' in content %}{%- set content = content.split('</think>', 1)[1] -%}{%- endif %}
        {{- content }}
        {%- for tool in message['tool_calls'] or [] %}
            {%- if loop.first %}{{- '<｜tool▁calls▁begin｜>' }}{%- endif %}
            {{- '<｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>' + tool['function']['arguments'] + '<｜tool▁call▁end｜>' }}
            {%- if loop.last %}{{- '<｜tool▁calls▁end｜>' }}{%- endif %}
        {%- endfor %}
        {{- '<｜end▁of▁sentence｜>' }}
    {%- elif message['role'] == 'tool' %}
        {{- '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt and ns.is_last_user %}
    {{- '<｜Assistant｜>' }}
    {%- if not thinking %}{{- '</think>' }}{%- else %}{{- '<think>' }}{%- endif %}
{%- endif %}
"""

GPT_OSS = r"""{%- macro render_tool(tool) -%}
    {{- "type " + tool.name + " = (_: " + (tool.parameters | tojson) + ") => any;\n" }}
{%- endmacro -%}
{%- macro build_system_message() -%}
    {%- if model_identity is not defined %}{%- set model_identity = "You are ChatGPT." %}{%- endif %}
    {{- model_identity + "\nCurrent date: " + strftime_now("%Y-%m-%d") + "\n\n" }}
    {%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif %}
    {{- "Reasoning: " + reasoning_effort + "\n\n# Valid channels: analysis, commentary, final." }}
    {%- if tools -%}{{- "\nCalls to these tools must go to the commentary channel: 'functions'." }}{%- endif -%}
{%- endmacro -%}
{{- "<|start|>system<|message|>" }}{{- build_system_message() }}{{- "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {%- set developer_message = messages[0].content %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set developer_message = "" %}{%- set loop_messages = messages %}
{%- endif %}
{%- if developer_message or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if developer_message %}{{- "# Instructions\n\n" + developer_message + "\n\n" }}{%- endif %}
    {%- if tools -%}
        {{- "# Tools\n\nnamespace functions {\n" }}{%- for tool in tools %}{{- render_tool(tool.function) }}{%- endfor %}{{- "}" }}
    {%- endif -%}
    {{- "<|end|>" }}
{%- endif %}
{%- set last_tool_call = namespace(name=none) %}
{%- for message in loop_messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "content" in message %}
            {%- if "<|channel|>analysis<|message|>" in message.content or "<|channel|>final<|message|>" in message.content %}
                {{- raise_exception("You have passed a message containing <|channel|> tags in the content field.") }}
            {%- endif %}
        {%- endif %}
        {%- if "thinking" in message %}
            {%- if "<|channel|>analysis<|message|>" in message.thinking %}{{- raise_exception("channel tags in thinking") }}{%- endif %}
        {%- endif %}
        {%- if "tool_calls" in message %}
            {%- set future_final_message = namespace(found=false) %}
            {%- for future_message in loop_messages[loop.index:] %}
                {%- if future_message.role == 'assistant' and "tool_calls" not in future_message %}{%- set future_final_message.found = true %}{%- endif %}
            {%- endfor %}
            {%- set tool_call = message.tool_calls[0] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {%- if message.content and message.thinking %}{{- raise_exception("Cannot pass both content and thinking in an assistant message with tool calls!") }}
            {%- elif message.content and not future_final_message.found %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.content + "<|end|>" }}
            {%- elif message.thinking and not future_final_message.found %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
            {%- endif %}
            {{- "<|start|>assistant to=functions." + tool_call.name + "<|channel|>commentary json<|message|>" }}
            {{- tool_call.arguments|tojson }}{{- "<|call|>" }}
            {%- set last_tool_call.name = tool_call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {%- if "thinking" in message %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}{%- endif %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
            {%- set last_tool_call.name = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last_tool_call.name is none %}{{- raise_exception("Message has tool role, but there was no previous assistant message with a tool call!") }}{%- endif %}
        {{- "<|start|>functions." + last_tool_call.name + " to=assistant<|channel|>commentary<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|start|>assistant" }}{%- endif -%}
"""

COMMAND_R = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}\
{% elif false == true %}{% set loop_messages = messages %}{% set system_message = 'You are Command-R.' %}\
{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}\
{% if system_message != false %}{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message + '<|END_OF_TURN_TOKEN|>' }}{% endif %}\
{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% set content = message['content'] %}{% if message['role'] == 'user' %}\
{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% elif message['role'] == 'assistant' %}\
{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>'  + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"""

COMMAND_R_TOOLS = (
    r"""
{%- macro json_to_python_type(json_spec) %}
{%- set basic_type_map = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}
{%- if basic_type_map[json_spec.type] is defined %}{{- basic_type_map[json_spec.type] }}
{%- elif json_spec.type == "array" %}{{- "List[" +  json_to_python_type(json_spec["items"]) + "]"}}
{%- elif json_spec.type is iterable %}{{- "Union[" }}{%- for t in json_spec.type %}{{- json_to_python_type({"type": t}) }}{%- if not loop.last %}{{- "," }}{%- endif %}{%- endfor %}{{- "]" }}
{%- else %}{{- "Any" }}{%- endif %}
{%- endmacro %}
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}{%- set loop_messages = messages[1:] %}{%- set system_message = messages[0]['content'] %}
{%- else %}{%- set loop_messages = messages %}{%- set system_message = 'You help.' %}{%- endif %}
{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message + '\n\n## Available Tools\n' }}
{%- for tool in tools %}
    {%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
    {{- 'def ' + tool.name + '(' }}
    {%- for param_name, param_fields in tool.parameters.properties|items %}
        {{- param_name + ': ' + json_to_python_type(param_fields) }}
        {%- if not loop.last %}{{- ', ' }}{%- endif %}
    {%- endfor %}
    {{- ') -> List[Dict]:\n    """
    " + tool.description + "
    """\n    pass\n' }}
{%- endfor %}
{{- '<|END_OF_TURN_TOKEN|>' }}
{%- for message in loop_messages %}
    {%- set content = message['content'] %}
    {%- if message.role == 'user' %}{{- '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}
    {%- elif message.role == 'assistant' and message.tool_calls %}
        {{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Action: ```json\n[\n' }}
        {%- for call in message.tool_calls %}
            {%- set call = call.function %}
            {{- '{\n'|indent(4, first=true) }}{{- ('"tool_name": "' + call.name + '",\n')|indent(8, first=true) }}
            {{- '"parameters": '|indent(8, first=true) }}{{- (call.arguments|tojson(indent=4))|indent(8) }}{{- '\n}'|indent(4, first=true) }}
            {%- if not loop.last %}{{- ',\n' }}{%- endif %}
        {%- endfor %}
        {{- '\n]```<|END_OF_TURN_TOKEN|>' }}
    {%- elif message.role == 'assistant' %}{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}
    {%- elif message.role == 'tool' %}{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><results>\n' + content.strip() + '</results><|END_OF_TURN_TOKEN|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{%- endif %}
"""
)

COMMAND_A = r"""{%- macro content_text(content) %}{%- if content is string %}{{- content }}{%- else %}{%- for item in content %}{%- if item.type == 'text' %}{{- item.text }}{%- endif %}{%- endfor %}{%- endif %}{% endmacro -%}
{{- bos_token }}<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|># System Preamble
{% if reasoning is defined and not reasoning %}Answer at once.{% else %}Think within <|START_THINKING|> and <|END_THINKING|>.{% endif %}
{%- if tools %}
## Available Tools
{% for tool in tools %}{{ tool.function | tojson }}
{% endfor %}{%- endif %}<|END_OF_TURN_TOKEN|>
{%- set state = namespace(index=0) %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + content_text(message.content) + '<|END_OF_TURN_TOKEN|>' }}
    {%- elif message.role == 'user' %}{{- '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content_text(message.content) + '<|END_OF_TURN_TOKEN|>' }}
    {%- elif message.role == 'assistant' or message.role == 'chatbot' %}
        {{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}
        {%- if message.tool_calls %}
            {{- '<|START_THINKING|>' + (message.tool_plan or message.reasoning_content or '') + '<|END_THINKING|><|START_ACTION|>[\n' }}
            {%- for call in message.tool_calls %}
                {{- '    {"tool_call_id": "' ~ state.index ~ '", "tool_name": "' + call.function.name + '", "parameters": ' + call.function.arguments | tojson + '}' }}
                {%- set state.index = state.index + 1 %}{%- if not loop.last %},{% endif %}
            {%- endfor %}
            {{- '\n]<|END_ACTION|>' }}
        {%- else %}
            {%- if message.reasoning_content %}{{- '<|START_THINKING|>' + message.reasoning_content + '<|END_THINKING|>' }}{%- endif %}
            {{- '<|START_RESPONSE|>' + content_text(message.content) + '<|END_RESPONSE|>' }}
        {%- endif %}
        {{- '<|END_OF_TURN_TOKEN|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><|START_TOOL_RESULT|>' + content_text(message.content) + '<|END_TOOL_RESULT|><|END_OF_TURN_TOKEN|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% if reasoning is defined and not reasoning %}<|START_THINKING|><|END_THINKING|>{% endif %}{%- endif %}"""

LFM2 = r"""{{- bos_token -}}
{%- set system_prompt = "" -%}
{%- set ns = namespace(system_prompt="") -%}
{%- if messages[0]["role"] == "system" -%}
    {%- set ns.system_prompt = messages[0]["content"] -%}{%- set messages = messages[1:] -%}
{%- endif -%}
{%- if tools -%}
    {%- set ns.system_prompt = ns.system_prompt + ("\n" if ns.system_prompt else "") + "List of tools: <|tool_list_start|>[" -%}
    {%- for tool in tools -%}
        {%- if tool is not string -%}{%- set tool = tool | tojson -%}{%- endif -%}
        {%- set ns.system_prompt = ns.system_prompt + tool -%}
        {%- if not loop.last -%}{%- set ns.system_prompt = ns.system_prompt + ", " -%}{%- endif -%}
    {%- endfor -%}
    {%- set ns.system_prompt = ns.system_prompt + "]<|tool_list_end|>" -%}
{%- endif -%}
{%- if ns.system_prompt -%}{{- "<|im_start|>system\n" + ns.system_prompt + "<|im_end|>\n" -}}{%- endif -%}
{%- for message in messages -%}
    {{- "<|im_start|>" + message["role"] + "\n" -}}
    {%- set content = message["content"] -%}
    {%- if content is not string -%}{%- set content = content | tojson -%}{%- endif -%}
    {%- if message["role"] == "tool" -%}{%- set content = "<|tool_response_start|>" + content + "<|tool_response_end|>" -%}{%- endif -%}
    {{- content + "<|im_end|>\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\n" -}}{%- endif -%}
"""

EXAONE4 = r"""{%- if not skip_think is defined %}{%- set skip_think = true %}{%- endif %}
{%- set ns = namespace(think=enable_thinking if enable_thinking is defined else false) %}
{%- for message in messages %}
    {%- if loop.first and (tools or message.role == 'system') %}
        {{- '[|system|]\n' }}{%- if message.role == 'system' %}{{- message.content }}{%- endif %}
        {%- if tools %}{{- '\n# Available Tools' }}{%- for tool in tools %}{{- '\n' + (tool | tojson(ensure_ascii=False)) }}{%- endfor %}{{- '\n<tool_call>{"name": n}</tool_call>' }}{%- endif %}
        {{- '[|endofturn|]\n' }}
        {%- if message.role == 'system' %}{%- continue %}{%- endif %}
    {%- endif %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content or '' %}
        {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].strip() %}{%- endif %}
        {{- '[|assistant|]\n' + content }}
        {%- for tool_call in message.tool_calls or [] %}{{- '\n<tool_call>{"name": "' + tool_call.function.name + '", "arguments": ' + (tool_call.function.arguments | tojson) + '}</tool_call>' }}{%- endfor %}
        {{- '[|endofturn|]\n' }}
    {%- elif message.role == 'tool' %}{{- '[|tool|]\n<tool_result>' + (message.content | string) + '</tool_result>[|endofturn|]\n' }}
    {%- else %}{{- '[|' + message.role + '|]\n' + message.content + '\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '[|assistant|]\n' }}{%- if ns.think %}{{- '<think>\n' }}{%- else %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}
"""

OLMO2 = """\
{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\n' + message['content'] + '\n' }}\
{% elif message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'assistant' %}\
{% if not loop.last %}{{ '<|assistant|>\n'  + message['content'] + eos_token + '\n' }}{% else %}\
{{ '<|assistant|>\n'  + message['content'] + eos_token }}{% endif %}{% endif %}\
{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"""

OLMO3_THINK = r"""{%- set has_system = messages|selectattr('role', 'equalto', 'system')|list|length > 0 -%}
{%- if not has_system -%}{{ '<|im_start|>system\nYou are OLMo.' }}
    {%- if tools is none -%}{{ ' You have no functions.<|im_end|>\n' }}
    {%- else -%}{{ '\n<functions>' + (tools | tojson) + '</functions><|im_end|>\n' }}{%- endif -%}
{%- endif -%}
{%- for message in messages -%}
    {%- if message['role'] == 'system' -%}
        {{ '<|im_start|>system\n' + message['content'] }}
        {%- if message.get('functions', none) is not none -%}{{ ' <functions>' + message['functions'] + '</functions>' }}{%- endif -%}
        {%- if tools is not none -%}{{ '<functions>' + (tools | tojson) + '</functions>' }}{%- endif -%}
        {{ '<|im_end|>\n' }}
    {%- elif message['role'] == 'user' -%}{{ '<|im_start|>user\n' + message['content'] + '<|im_end|>\n' }}
    {%- elif message['role'] == 'assistant' -%}
        {{ '<|im_start|>assistant\n' }}
        {%- if message.get('content', none) is not none -%}{{ message['content'] }}{%- endif -%}
        {%- if message.get('tool_calls', none) is not none -%}
            {{ '<function_calls>' }}
            {%- for tool_call in message['tool_calls'] -%}
                {%- if not loop.first %}{{ '\n' }}{%- endif -%}
                {%- set args = tool_call.function.arguments -%}
                {{ tool_call.function.name + '(' }}
                {%- for arg_name, arg_value in args.items() -%}{%- if not loop.first -%}{{ ', ' }}{%- endif -%}{{ arg_name + '=' + (arg_value | tojson) }}{%- endfor -%}
                {{ ')' }}
            {%- endfor -%}
            {{ '</function_calls>' }}
        {%- endif -%}
        {%- if not loop.last -%}{{ '<|im_end|>' + '\n' }}{%- else -%}{{ eos_token }}{%- endif -%}
    {%- elif message['role'] == 'tool' -%}{{ '<|im_start|>environment\n' + message['content'] + '<|im_end|>\n' }}{%- endif -%}
    {%- if loop.last and add_generation_prompt -%}{{ '<|im_start|>assistant\n<think>' }}{%- endif -%}
{%- endfor -%}"""

ZEPHYR = """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

VICUNA = """\
{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + ' ' }}{% else %}{{ 'A chat. ' }}{% endif %}\
{% for message in messages %}{% if message['role'] == 'user' %}{{ 'USER: ' + message['content'] + ' ' }}\
{% elif message['role'] == 'assistant' %}{{ 'ASSISTANT: ' + message['content'] + eos_token }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"""

TINYLLAMA_ALPACA = """\
{% for message in messages %}{% if message['role'] == 'user' %}### Instruction:
{{ message['content'] | trim }}

{% elif message['role'] == 'assistant' %}### Response:
{{ message['content'] | trim }}{{ eos_token }}

{% else %}{{ message['content'] | trim }}

{% endif %}{% endfor %}{% if add_generation_prompt %}### Response:
{% endif %}"""

FALCON3 = """\
{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\\n' + message['content'] + '\\n' }}\
{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '\\n' }}{% elif message['role'] == 'assistant' %}\
{% if not loop.last %}{{ '<|assistant|>\\n' + message['content'] + eos_token + '\\n' }}{% else %}\
{{ '<|assistant|>\\n' + message['content'] + eos_token }}{% endif %}{% endif %}\
{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}"""

NEMOTRON_NANO = r"""{%- set ns = namespace(enable_thinking=true, has_system=false) -%}
{%- for message in messages -%}
    {%- if message['role'] == 'user' or message['role'] == 'system' -%}
        {%- set content = message['content'] -%}
        {%- if '/think' in content.replace('</think>', '') -%}{%- set ns.enable_thinking = true -%}
        {%- elif '/no_think' in content -%}{%- set ns.enable_thinking = false -%}{%- endif -%}
    {%- endif -%}
{%- endfor -%}
{{- '<SPECIAL_10>System\n' -}}
{%- if messages[0]['role'] == 'system' -%}{{- messages[0]['content'].replace('/no_think', '').strip() -}}{%- set messages = messages[1:] -%}{%- endif -%}
{%- if tools -%}{{- '\n<AVAILABLE_TOOLS>[' -}}{%- for tool in tools -%}{{- (tool.function if tool.function is defined else tool) | tojson -}}{{- ', ' if not loop.last else '' -}}{%- endfor -%}{{- ']</AVAILABLE_TOOLS>\n<TOOLCALL>[]</TOOLCALL>' -}}{%- endif -%}
{{- '\n' -}}
{%- for message in messages -%}
    {%- if message['role'] == 'user' -%}{{- '\n<SPECIAL_11>User\n' + message['content'].strip() + '\n' -}}
    {%- elif message['role'] == 'tool' -%}{{- '\n<SPECIAL_11>User\n<TOOL_RESPONSE>[' + message['content'] + ']</TOOL_RESPONSE>\n' -}}
    {%- elif message['role'] == 'assistant' -%}
        {%- set content = message['content'] or '' -%}
        {%- if '</think>' in content -%}{%- set content = content.split('</think>')[1].strip() %}{%- endif -%}
        {{- '<SPECIAL_11>Assistant\n' + content.strip() -}}
        {%- if message.tool_calls -%}{{- '<TOOLCALL>[' -}}{%- for call in message.tool_calls -%}{{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}' -}}{{- ', ' if not loop.last else '' -}}{%- endfor -%}{{- ']</TOOLCALL>' -}}{%- endif -%}
        {{- '\n<SPECIAL_12>\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<SPECIAL_11>Assistant\n' -}}{%- if ns.enable_thinking -%}{{- '<think>\n' -}}{%- else -%}{{- '<think></think>' -}}{%- endif -%}{%- endif -%}
"""

SEED_OSS = r"""{%- if thinking_budget is not defined %}{%- set thinking_budget = -1 %}{%- endif %}
{{- bos_token + 'system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- set messages = messages[1:] %}{%- else %}{{- 'You are Doubao.' }}{%- endif %}
{%- for tool in tools or [] %}{{- '\n' + (tool | tojson) }}{%- endfor %}
{%- if tools %}{{- '\n<seed:tool_call>\n<function=f>\n</function>\n</seed:tool_call>' }}{%- endif %}
{{- eos_token }}
{%- if thinking_budget >= 0 %}{{- bos_token + 'system\nThink with ' ~ thinking_budget ~ ' tokens.' + eos_token }}{%- endif %}
{%- for message in messages %}
    {{- bos_token + message.role + '\n' }}
    {%- if message.role == 'assistant' and message.reasoning_content is defined and message.reasoning_content is string and message.reasoning_content | trim | length > 0 %}
        {{- '\n<seed:think>' + message.reasoning_content | trim + '</seed:think>\n' }}
    {%- endif %}
    {%- if message.content is string %}{{- message.content | trim }}{%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\n<seed:tool_call>\n<function=' + call.function.name + '>\n' }}
        {%- for name, value in call.function.arguments | items %}{{- '<parameter=' + name + '>' }}{{- value if value is string else value | tojson }}{{- '</parameter>\n' }}{%- endfor %}
        {{- '</function>\n</seed:tool_call>' }}
    {%- endfor %}
    {{- eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{- bos_token + 'assistant\n' }}{%- if thinking_budget == 0 %}{{- '<seed:think></seed:think>' }}{%- endif %}{%- endif %}
"""

HUNYUAN = """\
{% set loop_messages = messages %}{% if messages[0]['role'] == 'system' %}{{ bos_token + messages[0]['content'] + '<｜hy_place▁holder▁no▁3｜>' }}\
{% set loop_messages = messages[1:] %}{% else %}{{ bos_token }}{% endif %}{% for message in loop_messages %}\
{% if message['role'] == 'user' %}{{ '<｜hy_User｜>' + message['content'] }}{% elif message['role'] == 'assistant' %}\
{{ '<｜hy_Assistant｜>' + message['content'] + '<｜hy_place▁holder▁no▁2｜>' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<｜hy_Assistant｜>' }}{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n' }}{% endif %}{% endif %}"""

TEMPLATES: dict[str, object] = {
    "chatml": CHATML, "qwen2.5": QWEN2_5, "qwen3": QWEN3, "qwen3-thinking": QWEN3_THINKING, "qwen3-coder": QWEN3_CODER,
    "llama2": LLAMA2, "llama3": LLAMA3, "llama3.1": LLAMA3_1, "llama3.2-vision": LLAMA3_2_VISION, "llama4": LLAMA4,
    "mistral-v1": MISTRAL_V1, "mistral-v3": MISTRAL_V3, "mistral-small-3.1": MISTRAL_SMALL_3_1,
    "mistral-v11": MISTRAL_V11, "magistral": MAGISTRAL, "gemma2": GEMMA2, "gemma3": GEMMA3, "gemma4": GEMMA4,
    "functiongemma": FUNCTIONGEMMA, "phi3": PHI3, "phi4": PHI4, "phi4-mini": PHI4_MINI, "smollm3": SMOLLM3,
    "smolvlm": SMOLVLM, "llava": LLAVA, "granite3": GRANITE3, "granite4": GRANITE4, "glm4": GLM4, "glm4.5": GLM4_5,
    "deepseek-v3": DEEPSEEK_V3, "deepseek-r1": DEEPSEEK_R1, "deepseek-v3.1": DEEPSEEK_V3_1, "gpt-oss": GPT_OSS,
    "command-r": [{"name": "default", "template": COMMAND_R}, {"name": "tool_use", "template": COMMAND_R_TOOLS}],
    "command-a": COMMAND_A, "lfm2": LFM2, "exaone4": EXAONE4, "olmo2": OLMO2, "olmo3-think": OLMO3_THINK,
    "zephyr": ZEPHYR, "vicuna": VICUNA, "alpaca": TINYLLAMA_ALPACA, "falcon3": FALCON3,
    "nemotron-nano": NEMOTRON_NANO, "seed-oss": SEED_OSS, "hunyuan": HUNYUAN,
}  # fmt: skip
"""The templates by their models, as tokenizer_config.json has them: a text, or a list of named ones."""

SPECIAL = (
    "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "</think>", "<think>",
    "[INST]", "[/INST]", "[TOOL_CALLS]", "<start_of_turn>", "<end_of_turn>", "<|start|>", "<|end|>", "<|message|>",
    "<|channel|>", "<|user|>", "<|assistant|>", "<tool_call>", "</tool_call>", "<｜User｜>", "<｜Assistant｜>",
)  # fmt: skip
"""Special tokens of the test's tokenizer, among them marks of thinking and of calls."""
