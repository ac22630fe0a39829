"""Requests and answers of the protocol as JSON and as bytes."""
