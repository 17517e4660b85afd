"""The incarnations of destination topics that were accepted, in the PostgreSQL ledger; appended, never changed."""

from __future__ import annotations

from admitone.ledger.model import AcceptedTopic
from admitone.ledger.postgres_reader import PostgresReader
from admitone.ledger.postgres_values import stored_name
from admitone.postgres import Connection


class PostgresTopics(PostgresReader):
    """Who accepted which topic, when and why."""

    def accept_topic(self, accepted: AcceptedTopic) -> bool:
        """Accept an incarnation of a topic; False when it is the one that counts already."""
        place = (accepted.cluster, accepted.topic)

        def work(db: Connection) -> bool:
            # Numbers are given out before they are committed: the last one must be the last to count.
            db.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"topic {place}",))
            last = db.execute(
                "SELECT topic_id FROM accepted_topic WHERE cluster = %s AND topic = %s"
                " ORDER BY number DESC LIMIT 1",
                place,
            ).fetchone()
            if last == (accepted.topic_id,):
                return False
            db.execute(
                "INSERT INTO accepted_topic (cluster, topic, topic_id, at, author, reason)"
                " VALUES (%s, %s, %s, %s, %s, %s)",
                (
                    *place, accepted.topic_id, accepted.at, stored_name(accepted.author),
                    stored_name(accepted.reason),
                ),
            )  # fmt: skip
            return True

        return self._database.run(work)
