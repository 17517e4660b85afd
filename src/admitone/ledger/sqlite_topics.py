"""The incarnations of destination topics that were accepted, in the SQLite ledger; appended, never changed."""

from __future__ import annotations

from dataclasses import astuple

from admitone.ledger.model import AcceptedTopic
from admitone.ledger.sqlite_reader import SqliteReader


class SqliteTopics(SqliteReader):
    """Who accepted which topic, when and why."""

    def accept_topic(self, accepted: AcceptedTopic) -> bool:
        """Accept an incarnation of a topic; False when it is the one that counts already."""
        with self._database.transaction() as db:
            last = db.execute(
                "SELECT topic_id FROM accepted_topic WHERE cluster = ? AND topic = ?"
                " ORDER BY number DESC LIMIT 1",
                (accepted.cluster, accepted.topic),
            ).fetchone()
            if last == (accepted.topic_id,):
                return False
            db.execute(
                "INSERT INTO accepted_topic (cluster, topic, topic_id, at, author, reason)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                astuple(accepted),
            )
        return True
