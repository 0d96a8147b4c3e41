// Package webhook owns how Doorward posts a signed JSON body to an address that its operator configured. It
// knows nothing of what it posts, and tries once: who has something to say keeps it until it came through.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"doorward.dev/doorward/internal/fault"
)

// Hook is an address and the key of its signatures.
type Hook struct {
	URL    string
	Secret []byte
	Now    func() time.Time // nil: time.Now
	Client *http.Client     // nil: one that follows no redirects
}

// SignatureHeader of a post is "t=<unix seconds>,v1=<hex HMAC-SHA256 of t, a dot and the body>".
const SignatureHeader = "Doorward-Signature"

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 16 << 10

// plain follows no redirects: where they lead, nobody configured.
var plain = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// Post sends body once. Every status but 2xx is an error; the answer is cut at 16 KiB. Errors name neither address nor key.
func (h Hook) Post(ctx context.Context, body []byte) (status int, answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(body))
	if err != nil {
		return 0, nil, fault.New(fault.Config, "the URL of the webhook is not valid")
	}
	now, client := h.Now, h.Client
	if now == nil {
		now = time.Now
	}
	if client == nil {
		client = plain
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "doorward")
	req.Header.Set(SignatureHeader, Signature(h.Secret, now(), body))
	res, err := client.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // without the address, which may hold a key
		}
		return 0, nil, fault.Wrap(fault.Unreachable, err, "the webhook cannot be reached")
	}
	defer res.Body.Close()
	answer, _ = io.ReadAll(io.LimitReader(res.Body, maxAnswer)) //nolint:errcheck // the status says whether it was taken
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return res.StatusCode, answer, fault.New(fault.UpstreamError, "the webhook answered with HTTP status %d", res.StatusCode)
	}
	return res.StatusCode, answer, nil
}

// Signature is the value of the header Doorward-Signature.
func Signature(secret []byte, at time.Time, body []byte) string {
	t := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(t + "."))
	mac.Write(body)
	return "t=" + t + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}
