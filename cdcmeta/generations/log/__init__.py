"""The log of generations in a store: it is listed, switched, joined, followed and expired."""
