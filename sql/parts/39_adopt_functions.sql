-- Restore

CREATE FUNCTION sayiir.adopt() RETURNS SETOF sayiir.sweep
AS 'MODULE_PATHNAME', 'adopt_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 2 @DEFINER@;
COMMENT ON FUNCTION sayiir.adopt() IS 'Takes over a restored or copied database, in which nothing is swept and claims are refused with engine.not_adopted: leases of the old server''s workers end and their jobs are ready again, their attempts given back (leases), sequences that are behind their tables are moved (sequences). Where the engine runs already, nothing happens. Leave a copy for tests as it is, and it sends no real mail.';
