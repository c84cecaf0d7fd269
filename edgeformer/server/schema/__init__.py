"""Bodies of requests and responses, the fields that are read or ignored, and errors as the API writes them."""
