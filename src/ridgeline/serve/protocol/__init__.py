"""The protocol's messages: .proto files, what they compile to, and the classes made from that."""
