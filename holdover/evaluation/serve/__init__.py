"""Driving a server with a frozen trace, as its clients would."""
