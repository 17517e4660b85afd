"""`python -m admitone`."""

from admitone.cli import main

main()
