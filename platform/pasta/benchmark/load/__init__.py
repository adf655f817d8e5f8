"""The service under load: what its clients see, compared with the bare engine.

Load generators for LLM servers (GuideLLM, AIPerf, Locust) time independent requests. Most metrics here are of pairs
that are measured in turn: service and bare engine, parallel and sequential, spread and local, with and without a killed
decoder. They need decoders that are killed, and clients that disconnect or exceed the budget in the middle of an
answer. aiohttp sends the requests and reads the answers, which is the smaller part of the work. ``sse.py`` reads the
data of events only, in 20 lines; the package httpx-sse would be another dependency for them.
"""
