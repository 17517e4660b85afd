"""One TOML file, checked whole before anything starts."""

from admitone.settings.analytics import ItemSettings
from admitone.settings.boundary import StateSettings
from admitone.settings.loading import FILE_NAME, load_settings
from admitone.settings.transport import KafkaSettings, TopicSettings
from admitone.settings.whole import Settings

__all__ = [
    "FILE_NAME",
    "ItemSettings",
    "KafkaSettings",
    "Settings",
    "StateSettings",
    "TopicSettings",
    "load_settings",
]
