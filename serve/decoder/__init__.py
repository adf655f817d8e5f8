"""The Decoder deployment: hosts the engines and streams their tokens."""
