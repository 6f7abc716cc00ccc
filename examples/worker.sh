#!/usr/bin/env bash
# A worker in shell: SAYIIR_URI=… worker.sh
# It does jobs of the task count_words: {"text": "to be or not"} gives {"words": 4}. Needs psql and jq.
set -euo pipefail

sql() { psql -X -q -A -t -v ON_ERROR_STOP=1 -d "$SAYIIR_URI" "$@"; } # -v name=value is :'name' in the statement, quoted
count() { jq -er '.input.text | strings' <<<"$1" | wc -w | jq -c '{words: .}'; }

while :; do
    job=$(sql <<<"SELECT to_jsonb(j) FROM sayiir.job_claim('sh', '{count_words}', wait => '10 s') j")
    [ -n "$job" ] || continue
    lease=(-v id="$(jq -r .job_id <<<"$job")" -v epoch="$(jq -r .epoch <<<"$job")")
    if output=$(count "$job"); then
        sql "${lease[@]}" -v output="$output" <<<"SELECT sayiir.job_complete(:'id', :'epoch', :'output')"
    else
        sql "${lease[@]}" <<<"SELECT * FROM sayiir.job_fail(:'id', :'epoch', 'failed', 'there is no text')"
    fi
done
