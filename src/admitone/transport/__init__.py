"""The transport the settings name."""

from __future__ import annotations

from admitone.settings import Settings
from admitone.transport.folder_log import FolderLog
from admitone.transport.port import Transport


def open_transport(settings: Settings) -> Transport:
    """Open the log; nothing is connected before it is used."""
    if settings.transport.kind == "kafka":
        # Only loaded when it is configured: the embedded default does without it.
        from admitone.transport.kafka.kafka_log import KafkaLog

        return KafkaLog(settings)
    return FolderLog(settings.resolve(settings.transport.path))
