"""The fixtures that keep tests to themselves do what they promise."""

from __future__ import annotations

import socket
from pathlib import Path

import gguf
import platformdirs
import pytest


@pytest.mark.parametrize("address", [("192.0.2.1", 80), ("example.org", 443), ("2001:db8::1", 80, 0, 0)])
def test_the_network_is_shut_out(address: tuple[str | int, ...]) -> None:
    family = socket.AF_INET6 if len(address) == 4 else socket.AF_INET
    with socket.socket(family) as connection:
        with pytest.raises(RuntimeError, match="the network is shut out"):
            connection.connect(address)
        with pytest.raises(RuntimeError, match="the network is shut out"):
            connection.connect_ex(address)


def test_a_local_server_can_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as connection:
        connection.connect(server.getsockname())


def test_user_folders_are_empty_ones(empty_home: Path) -> None:
    assert Path.home() == empty_home
    for folder in (platformdirs.user_config_dir("localspec"), platformdirs.user_data_dir("localspec")):
        assert Path(folder).is_relative_to(empty_home)
    assert not [path for path in empty_home.rglob("*") if not path.is_dir()]


@pytest.mark.slow
def test_the_quantised_target_is_quantised(demo_target_q8: Path, demo_target: Path) -> None:
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(demo_target_q8).tensors}
    assert {kind for name, kind in kinds.items() if not name.endswith("norm.weight")} == {"Q8_0"}
    assert set(kinds) == {tensor.name for tensor in gguf.GGUFReader(demo_target).tensors}
