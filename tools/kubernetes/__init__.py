"""A Kubernetes control plane on loopback, of programs that `build` makes, and its trials."""
