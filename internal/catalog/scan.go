package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/policy"
)

// Scan is what applying a listing found.
type Scan struct {
	ID      string `json:"scan_id"`
	Status  string `json:"status"` // ok, failed
	Found   int    `json:"tools_found"`
	New     int    `json:"new"`
	Changed int    `json:"changed"` // against what was seen last
	Removed int    `json:"removed"`
	Error   string `json:"error,omitempty"` // with status ok: the entries that were skipped
}

// The statuses of a Scan.
const (
	ScanOK     = "ok"
	ScanFailed = "failed"
)

// ApplyListing remembers the current state of every tool of a server (PV-7). It admits nothing and sets no
// rule. A listing that is not complete never removes or un-admits a tool (case 3).
//
// A complete listing is a successful scan and gets a new scan id. One that is
// not is a failed scan; only when it brought a definition that was not
// known, the id moves all the same (if there is one), so that an approval of the older list is refused as outdated.
func (c *Catalog) ApplyListing(ctx context.Context, serverID string, l mcp.Listing) (Scan, error) {
	found, notes := parseListing(l)
	complete := l.Complete && l.Err == nil
	scan := Scan{Status: ScanOK, Found: len(found)}
	if !complete {
		scan.Status = ScanFailed
		notes = append([]string{c.failure(l, len(found))}, notes...)
	}
	scan.Error = string(c.d.Redactor.Redact([]byte(strings.Join(notes, "; "))))
	u := &listingUpdate{scan: &scan, found: found, complete: complete, now: c.now()}
	err := c.d.DB.Tx(ctx, func(tx *sql.Tx) error {
		if err := u.apply(ctx, tx, serverID); err != nil {
			return stored(err)
		}
		if u.decides {
			return c.d.DB.Changed(ctx, tx)
		}
		return nil
	})
	if err != nil {
		return Scan{}, err
	}
	if u.decides {
		c.d.DB.Announce()
		return scan, c.Reload(ctx)
	}
	return scan, nil
}

// failure is the note of a listing that is not complete.
func (c *Catalog) failure(l mcp.Listing, found int) string {
	why := "a page is missing"
	if l.Err != nil {
		why = l.Err.Error()
		if f := (*fault.Error)(nil); errors.As(l.Err, &f) {
			why = f.Message
		}
	}
	if found == 0 {
		return clip("the tools could not be listed: "+why, 1000)
	}
	return clip("the list of tools is incomplete: "+why, 1000)
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// parseListing checks the entries. What is wrong with one is noted and does
// not harm the others; of two entries with one name the first counts.
func parseListing(l mcp.Listing) (found []*definition, notes []string) {
	seen := map[string]bool{}
	skipped := 0
	note := func(i int, name, why string) {
		if skipped++; skipped <= 10 {
			notes = append(notes, fmt.Sprintf("tool %d%s skipped: %s", i+1, name, why))
		}
	}
	for i, raw := range l.Tools {
		if len(found) == maxTools {
			note(i, "", fmt.Sprintf("more than %d tools", maxTools))
			break
		}
		d, err := parseDefinition(raw)
		switch {
		case err != nil:
			note(i, "", err.Error())
		case seen[d.name]:
			note(i, fmt.Sprintf(" %q", clip(d.name, 80)), "the name stands twice, the first counts")
		default:
			seen[d.name] = true
			found = append(found, d)
		}
	}
	if skipped > 10 {
		notes = append(notes, fmt.Sprintf("and %d more", skipped-10))
	}
	return found, notes
}

// listingUpdate writes a listing: only rows that differ, so that the usual
// refresh, which finds nothing new, costs one small write and no reload.
type listingUpdate struct {
	scan     *Scan
	found    []*definition
	complete bool
	now      int64
	decides  bool // something that the snapshot holds has changed
}

type toolRow struct {
	id, fingerprint, definition string
	position, seenAt            int64
	present                     bool
}

func (u *listingUpdate) apply(ctx context.Context, tx *sql.Tx, serverID string) error {
	var scanID, scanError string
	if _, err := tx.ExecContext(ctx, `UPDATE server SET state = state WHERE id = $1`, serverID); err != nil {
		return err
	}
	err := tx.QueryRowContext(ctx, `SELECT scan_id, scan_error FROM server WHERE id = $1`, serverID).Scan(&scanID, &scanError)
	if errors.Is(err, sql.ErrNoRows) {
		return fault.New(fault.NotFound, "no such server")
	}
	if err != nil {
		return err
	}
	known, err := toolRows(ctx, tx, serverID)
	if err != nil {
		return err
	}
	for i, d := range u.found {
		if err := u.tool(ctx, tx, serverID, int64(i), d, known); err != nil {
			return err
		}
		delete(known, d.name)
	}
	if u.complete {
		if err := u.vanish(ctx, tx, known); err != nil {
			return err
		}
	}
	return u.server(ctx, tx, serverID, scanID, scanError)
}

func toolRows(ctx context.Context, tx *sql.Tx, serverID string) (map[string]toolRow, error) {
	rows, err := tx.QueryContext(ctx, `SELECT id, name, fingerprint, definition, position, last_seen_at, present FROM tool WHERE server_id = $1`, serverID)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[string]toolRow{}
	for rows.Next() {
		var r toolRow
		var name string
		if err := rows.Scan(&r.id, &name, &r.fingerprint, &r.definition, &r.position, &r.seenAt, &r.present); err != nil {
			return nil, err
		}
		out[name] = r
	}
	return out, rows.Err()
}

func (u *listingUpdate) tool(ctx context.Context, tx *sql.Tx, serverID string, position int64, d *definition, known map[string]toolRow) error {
	class, risk, category := policy.Classify(d.traits), policy.RiskOf(d.traits), policy.CategoryOf(d.traits)
	row, ok := known[d.name]
	if !ok {
		u.scan.New++
		u.decides = true
		_, err := tx.ExecContext(ctx, `INSERT INTO tool (id, server_id, name, position, definition, fingerprint, action, risk, category, present, first_seen_at, last_seen_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11)`,
			db.NewID(), serverID, d.name, position, string(d.raw), d.fingerprint, string(class), string(risk), category, true, u.now)
		return err
	}
	if row.definition == string(d.raw) && row.present && row.position == position {
		return nil
	}
	if row.fingerprint != d.fingerprint {
		u.scan.Changed++
	}
	u.decides = true
	// last_seen_at tells the snapshot that it has another definition, so it always moves with it.
	_, err := tx.ExecContext(ctx, `UPDATE tool SET position = $2, definition = $3, fingerprint = $4, action = $5, risk = $6, category = $7,
		present = $8, last_seen_at = $9 WHERE id = $1`,
		row.id, position, string(d.raw), d.fingerprint, string(class), string(risk), category, true, max(u.now, row.seenAt+1))
	return err
}

// vanish marks what a complete list does not name any more. The admission
// stays: a tool that comes back as it was admitted is still admitted.
func (u *listingUpdate) vanish(ctx context.Context, tx *sql.Tx, gone map[string]toolRow) error {
	for _, row := range gone {
		if !row.present {
			continue
		}
		u.scan.Removed++
		u.decides = true
		if _, err := tx.ExecContext(ctx, `UPDATE tool SET present = $2 WHERE id = $1`, row.id, false); err != nil {
			return err
		}
	}
	return nil
}

func (u *listingUpdate) server(ctx context.Context, tx *sql.Tx, serverID, scanID, scanError string) error {
	if scanError != u.scan.Error || u.complete && scanID == "" {
		u.decides = true
	}
	fresh := u.scan.New > 0 || u.scan.Changed > 0
	if !u.complete && (scanID == "" || !fresh) {
		u.scan.ID = scanID
		_, err := tx.ExecContext(ctx, `UPDATE server SET scan_error = $2 WHERE id = $1`, serverID, u.scan.Error)
		return err
	}
	u.scan.ID = db.NewID()
	_, err := tx.ExecContext(ctx, `UPDATE server SET scan_id = $2, scan_at = $3, scan_error = $4 WHERE id = $1`, serverID, u.scan.ID, u.now, u.scan.Error)
	return err
}
