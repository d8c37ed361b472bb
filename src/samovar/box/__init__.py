"""The box: a parameter server, which holds parameters that workers change together, each at its own speed.

A box has buffers by name. Each is a center, the parameters themselves, and a board, which shows its members. Members of
the same host map both and work on them directly (`mapped`); members elsewhere ask over the network (`remote`), and are
answered by the server (`serving`, `seats`). `joining` gives a seat at either; `shards` makes one center of several.
"""
