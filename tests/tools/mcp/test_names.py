"""Names of tools for models: fit, unique, and independent of the order of a list."""

from __future__ import annotations

import re

from localspec.tools.mcp.names import server_names, tool_names

FIT = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def test_names_that_fit_stay_readable() -> None:
    servers = server_names(["git", "my.files", "GitHub Server", "__x__"])
    assert servers == {"git": "git", "my.files": "my_files", "GitHub Server": "GitHub_Server", "__x__": "x"}
    assert tool_names("git", ["log", "ns.list/all"]) == {"log": "git__log", "ns.list/all": "git__ns_list_all"}


def test_all_names_fit_and_differ() -> None:
    names = ["a.b", "a/b", "a_b", "日本", "中国", "x" * 100, "x" * 101, "", "\n\x1b[2J", "evil\n"]
    servers = server_names(names)
    fitted = [name for server in servers.values() for name in tool_names(server, names).values()]
    assert all(FIT.fullmatch(name) for name in fitted)
    assert len(set(fitted)) == len(names) ** 2


def test_a_name_does_not_depend_on_the_order() -> None:
    assert tool_names("s", ["a.b", "a/b"]) == tool_names("s", ["a/b", "a.b"])


def test_a_tool_that_appears_later_cannot_take_the_name_of_another_server() -> None:
    """`a` with a tool `b__c`, and `a__b` with a tool `c`, would both be `a__b__c`."""
    servers = server_names(["a", "a__b"])
    assert tool_names(servers["a"], ["b__c"])["b__c"] != tool_names(servers["a__b"], ["c"])["c"]
