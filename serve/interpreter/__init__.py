"""The Interpreter deployment: owns each request, places its chunks, and assembles its text."""
