from multiprocessing.spawn import *
