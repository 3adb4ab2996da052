"""Where bytes live: the heap, sealed shared memory, dma-bufs, foreign handles; and who closes what.

Knows no wire format. Beyond the heap it needs Linux, and says so where it is used elsewhere.
"""

from .allocating import allocate, allocate_image
from .descriptor import Descriptor, Nature, nature_of
from .dmabuf import heaps
from .fetching import fetch
from .foreign import ForeignPlane, Importer, register, unregister
from .opening import from_fd, from_shm, image_from_fd, open_planes
from .region import Region

__all__ = [
    "Descriptor",
    "ForeignPlane",
    "Importer",
    "Nature",
    "Region",
    "allocate",
    "allocate_image",
    "fetch",
    "from_fd",
    "from_shm",
    "heaps",
    "image_from_fd",
    "nature_of",
    "open_planes",
    "register",
    "unregister",
]
