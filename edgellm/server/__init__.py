"""HTTP: an OpenAI-compatible server over AsyncLLM, with the dialects of other servers beside it.

app.build(models, settings) is an ASGI application; serve.run runs it until it is told to stop. Each dialect is one
module that reads a body, calls a model, and shapes what comes back.
"""
