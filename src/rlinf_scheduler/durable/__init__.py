"""What outlives processes: durable channels with their journals, and checkpoints."""
