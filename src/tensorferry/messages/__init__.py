"""EdgeFirst's messages: ``edgefirst_msgs/msg/Tensor``, ``TensorStamped`` and ``CameraFrame`` as ROS 2 CDR bytes.

A message is the blob field for field, except that ``handle`` is a raw descriptor of process ``pid``. The package
edgefirst-schemas writes and reads the bytes (``pip install tensorferry[edgefirst]``); what they mean is the blob's.
"""

from .definitions import KINDS, definition, type_name
from .reading import decode
from .writing import encode

__all__ = ["KINDS", "decode", "definition", "encode", "type_name"]
