"""The ASGI application: routes, middleware, the chat page, and the process that serves."""
