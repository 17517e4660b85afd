"""`make faults`.

A file of this name, because every process that a campaign starts would import any other main module again, and with it
all campaigns: that took two thirds of what an attempt costs.
"""

from __future__ import annotations

from tests.faults.campaign import main

main()
