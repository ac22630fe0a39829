"""Engines behind the Open Inference Protocol (KServe v2) over HTTP and gRPC. docs/serving.md is the map."""
