"""The job traced: a span file of each process, and the timeline that is made of them."""
