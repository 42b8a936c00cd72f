"""The transport of messages between captures: in one process, and by gRPC between processes."""
