"""The systemd unit of an agent: restarted after a crash, and allowed to write only to its folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peermask.errors import NodeError

UNIT = """\
[Unit]
Description=peermask agent {agent}
Wants=network-online.target time-sync.target
After=network-online.target time-sync.target
StartLimitIntervalSec=0

[Service]
User={user}
WorkingDirectory={folder}
ExecStart={command}
Environment=PYTHONUNBUFFERED=1
Restart=on-failure
RestartSec=10
# 2: a mistake to fix; 143: stopped by SIGTERM, saved
RestartPreventExitStatus=2
SuccessExitStatus=143
TimeoutStopSec=90
{limits}
UMask=0077
ReadWritePaths={folder}
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
NoNewPrivileges=yes
CapabilityBoundingSet=
{devices}ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
LockPersonality=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class ServiceLimits:
    """What the agent may use: systemd ends it above `memory`, and slows it down above `cpu`."""

    memory: str | None = None  # bytes with K, M, G or T, or a percentage of the device's
    cpu: str | None = None  # a percentage of one core

    def lines(self) -> str:
        if self.memory is not None and not re.fullmatch(r"[1-9]\d*[KMGT]|[1-9]\d?%|100%", self.memory):
            raise NodeError(f"--memory-max {self.memory!r} is not a size such as 512M, or a percentage such as 50%")
        if self.cpu is not None and not re.fullmatch(r"[1-9]\d*%", self.cpu):
            raise NodeError(f"--cpu-quota {self.cpu!r} is not a percentage of one core, such as 80% or 200%")
        limits = {"MemoryMax": self.memory, "CPUQuota": self.cpu}
        return "".join(f"{name}={value}\n" for name, value in limits.items() if value is not None)


def unit(
    agent: int,
    user: str,
    folder: Path,
    program: Path,
    arguments: Sequence[str],
    *,
    gpu: bool = False,
    limits: ServiceLimits | None = None,
) -> str:
    """`gpu`: whether it needs the GPU's device files under /dev."""
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", user):
        raise NodeError(f"--user {user!r} is not the name of a user")
    for path in (folder, program):
        if not path.is_absolute():
            raise NodeError(f"{path} is not an absolute path; systemd needs one")
    words = " ".join(quoted(word) for word in (str(program), "node", *arguments))
    devices = "" if gpu else "PrivateDevices=yes\n"
    allowed = (limits or ServiceLimits()).lines()
    return UNIT.format(agent=agent, user=user, folder=path_line(folder), command=words, devices=devices, limits=allowed)


def quoted(word: str) -> str:
    """A word of a command line, quoted for systemd."""
    _check(word)
    word = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{word}"' if re.search(r"[\s'\";]", word) else word


def path_line(path: Path) -> str:
    """A path as systemd reads it, alone on a line or as one of several."""
    text = _check(str(path))
    if re.search(r"[\s\"'\\]", text):
        raise NodeError(f"folder {text!r} has a character that a unit does not allow in a path; give another --folder")
    return text.replace("%", "%%")


def _check(text: str) -> str:
    if not text.isprintable():
        raise NodeError(f"{text!r} has a character that a unit does not allow")
    return text
