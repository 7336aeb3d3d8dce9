"""The Celery executor: tickets on a broker, progress in Redis, workers anywhere on the shared file system.

======================  ===========================================================================
`redis_progress`        who runs what, what is ready, what has ended; atomic, in Redis
`open_study`            puts a study's progress into Redis and publishes its first tickets
`publish`               sends tickets to the broker
`app`                   the Celery application that a worker runs
`engine`                follows a ticket: claims a chunk, runs it in a worker process, reports
`study`                 what a worker keeps of one study
`maintenance`           the worker's housekeeping: beats, sweeps, delays, commands
`registry`              workers, studies and commands, as everybody sees them
`launch`, `start`       how workers are started
`queues`, `control`     what an operator does to queues and studies
======================  ===========================================================================
"""
