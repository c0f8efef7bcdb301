"""Real MCP servers in processes, for clients: whatever they do, the answer goes on and says what happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.app import client_tools
from localspec.app.client_tools import clients_kit
from localspec.storage.config import Config
from localspec.tools.mcp.toolbox import McpTools
from tests.server.running import serving
from tests.server.telling_models import TellingModels
from tests.tools.mcp.serving import limit_calls, made

pytest.importorskip("mcp_types", reason="the extra `mcp` is not installed")
pytestmark = pytest.mark.slow

CALL = '<tool_call>\n{"name": "made__echo", "arguments": {"text": "hello"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("behaviour", "status", "said"),
    [
        ("good", "completed", "hello"),
        ("dies", "failed", "KeyError"),
        ("hangs in call", "failed", "did not answer"),
        ("flood in call", "failed", "made"),
        ("broken json", "failed", "made"),
        ("contents", "completed", "in b"),
        ("dies at start", "", "KeyError"),
        ("hangs", "", "did not start within"),
    ],
)
def test_whatever_a_server_does(
    behaviour: str, status: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = made(behaviour, start_seconds=1.5 if behaviour == "hangs" else 20.0)
    monkeypatch.setattr(client_tools, "servers_in", lambda _path: {"made": entry})
    kit = clients_kit(Config(), tmp_path, ["made"])
    models = TellingModels(texts=[CALL, "I see."] if status else ["I see."])
    try:
        if behaviour == "hangs in call":
            (box,) = kit.boxes.values()
            assert isinstance(box, McpTools)
            assert box.tools()
            limit_calls(box.servers["made"], 0.5)
        with serving(lambda: models, kit=kit) as served:
            asked = {"input": "Hi", "tools": [{"type": "mcp", "server_label": "made"}]}
            listed, *ran, last = served.post("/v1/responses", asked).json()["output"]
    finally:
        kit.close()
    assert last["content"][0]["text"] == "I see."
    assert [item["status"] for item in ran] == ([status] if status else [])
    assert said in str(ran or listed)
