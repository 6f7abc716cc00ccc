-- Retention

CREATE FUNCTION sayiir.prune(max_rows int DEFAULT 10000) RETURNS SETOF sayiir.sweep
AS 'MODULE_PATHNAME', 'prune_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 5 @HOT@;
COMMENT ON FUNCTION sayiir.prune(int) IS 'Deletes what is older than the settings sayiir.retention_* say, oldest first: finished workflows with all that is theirs, ended stand-alone jobs with their attempts, early and late events, keys of events to workflows that never came, logs; at most max_rows (1-100,000) of each kind, and no longer than half of statement_timeout. The background worker and tick() do the same in small parts.';
