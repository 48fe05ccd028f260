"""Export of personal models: tickets, ONNX, safetensors."""
