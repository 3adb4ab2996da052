"""Tensors between processes of one host, by descriptor over a Unix socket, with buffers that go round."""

from .link import Link, Peer
from .listening import Listener, connect
from .pool import Pool

__all__ = ["Link", "Listener", "Peer", "Pool", "connect"]
