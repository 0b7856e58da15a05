"""The operators of sparsify: their definitions in standard ONNX ops, and native kernels."""
