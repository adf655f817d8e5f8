"""The service under load: what its clients see, against what the engine does by itself.

Tools for the load of LLM servers (GuideLLM, AIPerf, Locust) time independent requests. Here most figures are
of pairs taken in turn (service and bare engine, parallel and sequential, spread and local, killed and not), and need
decoders that are killed, clients that leave and budgets that are exceeded in the middle of an answer: the few lines
that send and time a request are the smaller part, and httpx does their work.
"""
