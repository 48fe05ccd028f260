"""Personal models to take away: tickets, ONNX, safetensors."""
