"""JAX takes what was received without a copy where it is aligned, and gives its arrays without one."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frameworks_peers import GUARD, address, arange, over_a_link, shared

import tensorferry as ferry
from tensorferry.link import Link, Pool

TYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32"]
WIDE = ["int64", "uint64", "float64"]


@pytest.mark.parametrize("dtype", TYPES)
def test_a_read_only_tensor_over_a_link(dtype: str) -> None:
    with over_a_link(shared(arange((3, 5), dtype))) as t:
        assert not t.numpy().flags.writeable
        x = jax.device_put(t.numpy(), may_alias=True)
        assert address(x) == address(t)
        assert np.array_equal(np.asarray(x), t.numpy())
        with pytest.raises(BufferError, match="readonly"):  # it asks for a DLPack that cannot say so
            jax.dlpack.from_dlpack(t)


def taken(t: ferry.Tensor) -> None:
    for take in (jax.dlpack.from_dlpack, jnp.from_dlpack):
        x = take(t)
        assert address(x) == address(t)
        assert np.array_equal(np.asarray(x), t.numpy())
        assert str(x.dtype) == t.dtype


@pytest.mark.parametrize("dtype", TYPES)
def test_a_writable_tensor_over_a_link(dtype: str) -> None:
    with over_a_link(shared(arange((3, 5), dtype)), writable=True) as t:
        taken(t)


@pytest.mark.parametrize("dtype", ["bool", "bfloat16"])
def test_what_a_blob_has_no_code_for(dtype: str) -> None:
    taken(shared(arange((3, 5), "uint8").astype(ferry.DType.of(dtype).numpy)))


@pytest.mark.parametrize("dtype", WIDE)
def test_wide_types_are_narrowed_unless_x64(dtype: str) -> None:
    t = ferry.allocate((4,), dtype)
    assert jax.dlpack.from_dlpack(t).dtype.itemsize == 4
    with jax.enable_x64(True):
        x = jax.dlpack.from_dlpack(t)
        assert x.dtype == dtype
        assert address(x) == address(t)
        assert address(jax.device_put(t.numpy(), may_alias=True)) == address(t)


def test_what_allocate_gives_is_aligned() -> None:
    for size in (1, 3, 100, 4096, 1 << 20):
        for storage in ("mem", "shm"):
            t = ferry.allocate(size, "uint8", storage=storage)
            assert address(t) % 64 == 0
            assert address(jax.dlpack.from_dlpack(t, copy=False)) == address(t)


def test_an_unaligned_payload_is_copied() -> None:
    memory = ferry.allocate(128, "uint8").numpy()[8:72]
    t = ferry.Tensor.from_array(memory)
    assert address(jax.dlpack.from_dlpack(t)) != address(t)
    with pytest.raises(ValueError, match="not aligned to 64"):
        jax.dlpack.from_dlpack(t, copy=False)
    for rank in range(1, 5):
        values = arange((2,) * rank, "float32")
        assert len(ferry.blob.export_parts(ferry.Tensor.from_array(values))[0]) == 152 + 16 * rank
        t = ferry.loads(ferry.dumps(values))
        assert address(t) % 64 != 0
        x = jax.device_put(t.numpy(), may_alias=True)
        assert address(x) != address(t)
        assert np.array_equal(np.asarray(x), t.numpy())


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4), (2, 1, 3, 4)])
def test_a_blob_laid_where_its_payload_is_aligned(shape: tuple[int, ...]) -> None:
    t = ferry.Tensor.from_array(arange(shape, "float32"))
    parts = ferry.blob.export_parts(t)
    start = -len(parts[0]) % 64
    room = memoryview(ferry.allocate(start + sum(map(len, parts)), "uint8").numpy())[start:]
    ferry.blob.export_into(t, room)
    got = ferry.loads(room)
    x = jax.device_put(got.numpy(), may_alias=True)
    assert address(x) == address(got)
    assert np.array_equal(np.asarray(x), t.numpy())


def test_a_vlink_message_in_aligned_memory() -> None:
    data = ferry.dumps(arange((2, 3), "float32"), format="vlink")
    room = ferry.allocate(len(data), "uint8").numpy()
    room[:] = np.frombuffer(data, np.uint8)
    got = ferry.loads(memoryview(room))
    assert address(jax.device_put(got.numpy(), may_alias=True)) == address(got) == address(room) + 256


def test_strides() -> None:
    """A transposition is taken as it is; anything with gaps, or backwards, is refused: DLPack's, or copied."""
    whole = ferry.allocate((64, 64), "float32").numpy()
    turned = ferry.Tensor.from_array(whole.T)
    assert address(jax.dlpack.from_dlpack(turned)) == address(whole)
    for view in (whole[::2], whole[:, :16], whole[::-1]):
        t = ferry.Tensor.from_array(view)
        with pytest.raises(RuntimeError, match="striding"):
            jax.dlpack.from_dlpack(t)
        assert np.array_equal(np.asarray(jax.dlpack.from_dlpack(t.packed())), view)
        assert address(jax.device_put(view, may_alias=True)) != address(view)


@pytest.mark.parametrize("dtype", [*TYPES, "bool", "bfloat16"])
def test_jax_gives_its_memory_read_only(dtype: str) -> None:
    x = jnp.arange(6).reshape(2, 3).astype(dtype)
    t = ferry.Tensor.from_array(x)
    assert address(t) == address(x)
    assert t.dtype == dtype
    assert not t.numpy().flags.writeable
    assert np.array_equal(t.numpy(), np.asarray(x))
    del x
    gc.collect()
    assert np.array_equal(t.numpy(), np.arange(6).reshape(2, 3).astype(t.dtype.numpy))


def test_a_result_is_waited_for() -> None:
    @jax.jit
    def slow(x: jax.Array) -> jax.Array:
        for _ in range(6):
            x = jnp.sin(x @ x * 1e-3)
        return x + 1

    x = jnp.ones((700, 700))
    t = ferry.Tensor.from_array(slow(x))
    assert np.array_equal(t.numpy(), np.asarray(slow(x)))


def test_a_result_goes_back_over_the_link() -> None:
    with over_a_link(shared(arange((2, 3), "float32"))) as t:
        y = jax.jit(lambda x: x * 2 + 1)(jax.device_put(t.numpy(), may_alias=True))
        with over_a_link(ferry.Tensor.from_array(y)) as back:
            assert np.array_equal(back.numpy(), t.numpy() * 2 + 1)


def test_the_buffer_is_lent_as_long_as_jax_looks() -> None:
    a, b = Link.pair()
    with a, b, Pool((4,), "float32", 1) as pool:
        with pool.acquire(GUARD) as frame:
            frame.numpy()[:] = 5
            a.send(frame)
        with b.recv(GUARD) as t:
            x = jax.device_put(t.numpy(), may_alias=True)
        del t
        gc.collect()
        with pytest.raises(ferry.TimedOut):
            pool.acquire(0)
        assert x.tolist() == [5, 5, 5, 5]
        del x
        gc.collect()
        pool.acquire(GUARD).close()


def test_donated_memory_is_not_written_to() -> None:
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    with over_a_link(shared(arange((64,), "float32"))) as t:
        assert add(jax.device_put(t.numpy(), may_alias=True)).tolist() == list(range(1, 65))
        assert t.numpy().tolist() == list(range(64))


def test_an_alias_shows_what_is_written_later() -> None:
    t = ferry.allocate((16,), "float32")
    aliased = jax.device_put(t.numpy())
    copies = [copy(t.numpy()).block_until_ready() for copy in (jnp.array, jnp.asarray)]
    assert address(aliased) == address(t)
    t.numpy()[:] = 7
    assert aliased[0] == 7
    assert [copy[0] for copy in copies] == [0, 0]
