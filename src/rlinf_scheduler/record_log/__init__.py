"""Records of bytes in files: what journals, checkpoints and span files have in common."""
