"""How the parser's process reads each kind of file. Nothing here runs in the server."""
