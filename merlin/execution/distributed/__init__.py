"""The Celery executor: messages on a broker, leases and a mailbox in Redis, workers anywhere on the shared file system.

======================  ==========================================================================
to decide               `ownership` (the work of a study's owner), `owners` (a worker's ownerships)
to run chunks           `engine` (messages), `chunk_runs` (the processes of chunks), `worker_pool`
                        (worker processes), `upkeep` (leases, commands), `leaving`
commands                `open_study` (run, restart), `control` (cancel, purge), `wanted_workers`, `launch`, `start`
                        (run-workers), `wanted_jobs`, `autoscaler_loop`, `ended_jobs` (workers submit, autoscale, stop)
interfaces              `contracts`; on Redis `redis_backend`, `redis_registry`, `scripts`; on a broker
                        `publish`, `queues`
incoming messages       `transport`, `consumer`, `incoming`, `messages`, `entries`, `refusals`, `slots`
======================  ==========================================================================
"""
