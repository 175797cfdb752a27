"""What goes wrong on a cluster in practice: facts gathered on every node, and checks that judge them."""
