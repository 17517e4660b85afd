"""The transport the settings name."""

from __future__ import annotations

from admitone.settings import Settings
from admitone.transport.folder import FolderLog
from admitone.transport.port import Transport


def open_transport(settings: Settings) -> Transport:
    """Open the log; nothing is connected before it is used."""
    return FolderLog(settings.resolve(settings.transport.path))
