"""This machine as a node of a Ray: `rlinf node start` and `stop`. Ray itself runs in processes of its own."""
