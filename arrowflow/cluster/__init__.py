"""Runs the lanes of a plan in the workers of a Ray cluster, with the batches of one machine.

Ray places processes, moves objects, and tells which process has died. This package decides which worker runs which lane.

Owners
------
* The **consumer** is the process that iterates. Its run is an ordinary one (`arrowflow.executor`), with a `RemoteLane` in the
  place of each lane's plan. So batches are merged, cut, counted and exported there, and its positions are those of a run on
  one machine: a state of one is a state of the other.
* A **worker** is an actor. Each lane in it is an ordinary run, too, with a part of the worker's byte budget. The worker owns
  nothing that would be missed: what it has read is made again from a position.
* The **session** (`session.py`) owns the handles of the workers, and says which worker runs a lane. It belongs to the plan,
  so workers live as long as the loader does. They are not detached: Ray ends them with the consumer.

Messages
--------
A lane's kernel asks its worker for the next *piece*. These are record batches, each with its lane's position after it. A
piece ends where it has enough bytes or took long enough. The first piece of a run ends with its first batch. The kernel
asks for one piece while the executor takes the one before, and not for more. So a worker whose lanes nobody asks stops
reading, as any run does. The requests of one run of a lane never overlap: a worker has one call at a time for it.

Pieces take a quarter of the object store at most: an eighth on their way, which decides how large a piece may be, and an
eighth in use. A larger batch comes in several pieces (`parts.py`). The consumer's batches lie in the store as long as that
eighth has room, and are copied beyond. It has copied a piece before it asks for the next one.

A piece also tells what its worker did for the lane: the figures of the stages, and what ran when, if somebody records. It
tells of each bad row that was left out, with a place: rows that are computed again count once.

Failures and changes
--------------------
* A worker dies. Its lanes are opened in a new one, each at the last position that the executor took. So rows neither get
  lost nor come twice. Where workers die one after the other, each before a lane's second piece, the third one calls functions in
  other processes, so that it can tell which call ends its process. The fourth such death is a `WorkerError`.
* Workers come and go (`scaling.py`). A lane moves when it asks for its next piece: closed here, opened there at its position.
* A run ends: its kernels close their lanes, without waiting for an answer.
* An error of a lane comes as the last piece of it, in order, and is raised there with its cause.

Waiting
-------
Only the calls of a lane's kernel wait for Ray, on threads of the executor that wait. They look five times a second whether the
run goes on. The session's lock guards its lists. A lane waits for Ray's head node under it while it connects to the cluster, and while
workers are added or replaced: the others need what comes of that.
"""
