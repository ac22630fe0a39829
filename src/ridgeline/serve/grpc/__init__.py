"""The protocol over gRPC."""
