"""Tensors over engines that others build: ``from tensorferry.net import zenoh`` across hosts, ``iceoryx2`` on one.

Nothing here is imported until it is asked for, and no engine is loaded before its first use.
"""
