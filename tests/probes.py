"""Probes of needs of tests that `orderbed doctor` does not show."""

from __future__ import annotations

import os

from netem import probe as kernel
from netem.errors import FabricError
from netem.runtimes.cgroups import CONTROLLERS, reason_against
from netem.wiring.steps import KernelOption
from testbed.cli.doctor import Check, check_programs, check_root


def check_namespaces() -> Check:
    """Whether namespaces can be made, which takes more than being root (a container may forbid it)."""
    if not (root := check_root()).ok:
        return root
    found = next(probe for probe in kernel.probe() if probe.name == "namespaces")
    return Check(name=found.name, ok=found.ok, detail=found.detail, optional=True)


def check_control_groups() -> Check:
    """Whether a node can be given limits, or be made slow: a group with every controller is made to find out."""
    if reason := reason_against(CONTROLLERS):
        detail, _, remedy = reason.rpartition(": ")
        return Check(name="control groups", ok=False, detail=detail, remedy=remedy, optional=True)
    detail = f"groups with {', '.join(sorted(CONTROLLERS))} can be made"
    return Check(name="control groups", ok=True, detail=detail, optional=True)


def check_guest() -> Check:
    """Whether a User-Mode Linux guest could emulate the links."""
    try:
        kernel.pick(KernelOption.UML, kernel.probe())
    except FabricError as error:
        return Check(name="uml", ok=False, detail=str(error), remedy="install user-mode-linux")
    return Check(name="uml", ok=True, detail="a guest kernel can be booted")


def check_foreign() -> Check:
    """Programs of other systems that run as a cluster on the emulated network (docs/foreign.md)."""
    lacking, remedy = "the experiments with other systems cannot run", "install etcd-server, etcd-client and corosync"
    version, path = ["etcd", "--version"], f"{os.defpath}:/usr/sbin:/sbin:/usr/local/bin"
    return check_programs("other systems", ("etcd", "etcdctl", "corosync"), lacking, remedy, version, path=path)
