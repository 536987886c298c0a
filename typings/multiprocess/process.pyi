from multiprocessing.process import *
