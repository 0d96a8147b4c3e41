package audit

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"doorward.dev/doorward/internal/fault"
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

// WebhookAnchor posts each checkpoint as JSON. The header Doorward-Signature is "t=<unix seconds>,v1=<hex HMAC-SHA256
// of t, a dot and the body>" with Secret. An answer 2xx took it; {"reference": "…"} in it is kept.
type WebhookAnchor struct {
	URL    string
	Secret []byte
	Now    func() time.Time
	Client *http.Client // nil: one that follows no redirects
}

// Name is "webhook".
func (WebhookAnchor) Name() string { return "webhook" }

// maxAnswer bounds what is read of a webhook's answer, in bytes.
const maxAnswer = 16 << 10

// Anchor posts c once.
func (a WebhookAnchor) Anchor(ctx context.Context, c Checkpoint) (string, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return "", fault.Wrap(fault.Internal, err, "a checkpoint cannot be written")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.URL, bytes.NewReader(body))
	if err != nil {
		return "", fault.New(fault.Config, "the URL of the anchor webhook is not valid")
	}
	now := time.Now
	if a.Now != nil {
		now = a.Now
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "doorward")
	req.Header.Set("Doorward-Signature", WebhookSignature(a.Secret, now(), body))
	client := a.Client
	if client == nil {
		client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	res, err := client.Do(req)
	if err != nil {
		return "", fault.Wrap(fault.Unreachable, err, "the anchor webhook cannot be reached")
	}
	defer res.Body.Close()
	answer, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return "", fault.New(fault.UpstreamError, "the anchor webhook answered with HTTP status %d", res.StatusCode)
	}
	var out struct {
		Reference string `json:"reference"`
	}
	if json.Unmarshal(answer, &out) != nil || out.Reference == "" {
		return fmt.Sprintf("HTTP %d", res.StatusCode), nil
	}
	return out.Reference, nil
}

// WebhookSignature is the value of the header Doorward-Signature.
func WebhookSignature(secret []byte, at time.Time, body []byte) string {
	t := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(t + "."))
	mac.Write(body)
	return "t=" + t + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}
