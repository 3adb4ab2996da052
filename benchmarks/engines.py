"""What does a frame cost through an engine of others, by hand and through tensorferry, in one run?

    python benchmarks/engines.py [--quick] [--engine NAME] [--json FILE]

A frame of 6.2 MB goes to a second process, which acknowledges it with the time at which it had it; then the next
goes. Hand-off: the frame is ready before the clock starts, and in the reader's hands when it stops. Filled and
read: the clock starts before the frame is written, and stops when every byte of it has been summed up.
"""

from __future__ import annotations

from engine_kit import main
from engines_iceoryx2 import ICEORYX2
from engines_zenoh import ZENOH

if __name__ == "__main__":
    main({"zenoh": ZENOH, "iceoryx2": ICEORYX2})
