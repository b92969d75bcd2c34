"""The address at which agents of other nodes reach this node's agent: from the settings, else towards the master."""

import ipaddress

import pytest

from otel_torchdist.capture.core.run.peer_discovery import own_address

NO_INTERFACE = "nosuch0"


@pytest.mark.parametrize("variable", ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"])
@pytest.mark.parametrize("name", ["lo", "=lo", "lo,eth7"])
def test_interface_that_the_job_is_configured_to_use(variable: str, name: str) -> None:
    """The configured interface's address is used, even if another interface leads to the master."""
    assert own_address({variable: name, "MASTER_ADDR": "192.0.2.7"}) == "127.0.0.1"


def test_first_interface_that_there_is() -> None:
    """A configured interface that this node lacks is skipped."""
    environ = {"GLOO_SOCKET_IFNAME": NO_INTERFACE, "NCCL_SOCKET_IFNAME": "lo", "MASTER_ADDR": "192.0.2.7"}
    assert own_address(environ) == "127.0.0.1"


@pytest.mark.parametrize("master", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_job_on_loopback(master: str) -> None:
    """If the master is on loopback, the agents are, too."""
    assert own_address({"MASTER_ADDR": master}) == "127.0.0.1"


@pytest.mark.parametrize("interface", ["", NO_INTERFACE, "^docker0", "eth0;reboot", "x" * 99, "ö", ","])
def test_any_interface(interface: str) -> None:
    """Any value of the interface variables gives one IPv4 address and no error."""
    found = own_address({"GLOO_SOCKET_IFNAME": interface, "MASTER_ADDR": "192.0.2.7"})
    assert ipaddress.ip_address(found).version == 4


@pytest.mark.parametrize("master", ["", "no.such.host.invalid", "x" * 99, "::1"])
def test_any_master(master: str) -> None:
    """An unreachable master gives an IPv4 address and no error."""
    assert ipaddress.ip_address(own_address({"MASTER_ADDR": master})).version == 4
