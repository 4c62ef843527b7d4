"""Local SGD. ``reference`` says in plain torch what a solver does; the others do the same faster."""
