"""Pictures that a request names by URL, from the hosts that whoever runs the server has listed."""
