"""Post-training of a tiny transformer by GRPO, across components that a YAML file places."""
