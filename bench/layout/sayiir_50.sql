SELECT array_agg(job_id)::text AS ids, array_agg(epoch)::text AS epochs, jsonb_agg('{"done": true}'::jsonb)::text AS outputs FROM sayiir.job_claim('worker', '{bench}', 50) \gset
SELECT count(*) FROM sayiir.job_complete_many(:ids, :epochs, :outputs);
