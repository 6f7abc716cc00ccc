"""One module a subject; each has run(server, scale) and answers a list of Results."""
