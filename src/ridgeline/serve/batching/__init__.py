"""Which requests run together, and when: queues, batches, admission."""
