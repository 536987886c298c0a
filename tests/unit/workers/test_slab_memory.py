from __future__ import annotations

import mmap
import os

import pytest

from rocketcrew.workers.slab_memory import SlabMemory, slab_supported

pytestmark = pytest.mark.skipif(not slab_supported(), reason="no memfd here: the stream transport is used")


def test_what_the_supervisor_writes_is_read_through_the_handle() -> None:
    slab = SlabMemory(100_000)
    mapped = slab.handle().map_read_only()
    slab.view[99_990:100_000] = b"0123456789"
    assert mapped[99_990:100_000] == b"0123456789"
    assert isinstance(mapped[0:4], bytes)
    mapped.close()
    slab.close()


def test_a_worker_cannot_write() -> None:
    slab = SlabMemory(4_096, prefault=True)
    handle = slab.handle()
    mapped = handle.map_read_only()
    with pytest.raises(TypeError):
        mapped[0] = 1
    with pytest.raises((PermissionError, ValueError)):
        mmap.mmap(handle.shared_fd.fd, 4_096, flags=mmap.MAP_SHARED, prot=mmap.PROT_WRITE)
    mapped.close()
    slab.close()


def test_the_mapping_outlives_descriptors_and_owner() -> None:
    slab = SlabMemory(4_096)
    slab.view[:2] = b"ok"
    mapped = slab.handle().map_read_only()
    slab.close()
    assert mapped[:2] == b"ok"
    mapped.close()


def test_close_with_a_slice_still_held_keeps_its_memory() -> None:
    slab = SlabMemory(4_096)
    held = slab.view[:2]
    held[:] = b"ab"
    slab.close()
    assert bytes(held) == b"ab"


@pytest.mark.usefixtures("no_collection")
def test_no_descriptor_is_left() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        SlabMemory(4_096).close()
    assert len(os.listdir("/proc/self/fd")) == before
