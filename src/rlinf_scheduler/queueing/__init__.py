"""The channel's queues as a pure state machine: events in, instructions out; no clock, thread or I/O."""
