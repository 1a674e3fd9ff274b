"""Several processes that train one policy: who they are, what they agree on, how gradients become one. See world."""
