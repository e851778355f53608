"""How it feels to be a client, in numbers: when the first word comes, how steadily the others, and how many are served.

    arrivals.py    when clients come          clients.py    one client, timed          figures.py    times to figures
    serve.py       many against a server      offline.py    the engine alone           tune.py       which settings?

    python -m minipaged.bench serve --url URL --request-rate 1,2,4,inf        any server with OpenAI's API
    python -m minipaged.bench latency | throughput                            the engine in this process
    python -m minipaged.bench auto-tune --slo-ttft 1 --slo-tpot 0.2           a server for each setting

(From level 08.)"""
