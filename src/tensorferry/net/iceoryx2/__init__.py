"""Tensors between the processes of one host, over Eclipse iceoryx2: no byte of a loaned tensor is copied.

Needs the package iceoryx2 (``pip install 'tensorferry[iceoryx2]'``), which is loaded at the first use. What travels
is documented in docs/iceoryx2.md.
"""

from ..arrivals import Counts, Received
from ..payloads import FORMATS
from .looking import Topic, clean_up, topics
from .publishing import Publisher
from .subscribing import Subscriber

__all__ = ["FORMATS", "Counts", "Publisher", "Received", "Subscriber", "Topic", "clean_up", "topics"]
