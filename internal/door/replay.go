package door

import (
	"net/http"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
)

// replayHeader names the trace that a call of POST /tools/call repeats.
const replayHeader = "Doorward-Replay-Of"

// replayOf reads the header. A trace that the caller's workspace does not have is refused, so that nobody writes
// made-up names into the record.
func (d *Door) replayOf(r *http.Request, caller *auth.Caller) (string, error) {
	values := r.Header[replayHeader]
	if len(values) == 0 {
		return "", nil
	}
	_, err := audit.Get(r.Context(), d.d.DB, caller.WorkspaceID, values[0])
	return values[0], err
}
