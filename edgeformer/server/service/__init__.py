"""Between HTTP and the engine: models that are served, requests as configs, answers while they are generated."""
