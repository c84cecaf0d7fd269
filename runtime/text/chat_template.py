"""Render chat templates, which are programs of the model: in jinja's sandbox, with limits of time and of size.

jinja's sandbox keeps a template from Python's internals and from the system. It does not keep it from running for ever
or from filling the memory, so every place where a value is made, or where a loop goes on, is counted here:

- loops, calls, filters and operators end at a deadline;
- every value has a size, the number of its characters and entries, counted again wherever they are referred to, and no
  value may be larger than LARGEST. Whatever the interpreter does with a value of that size takes little time.
- what makes values larger than its arguments (`*`, `**`, `%`, `replace`, `center` …) is refused before it is computed.
"""

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2.ext
import jinja2.meta
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from edgeformer.errors import RequestError

SECONDS = 5.0
"""Time that a template may take. Those of models take a millisecond for a short conversation."""

LARGEST = 8_000_000
"""Characters and entries of a value at most; a context of a million tokens has about four million characters."""

LARGEST_WORK = 200_000_000
"""Characters that a call may make of its arguments, as `replace` does, at most."""

TOOLS_OF_MESSAGE = r"""(?:\[\s*['"]tools['"]\s*\]|\.tools\b)"""
"""A template that reads tools from a message."""

_deadline: ContextVar[float] = ContextVar("deadline of a chat template", default=float("inf"))


@contextmanager
def one_deadline() -> Iterator[None]:
    """Let all templates that are rendered in the `with` block have the time of one."""
    token = _deadline.set(min(_deadline.get(), time.monotonic() + SECONDS))
    try:
        yield
    finally:
        _deadline.reset(token)


class ChatTemplate:
    """A chat template, compiled when it is first used. source: the program."""

    def __init__(self, source: str):
        self.source = source
        self._compiled: jinja2.Template | None = None

    def render(self, **values: object) -> str:
        """Return the text of the template for values, such as `messages`.

        Raises RequestError for what the template refuses, and for a template that is none or that exceeds a limit.
        """
        try:
            with one_deadline():
                if self._compiled is None:
                    _measure(self.source)
                    self._compiled = _environment().from_string(self.source)
                return self._compiled.render(**values)
        except Exception as error:  # a template is a program of the model, which may raise anything
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise RequestError(f"the chat template of this model refuses the conversation: {reason}") from error

    def with_tools(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> dict[str, Any]:
        """Return the variables of a conversation: its messages, and the tools where the template reads them.

        Most templates have the variable `tools`. Some of SmolLM3 have `xml_tools`; those of GLM-4-9B read a list from
        the message of the system, and those of Phi-4-mini JSON text of the functions.
        """
        variables: dict[str, Any] = {"messages": list(messages), "tools": list(tools) or None}
        if not tools or "tools" in self.names:
            return variables
        if "xml_tools" in self.names:
            return variables | {"xml_tools": list(tools)}
        if not re.search(TOOLS_OF_MESSAGE, self.source):
            return variables
        as_list = re.search(rf"\bin\s+\w+{TOOLS_OF_MESSAGE}", self.source)
        functions = [tool.get("function", tool) for tool in tools]
        own = list(tools) if as_list else json.dumps(functions, ensure_ascii=False)
        begins = bool(messages) and messages[0].get("role") == "system"
        system = messages[0] if begins else {"role": "system", "content": ""}
        return variables | {"messages": [{**system, "tools": own}, *messages[begins:]]}

    @functools.cached_property
    def names(self) -> set[str]:
        """The variables that the template reads and does not set."""
        try:
            _measure(self.source)
            return jinja2.meta.find_undeclared_variables(_environment().parse(self.source))
        except (jinja2.TemplateError, RecursionError, ValueError):  # rendering it says what is wrong
            return {"tools"}


class _LimitError(jinja2.TemplateError):
    """A template exceeds a limit."""


def _check_time() -> None:
    if time.monotonic() > _deadline.get():
        raise _LimitError(f"it takes longer than {SECONDS:g} s")


def _measure(*values: Any) -> int:
    """Return the size of values; raise _LimitError as soon as it is more than LARGEST."""
    size, left = 0, list(values)
    while left:
        value = left.pop()
        size += 1
        if isinstance(value, str | bytes | range):
            size += len(value)
        elif isinstance(value, int):
            size += value.bit_length() // 3
        elif isinstance(value, Mapping):
            left += value.keys()
            left += value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            left += value
        elif isinstance(value, Namespace):
            left.append(value._Namespace__attrs)
        if size + len(left) > LARGEST:
            raise _LimitError(f"it makes a value of more than {LARGEST:,} characters")
        if size % 1000 == 0:
            _check_time()
    return size


def _check_work(name: str, arguments: tuple[Any, ...]) -> None:
    """Refuse a call whose result may be far larger than its arguments: the first is the value that it works on."""
    size = _measure(*arguments)
    numbers = [abs(value) for value in arguments if isinstance(value, int)]
    if name in ("replace", "join"):
        numbers += [len(value) for value in arguments[1:] if isinstance(value, str)]
    if name in ("format", "__mod__"):
        numbers += _widths(arguments[0])
        numbers += [abs(value) for each in arguments if isinstance(each, tuple) for value in each if type(value) is int]
    if size * max(numbers, default=1) > LARGEST_WORK:
        raise _LimitError(f"{name} would make a value of more than {LARGEST_WORK:,} characters")


def _widths(text: Any) -> list[int]:
    """Return the numbers in a text with places to fill in, such as `%100d`, which may be widths of these."""
    return [int(digits[:12]) for digits in re.findall(r"\d+", str(text))]


class _Environment(ImmutableSandboxedEnvironment):
    """The environment of transformers' templates, which counts what templates make."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Counted().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Return the result of an operator of two values."""
        _check_time()
        size = _measure(left, right)
        if operator == "*":
            sized = [(a, b) for a, b in ((left, right), (right, left)) if isinstance(a, int)]
            if sized and not isinstance(sized[0][1], int | float) and abs(sized[0][0]) * size > LARGEST:
                raise _LimitError(f"it makes a value of more than {LARGEST:,} characters")
        elif operator == "**" and isinstance(right, int) and abs(right) * size > 10_000:
            raise _LimitError("it computes a power of too many digits")
        elif operator == "%" and isinstance(left, str):
            _check_work("__mod__", (left, right))
        return super().call_binop(context, operator, left, right)

    def call(*arguments: Any, **keywords: object) -> Any:
        """Return the result of a call in a template."""
        _, _, function, *given = arguments
        _check_time()
        name = getattr(function, "__name__", "call")
        if name != "safe_range":  # the sandbox has a limit of its own for it
            _check_work(name, (getattr(function, "__self__", None), *given, *keywords.values()))
        result = ImmutableSandboxedEnvironment.call(*arguments, **keywords)
        _measure(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the sandbox's `str.format` for a method of a text that asks for no wide places; None for others."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and max(_widths(value.__self__), default=0) > LARGEST:
            raise _LimitError(f"it makes a value of more than {LARGEST:,} characters")
        return wrapped

    def concat(self, parts: Iterable[str]) -> str:
        """Return the text of pieces of output."""
        return "".join(_sized(parts))


def _sized(parts: Iterable[str]) -> Iterator[str]:
    size = 0
    for part in parts:
        size += len(part)
        _check_time()
        if size > LARGEST:
            raise _LimitError(f"it makes a text of more than {LARGEST:,} characters")
        yield part


class _Counted(NodeTransformer):
    """Passes what loops go over, and what literals and `~` make, through filters that count."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """Count the rounds of a loop."""
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "counted_rounds")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Count the characters of a text made of several."""
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "counted_text")

    def visit_List(self, node: nodes.List) -> nodes.Node:
        """Count the entries of a list."""
        self.generic_visit(node)
        return _filtered(node, "counted_value")

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        """Count the entries of a tuple, unless names are assigned by it."""
        self.generic_visit(node)
        return _filtered(node, "counted_value") if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        """Count the entries of a dict."""
        self.generic_visit(node)
        return _filtered(node, "counted_value")


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _counted_rounds(values: Any) -> Iterator[Any]:
    for value in values:
        _check_time()
        yield value


def _counted_text(values: list[Any]) -> str:
    _measure(values)
    text = "".join(map(str, values))
    _measure(text)
    return text


def _counted_value(value: Any) -> Any:
    _measure(value)
    return value


class _Generation(jinja2.ext.Extension):
    """The tag {% generation %}, which marks the assistant's words for training; only its content is kept."""

    tags = {"generation"}  # noqa: RUF012 - so jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> nodes.Node:
        """Return the nodes between the tags; what they set is theirs alone, as in transformers."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


@functools.cache
def _environment() -> _Environment:
    """Return the environment of templates: that of transformers, with limits."""
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _to_json
    # They make texts and pictures of values for web pages, by regular expressions that take long.
    for name in ("urlize", "pprint", "striptags", "xmlattr"):
        del environment.filters[name]
    environment.filters = {name: _limited(name, function) for name, function in environment.filters.items()}
    environment.filters |= {
        "counted_rounds": _counted_rounds, "counted_text": _counted_text, "counted_value": _counted_value,
    }  # fmt: skip
    del environment.globals["lipsum"]
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that checks its arguments and its result."""

    @functools.wraps(function)  # with jinja2's mark of functions that take the environment or the context first
    def limited(*arguments: object, **keywords: object) -> Any:
        _check_time()
        _check_work(name, (*arguments[hasattr(function, "jinja_pass_arg") :], *keywords.values()))
        result = function(*arguments, **keywords)
        _measure(result)
        return result

    return limited


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON; the options are those of transformers."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
