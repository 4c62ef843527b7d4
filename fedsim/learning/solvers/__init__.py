"""Local SGD. ``reference`` defines the result in plain torch; the others compute it faster."""
