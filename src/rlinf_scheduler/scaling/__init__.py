"""Groups that are grown and shrunk by a policy, and devices that are lent from one group to another."""
