"""One module a subject; each has run(server, scale), which yields Results."""
