"""What a run's admissions must look like on the log, next to what lies there."""

from __future__ import annotations

import numpy as np

from admitone.evidence.audit.expected_records import ExpectedRecords, Originals
from admitone.evidence.audit.log_audit import LogAudit
from admitone.evidence.evidence_rows import AdmittedRows


class RunOnLog:
    """Hands admissions over to the comparison with the log, block by block."""

    def __init__(self, log: LogAudit, expected: ExpectedRecords) -> None:
        self._log = log
        self._expected = expected

    def note(self, admitted: AdmittedRows) -> None:
        """Say between which places admissions lie."""
        for place, lines in self._expected.places(admitted):
            self._log.note(place, admitted.bus_offsets[lines], admitted.published_at)

    def expect(self, admitted: AdmittedRows, originals: Originals | None) -> None:
        """Say what lies there; without the originals what the ledger itself says of it."""
        digests = self._expected.digests(admitted, originals)
        for place, lines in self._expected.places(admitted):
            self._log.expect(
                place,
                admitted.bus_offsets[lines],
                digests[np.asarray(lines)],
                steady_only=admitted.block.read_back or admitted.block.row_hash is None,
            )
