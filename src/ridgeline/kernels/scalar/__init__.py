"""What ONNX ops mean in scalar steps over named axes: shared by every generator, written in no language."""
