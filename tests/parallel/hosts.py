"""Two hosts on one machine: network namespaces with a cable between them, and nothing else in common but the disk.

    with two_hosts() as hosts:        [Host, Host], each with an address that only the other reaches
        host.run(command, **popen)    a process that sees no network but its own end of the cable and its own loopback

Only root may lay cables: `reason_not_to` says why there are none."""

import os
import shutil
import subprocess
from contextlib import contextmanager
from typing import NamedTuple


class Host(NamedTuple):
    name: str
    address: str
    interface: str

    def run(self, command, env, **options):
        env = {**env, "GLOO_SOCKET_IFNAME": self.interface}
        return subprocess.Popen(["ip", "netns", "exec", self.name, *command], env=env, text=True, **options)


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def reason_not_to():
    """Why there can be no two hosts here; None if there can."""
    if shutil.which("ip") is None:
        return "network namespaces need `ip` (iproute2)"
    name = f"minipaged-{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("netns", "del", name)
    except subprocess.CalledProcessError as error:
        return f"network namespaces need rights that are not here: {error.stderr.decode().strip()}"
    return None


@contextmanager
def two_hosts():
    pid = os.getpid()
    hosts = [Host(f"minipaged-{pid}-{i}", f"10.77.0.{1 + i}", f"mp{pid}{'ab'[i]}") for i in range(2)]
    try:
        for host in hosts:
            ip("netns", "add", host.name)
        ip("link", "add", hosts[0].interface, "type", "veth", "peer", "name", hosts[1].interface)
        for host in hosts:
            ip("link", "set", host.interface, "netns", host.name)
            ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.interface)
            ip("-n", host.name, "link", "set", host.interface, "up")
            ip("-n", host.name, "link", "set", "lo", "up")
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)  # its cable goes along
