"""An example of each endpoint by curl, in the words that the page defines at its top. They are run in their order."""

from __future__ import annotations

EXAMPLES = {
    "POST /v1/sandboxes": (
        """api /sandboxes --json '{"template": "base", "ttl_seconds": 3600, "metadata": {"run": "42"}}'"""
    ),
    "GET /v1/sandboxes": "api '/sandboxes?metadata.run=42&status=running'",
    "GET /v1/sandboxes/{id}": "api /sandboxes/$ID",
    "DELETE /v1/sandboxes/{id}": 'api "/sandboxes/$(torpor create base)" -X DELETE',
    "GET /v1/sandboxes/{id}/lifecycle": "api /sandboxes/$ID/lifecycle",
    "PATCH /v1/sandboxes/{id}/lifecycle": """api /sandboxes/$ID/lifecycle -X PATCH --json '{"ttl_seconds": 7200}'""",
    "GET /v1/sandboxes/{id}/network": "api /sandboxes/$ID/network",
    "PATCH /v1/sandboxes/{id}/network": (
        """api /sandboxes/$ID/network -X PATCH --json '{"network": {"allow": ["code.example.com"]}}'"""
    ),
    "POST /v1/sandboxes/{id}/pause": "api /sandboxes/$ID/pause -X POST",
    "POST /v1/sandboxes/{id}/resume": "api /sandboxes/$ID/resume -X POST",
    "POST /v1/sandboxes/{id}/hibernate": "api /sandboxes/$ID/hibernate -X POST",
    "POST /v1/sandboxes/{id}/wake": "api /sandboxes/$ID/wake -X POST",
    "POST /v1/sandboxes/{id}/rollback": (
        """SNP=$(torpor snapshot $ID); api /sandboxes/$ID/rollback --json '{"snapshot": "'$SNP'"}'"""
    ),
    "POST /v1/sandboxes/{id}/fork": """api /sandboxes/$ID/fork --json '{"count": 2}'""",
    "POST /v1/sandboxes/{id}/fork-tree": """api /sandboxes/$ID/fork-tree --json '{"count": 2}'""",
    "POST /v1/sandboxes/{id}/promote": (
        """api "/sandboxes/$(torpor fork $ID)/promote" --json '{"cleanup_siblings": false}'"""
    ),
    "POST /v1/sandboxes/{id}/snapshots": """api /sandboxes/$ID/snapshots --json '{"name": "ready"}'""",
    "GET /v1/snapshots": "api /snapshots?sandbox_id=$ID",
    "GET /v1/snapshots/{id}": "api /snapshots/$SNP",
    "DELETE /v1/snapshots/{id}": 'api "/snapshots/$(torpor snapshot $ID)" -X DELETE',
    "POST /v1/snapshots/{id}/verify": "api /snapshots/$SNP/verify -X POST",
    "POST /v1/sandboxes/{id}/exec": """api /sandboxes/$ID/exec --json '{"cmd": "uname -a", "timeout_seconds": 60}'""",
    "POST /v1/sandboxes/{id}/exec/stream": (
        """api /sandboxes/$ID/exec/stream --json '{"cmd": "for n in 1 2 3; do echo $n; done"}'"""
    ),
    "POST /v1/sandboxes/{id}/processes": (
        """api /sandboxes/$ID/processes --json '{"cmd": ["cat"], "open_stdin": true}' -H 'Idempotency-Key: one'"""
    ),
    "GET /v1/sandboxes/{id}/processes": "api /sandboxes/$ID/processes",
    "GET /v1/sandboxes/{id}/processes/{pid}": "api /sandboxes/$ID/processes/key:one",
    "GET /v1/sandboxes/{id}/processes/{pid}/stream": (
        "api \"/sandboxes/$ID/processes/$(torpor exec -d $ID 'echo done')/stream\""
    ),
    "POST /v1/sandboxes/{id}/processes/{pid}/stdin": (
        "api '/sandboxes/'$ID'/processes/key:one/stdin' --data-binary 'one line'"
    ),
    "POST /v1/sandboxes/{id}/processes/{pid}/resize": (
        """PTY=$(api /sandboxes/$ID/processes --json '{"terminal": {"rows": 24, "cols": 80}}' | cut -d'"' -f4); """
        """api /sandboxes/$ID/processes/$PTY/resize --json '{"rows": 40, "cols": 120}'"""
    ),
    "POST /v1/sandboxes/{id}/processes/{pid}/signal": (
        """api /sandboxes/$ID/processes/key:one/signal --json '{"signal": "SIGTERM"}'"""
    ),
    "POST /v1/sandboxes/{id}/repl/sessions": (
        """SID=$(api /sandboxes/$ID/repl/sessions --json '{"language": "python"}' | cut -d'"' -f4); echo $SID"""
    ),
    "GET /v1/sandboxes/{id}/repl/sessions": "api /sandboxes/$ID/repl/sessions",
    "GET /v1/sandboxes/{id}/repl/sessions/{sid}": "api /sandboxes/$ID/repl/sessions/$SID",
    "DELETE /v1/sandboxes/{id}/repl/sessions/{sid}": (
        """NEW=$(api /sandboxes/$ID/repl/sessions --json '{}' | cut -d'"' -f4); """
        "api /sandboxes/$ID/repl/sessions/$NEW -X DELETE"
    ),
    "POST /v1/sandboxes/{id}/repl/sessions/{sid}/run": (
        """api /sandboxes/$ID/repl/sessions/$SID/run --json '{"code": "6 * 7"}'"""
    ),
    "POST /v1/sandboxes/{id}/repl/sessions/{sid}/run/stream": (
        """api /sandboxes/$ID/repl/sessions/$SID/run/stream --json '{"code": "print(6 * 7)"}'"""
    ),
    "POST /v1/sandboxes/{id}/repl/sessions/{sid}/interrupt": (
        "api /sandboxes/$ID/repl/sessions/$SID/interrupt -X POST"
    ),
    "GET /v1/sandboxes/{id}/fs": "api '/sandboxes/'$ID'/fs?path=/etc/hostname'",
    "PUT /v1/sandboxes/{id}/fs": "api '/sandboxes/'$ID'/fs?path=/work/hello.txt&mode=640' -T - <<<hello",
    "DELETE /v1/sandboxes/{id}/fs": "api '/sandboxes/'$ID'/fs?path=/work/hello.txt' -X DELETE",
    "GET /v1/sandboxes/{id}/fs/stat": "api '/sandboxes/'$ID'/fs/stat?path=/etc/hostname'",
    "GET /v1/sandboxes/{id}/fs/dir": "api '/sandboxes/'$ID'/fs/dir?path=/work'",
    "POST /v1/sandboxes/{id}/fs/dir": "api '/sandboxes/'$ID'/fs/dir?path=/work/some/folder' -X POST",
    "POST /v1/sandboxes/{id}/fs/rename": (
        """api /sandboxes/$ID/fs/rename --json '{"source": "/work/some", "target": "/work/other"}'"""
    ),
    "GET /v1/sandboxes/{id}/fs/walk": "api '/sandboxes/'$ID'/fs/walk?path=/work'",
    "GET /v1/sandboxes/{id}/logs": "api /sandboxes/$ID/logs",
    "GET /v1/sandboxes/{id}/ports": "api /sandboxes/$ID/ports",
    "POST /v1/sandboxes/{id}/ports/{port}/link": (
        """api /sandboxes/$ID/ports/8000/link --json '{"expires_seconds": 900}'"""
    ),
    "POST /v1/templates/build": (
        """BUILD=$(api /templates/build --json '{"name": "base", "recipe": "base"}' | cut -d'"' -f4); echo $BUILD"""
    ),
    "GET /v1/templates/builds": "api /templates/builds",
    "GET /v1/templates/builds/{build}": "api /templates/builds/$BUILD",
    "DELETE /v1/templates/builds/{build}": "api /templates/builds/$BUILD -X DELETE",
    "GET /v1/templates/builds/{build}/logs": "api /templates/builds/$BUILD/logs?follow=true",
    "GET /v1/templates": "api /templates",
    "GET /v1/templates/{name}": "api /templates/base",
    "DELETE /v1/templates/{name}": "api /templates/agent -X DELETE",
    "GET /v1/volumes": "api /volumes",
    "POST /v1/volumes": """api /volumes --json '{"name": "data", "size_mb": 64}'""",
    "GET /v1/volumes/{name}": "api /volumes/data",
    "DELETE /v1/volumes/{name}": "api /volumes/data -X DELETE",
    "GET /v1/events": "api '/events?type=state&limit=10'",
    "GET /v1/sandboxes/{id}/events": "api /sandboxes/$ID/events",
    "GET /v1/sandboxes/{id}/usage": "api /sandboxes/$ID/usage",
    "GET /v1/usage": "api '/usage?metadata.run=42&format=csv'",
    "GET /v1/metrics": "api /metrics",
    "GET /v1/me": "api /me",
    "GET /v1/me/tokens": "api /me/tokens",
    "POST /v1/me/tokens": """api /me/tokens --json '{"label": "ci", "expires_in_days": 30}'""",
    "DELETE /v1/me/tokens/{prefix}": 'key=$(torpor token create once); api "/me/tokens/${key:0:12}" -X DELETE',
    "GET /v1/quota": "api /quota",
    "GET /v1/capacity": "api /capacity",
    "GET /v1/audit": "api '/audit?kind=change&limit=10'",
    "GET /healthz": "curl -sS --fail-with-body $API/healthz",
    "GET /version": "curl -sS --fail-with-body $API/version",
}
NOT_RUN = {
    "DELETE /v1/templates/{name}": "the next examples need the templates",
}
