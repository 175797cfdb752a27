"""Ray: started, joined or simulated; its nodes probed and put in order."""
