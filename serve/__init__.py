"""The PASTA service on Ray Serve: Gateway (HTTP) → Interpreter (owns a request) → Decoder (the engine)."""
