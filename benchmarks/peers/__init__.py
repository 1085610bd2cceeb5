"""Other inference engines to compare with, each in an environment of its own outside the repository.

`make_env NAME` makes the environment. `NAME_worker.py` runs in it with nothing but its packages and the standard
library (Python 3.11), so those files and `worker_protocol.py` import no other package of this project.
"""
