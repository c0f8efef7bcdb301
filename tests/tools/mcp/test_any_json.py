"""Whatever JSON a server sends where the protocol has something else, it is read, and nothing is raised."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.tools.mcp.contents import LONGEST_TEXT, call_text, prompt_text, resource_content
from localspec.tools.mcp.descriptions import offered_tools
from localspec.tools.mcp.names import tool_names

NAMES = st.sampled_from(
    "name description inputSchema type properties required enum items anyOf annotations content text role "
    "messages contents uri blob data mimeType resource structuredContent isError $ref $defs".split()
)
WORDS = st.sampled_from(["object", "text", "image", "resource", "string", "\ud800", "\x1b[2J", ""])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.slow
@settings(max_examples=50, deadline=None, database=None)
@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=6), max_size=3))
def test_any_list_of_tools(listed: list[object]) -> None:
    tools, problems = offered_tools(listed)
    assert len(tool_names("server", [tool.name for tool in tools])) == len(tools)
    for tool in tools:
        assert tool.parameters["type"] == "object"
        json.dumps(dict(tool.parameters)).encode()
        tool.description.encode()
    assert all(problem.isprintable() for problem in problems)


@pytest.mark.slow
@settings(max_examples=50, deadline=None, database=None)
@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_any_result(result: dict[str, object]) -> None:
    for text in (call_text(result)[0], prompt_text(result), resource_content(result).text[:LONGEST_TEXT]):
        assert len(text.encode()) <= 5 * LONGEST_TEXT
        assert "\x1b" not in text
