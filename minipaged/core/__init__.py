"""An engine in a process of its own, and those who talk to it.

    messages.py    what crosses the border           loop.py      one engine: commands in, reports out
    process.py     the process around it             wire.py      how it is reached, there or here
    router.py      which replica is next             replicas.py  all replicas as one, for one or many callers

(From level 07.)"""
