"""The systemd unit of an agent: restarted after a crash, and allowed to write only to its folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
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


def unit(agent: int, user: str, folder: Path, program: Path, arguments: Sequence[str], *, gpu: bool = False) -> str:
    """`gpu`: whether it needs the GPU's device files under /dev."""
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", user):
        raise NodeError(f"--user {user!r} is not the name of a user")
    for path in (folder, program):
        if not path.is_absolute():
            raise NodeError(f"{path} is not an absolute path; systemd needs one")
    words = " ".join(quoted(word) for word in (str(program), "node", *arguments))
    devices = "" if gpu else "PrivateDevices=yes\n"
    return UNIT.format(agent=agent, user=user, folder=path_line(folder), command=words, devices=devices)


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
