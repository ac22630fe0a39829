"""The processes that listen, and how they reach the service."""
