package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/webhook"
)

// Anchor is a place outside of the database that keeps checkpoints. It gets each at least once, and never an older one after
// a newer one came through. The reference says where to find it there.
type Anchor interface {
	Name() string // one word, as it stands in audit_anchor
	Anchor(ctx context.Context, c Checkpoint) (reference string, err error)
}

// FileAnchor adds each checkpoint as a line of JSON to a file, which belongs on another disk, or on storage that
// cannot be overwritten.
type FileAnchor struct{ Path string }

// Name is "file".
func (FileAnchor) Name() string { return "file" }

// Anchor adds a line and returns when it is on the disk.
func (a FileAnchor) Anchor(_ context.Context, c Checkpoint) (string, error) {
	line, err := json.Marshal(c)
	if err != nil {
		return "", fault.Wrap(fault.Internal, err, "a checkpoint cannot be written")
	}
	f, err := os.OpenFile(a.Path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return "", fault.Wrap(fault.Unavailable, err, "the anchor file cannot be opened")
	}
	defer f.Close()
	at, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = f.Write(append(line, '\n')) // one write, so that replicas do not mix their lines
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return "", fault.Wrap(fault.Unavailable, err, "the anchor file cannot be written")
	}
	return a.Path + "#" + strconv.FormatInt(at, 10), nil
}

// WebhookAnchor posts each checkpoint as JSON. An answer 2xx took it; {"reference": "…"} in it is kept.
type WebhookAnchor struct{ webhook.Hook }

// Name is "webhook".
func (WebhookAnchor) Name() string { return "webhook" }

// Anchor posts c once.
func (a WebhookAnchor) Anchor(ctx context.Context, c Checkpoint) (string, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return "", fault.Wrap(fault.Internal, err, "a checkpoint cannot be written")
	}
	status, answer, err := a.Post(ctx, body)
	if err != nil {
		return "", err
	}
	var out struct {
		Reference string `json:"reference"`
	}
	if json.Unmarshal(answer, &out) != nil || out.Reference == "" {
		return fmt.Sprintf("HTTP %d", status), nil
	}
	return out.Reference, nil
}
