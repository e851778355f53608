"""An engine in a process of its own, and those who talk to it.

    messages.py    what crosses the border           loop.py      one engine: commands in, reports out
    process.py     the process around it             wire.py      how it is reached, there or here
    router.py      which replica is next             replicas.py  all replicas as one, for one or many callers
    questions.py   what was asked, and by when
    pace.py, conductor.py    who has to wait for whom           turnable.py    what is asked of an engine
    entry.py, ledger.py, counters.py    what is known of requests and steps, outside      view.py    a look inside

(From level 07.)"""
