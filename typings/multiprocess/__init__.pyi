# multiprocess is a fork of multiprocessing with the same interface; it ships no stubs of its own.
from multiprocessing import *
