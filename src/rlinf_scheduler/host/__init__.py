"""The process in which a rank, or a channel, lives: it becomes what it is told to be and runs calls until stopped."""
