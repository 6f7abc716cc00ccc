-- Where retention goes on. Not dumped: a hint, which a restored database makes up for in one round.
CREATE TABLE sayiir.retention (
    kind text PRIMARY KEY,
    place text NOT NULL DEFAULT '',
    due timestamptz NOT NULL DEFAULT '-infinity'
);
COMMENT ON TABLE sayiir.retention IS 'Where each kind of pruning goes on, and when. The row''s lock keeps two sessions from pruning the same.';
COMMENT ON COLUMN sayiir.retention.kind IS 'workflows, jobs, events, event_keys, logs.';
COMMENT ON COLUMN sayiir.retention.place IS 'The last key that was looked at; empty = begin at the start.';
COMMENT ON COLUMN sayiir.retention.due IS 'When a sweep looks again.';
INSERT INTO sayiir.retention (kind) VALUES ('workflows'), ('jobs'), ('events'), ('event_keys'), ('logs');
