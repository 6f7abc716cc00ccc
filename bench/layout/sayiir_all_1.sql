SELECT job_id, epoch FROM sayiir.job_claim('worker', '{bench}') \gset
SELECT sayiir.job_complete(:job_id, :epoch, '{"done": true}');
