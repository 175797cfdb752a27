"""RLinf's scheduling of groups that grow and shrink: its names; the groups here keep their sizes."""
