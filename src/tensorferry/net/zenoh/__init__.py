"""Tensors across hosts, over Eclipse Zenoh: publish, subscribe, and ask for the latest.

Needs the package eclipse-zenoh (``pip install 'tensorferry[zenoh]'``), which is loaded at the first use. What
travels is documented in docs/zenoh.md.
"""

from ..arrivals import Counts, Received
from .asking import Topic, get, topics
from .encodings import FORMATS
from .publishing import Publisher
from .subscribing import Subscriber

__all__ = ["FORMATS", "Counts", "Publisher", "Received", "Subscriber", "Topic", "get", "topics"]
