import pickle
from typing import IO, Any

class Pickler(pickle._Pickler):
    def __init__(self, file: IO[bytes], protocol: int | None = None, *, recurse: bool | None = None) -> None: ...

def dumps(
    obj: object, protocol: int | None = None, byref: bool | None = None, *, recurse: bool | None = None
) -> bytes: ...
def loads(str: bytes) -> Any: ...
