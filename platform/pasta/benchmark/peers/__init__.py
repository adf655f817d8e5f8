"""The engine side by side with what a user would pick instead: transformers' ``generate`` and llama.cpp."""
