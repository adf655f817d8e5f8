"""The Gateway deployment: HTTP, OpenAI's API, keys, and the playground."""
