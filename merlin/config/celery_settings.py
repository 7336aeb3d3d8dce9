"""The names of Celery's settings, known without loading Celery; a test compares them with the installed one's."""

from __future__ import annotations

_NAMES = """
    accept_content arangodb_backend_settings azureblockblob_base_path azureblockblob_connection_timeout
    azureblockblob_container_name azureblockblob_read_timeout azureblockblob_retry_increment_base
    azureblockblob_retry_initial_backoff_sec azureblockblob_retry_max_attempts beat_cron_starting_deadline
    beat_enable_remote_control beat_max_loop_interval beat_remote_control_max_tick_age beat_schedule
    beat_schedule_filename beat_scheduler beat_sync_every broker_channel_error_retry
    broker_connection_max_retries broker_connection_retry broker_connection_retry_on_startup
    broker_connection_timeout broker_failover_strategy broker_heartbeat broker_heartbeat_checkrate broker_host
    broker_login_method broker_native_delayed_delivery_queue_type broker_password broker_pool_acquire_timeout
    broker_pool_limit broker_port broker_read_url broker_transport broker_transport_options broker_url
    broker_use_ssl broker_user broker_vhost broker_write_url cache_backend cache_backend_options
    cassandra_auth_kwargs cassandra_auth_provider cassandra_bundle_path cassandra_entry_ttl cassandra_keyspace
    cassandra_options cassandra_port cassandra_read_consistency cassandra_servers cassandra_table
    cassandra_write_consistency control_exchange control_queue_durable control_queue_exclusive
    control_queue_expires control_queue_ttl cosmosdbsql_collection_name cosmosdbsql_consistency_level
    cosmosdbsql_database_name cosmosdbsql_max_retry_attempts cosmosdbsql_max_retry_wait_time
    couchbase_backend_settings database_create_tables_at_setup database_engine_callback
    database_engine_options database_short_lived_sessions database_table_names database_table_schemas
    database_url elasticsearch_max_retries elasticsearch_retry_on_timeout elasticsearch_save_meta_as_text
    elasticsearch_timeout enable_utc event_exchange event_queue_durable event_queue_exclusive
    event_queue_expires event_queue_prefix event_queue_ttl event_serializer gcs_base_path gcs_bucket
    gcs_project gcs_ttl imports include mongodb_backend_settings redis_backend_use_ssl redis_db redis_host
    redis_max_connections redis_password redis_port redis_retry_on_timeout redis_socket_connect_timeout
    redis_socket_keepalive redis_socket_timeout redis_username result_accept_content result_backend
    result_backend_always_retry result_backend_base_sleep_between_retries_ms result_backend_max_retries
    result_backend_max_sleep_between_retries_ms result_backend_transport_options result_cache_max
    result_chord_expires result_chord_join_timeout result_chord_retry_interval result_compression
    result_exchange result_exchange_type result_expires result_extended result_failure_expires
    result_persistent result_serializer s3_access_key_id s3_base_path s3_bucket s3_endpoint_url s3_region
    s3_secret_access_key security_cert_store security_certificate security_digest security_key
    security_key_password task_acks_late task_acks_on_failure task_acks_on_failure_or_timeout
    task_acks_on_timeout task_allow_error_cb_on_chord_header task_always_eager task_annotations
    task_compression task_create_missing_queue_exchange_type task_create_missing_queue_type
    task_create_missing_queues task_default_delivery_mode task_default_exchange task_default_exchange_type
    task_default_priority task_default_queue task_default_queue_type task_default_rate_limit
    task_default_routing_key task_eager_propagates task_ignore_result task_inherit_parent_priority
    task_protocol task_publish_retry task_publish_retry_policy task_queue_max_priority task_queues
    task_reject_on_worker_lost task_remote_tracebacks task_repr_maxlevels task_retry_on_worker_lost
    task_routes task_send_sent_event task_serializer task_soft_time_limit task_store_eager_result
    task_store_errors_even_if_ignored task_time_limit task_track_started timezone worker_agent
    worker_autoscaler worker_cancel_long_running_tasks_on_connection_loss worker_concurrency worker_consumer
    worker_deduplicate_successful_tasks worker_detect_quorum_queues worker_direct worker_disable_prefetch
    worker_disable_rate_limits worker_enable_prefetch_count_reduction worker_enable_remote_control
    worker_enable_soft_shutdown_on_idle worker_eta_task_limit worker_hijack_root_logger worker_log_color
    worker_log_datefmt worker_log_format worker_lost_wait worker_max_memory_per_child
    worker_max_tasks_per_child worker_pool worker_pool_putlocks worker_pool_restarts worker_pool_start_method
    worker_prefetch_multiplier worker_proc_alive_timeout worker_redirect_stdouts worker_redirect_stdouts_level
    worker_send_task_events worker_soft_shutdown_timeout worker_state_db worker_task_log_datefmt
    worker_task_log_format worker_timer worker_timer_precision
"""
SETTINGS = frozenset(_NAMES.split())


def new_name(old: str) -> str:
    """The setting that a name of Celery 3 (`CELERYD_PREFETCH_MULTIPLIER`) stands for; "" if it cannot be guessed."""
    rest = old.lower()
    for prefix in ("celeryd_", "celerybeat_", "celery_"):
        rest = rest.removeprefix(prefix)
    candidates = (f"{group}{rest}" for group in ("", "task_", "worker_", "result_", "beat_"))
    return next((name for name in candidates if name in SETTINGS), "")
