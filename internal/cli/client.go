package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"doorward.dev/doorward/internal/config"
	"doorward.dev/doorward/internal/fault"
)

// maxAnswer bounds an answer of the server, in bytes.
const maxAnswer = 64 << 20

// key reads the caller's key. It never comes from the command line, which other users can see.
func key() (string, error) {
	k, file := os.Getenv("DOORWARD_KEY"), os.Getenv("DOORWARD_KEY_FILE")
	if k != "" && file != "" {
		return "", fault.New(fault.Config, "DOORWARD_KEY and DOORWARD_KEY_FILE are both set; keep one of them")
	}
	if file == "" {
		return k, nil
	}
	k, err := config.ReadSecret(file)
	if err != nil {
		return "", fault.New(fault.Config, "DOORWARD_KEY_FILE: %v", err)
	}
	return k, nil
}

// call makes one REST request and decodes the answer into out, which may be nil. With --json the answer is printed as it came.
func (e *env) call(method, path string, in, out any) error {
	raw, err := e.fetch(method, path, in)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fault.Wrap(fault.UpstreamError, err, "the answer of %s is not understood; is it a Doorward of this version?", e.url)
	}
	return nil
}

func (e *env) fetch(method, path string, in any) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(e.ctx, 5*time.Minute)
	defer cancel()
	limited := *e
	limited.ctx = ctx
	res, err := limited.send(method, path, in, nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, fault.Wrap(fault.Unreachable, err, "the answer of %s broke off", e.url)
	}
	if res.StatusCode >= 300 {
		return nil, refusal(res.StatusCode, b)
	}
	return b, nil
}

// seen makes the next change depend on the thing being as it was read.
func (e *env) seen(etag string) *env {
	limited := *e
	limited.match = etag
	return &limited
}

// stream opens an answer of any length; the caller closes it.
func (e *env) stream(path string) (io.ReadCloser, error) {
	res, err := e.send(http.MethodGet, path, nil, nil)
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= 300 {
		defer res.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
		return nil, refusal(res.StatusCode, b)
	}
	return res.Body, nil
}

// send makes one request with the caller's key.
func (e *env) send(method, path string, in any, header map[string]string) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fault.Wrap(fault.Internal, err, "the request cannot be written")
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(e.ctx, method, e.url+path, body)
	if err != nil {
		return nil, fault.New(fault.Config, "%s is not a URL", e.url)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, v := range header {
		req.Header.Set(name, v)
	}
	if e.match != "" {
		req.Header.Set("If-Match", e.match)
	}
	k, err := key()
	if err != nil {
		return nil, err
	}
	if k != "" {
		req.Header.Set("Authorization", "Bearer "+k)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, fault.Wrap(fault.Unreachable, err, "%s cannot be reached", e.url).Why("NOT_REACHABLE")
	}
	return res, nil
}

// statusClasses give the exit code of an answer that is an error.
var statusClasses = map[int]fault.Class{
	400: fault.InvalidParams, 401: fault.Unauthenticated, 403: fault.Forbidden, 404: fault.NotFound, 409: fault.Conflict, 412: fault.Precondition,
	413: fault.TooLarge, 429: fault.TooMany, 422: fault.InvalidParams, 502: fault.UpstreamError, 503: fault.Unavailable, 504: fault.Timeout,
}

func refusal(status int, body []byte) error {
	class, ok := statusClasses[status]
	if !ok {
		class = fault.Internal
	}
	var in struct {
		Error struct{ Code, Message string }
	}
	if json.Unmarshal(body, &in) != nil || in.Error.Message == "" {
		return fault.New(class, "the server answered with HTTP status %d", status)
	}
	return fault.New(class, "%s", in.Error.Message).Why(in.Error.Code)
}

// ask is call for the commands that show what they get: with --json the bytes, else what show prints.
func ask[T any](e *env, method, path string, in any, show func(T)) error {
	raw, err := e.fetch(method, path, in)
	if err != nil {
		return err
	}
	if e.json {
		_, err := fmt.Fprintf(e.stdout, "%s\n", raw)
		return err
	}
	var out T
	if err := json.Unmarshal(raw, &out); err != nil {
		return fault.Wrap(fault.UpstreamError, err, "the answer of %s is not understood; is it a Doorward of this version?", e.url)
	}
	show(out)
	return nil
}

// table prints rows in columns; the first one is the heading.
func (e *env) table(rows [][]string) {
	if len(rows) <= 1 {
		e.print("none")
		return
	}
	e.columns(rows)
}

// columns prints rows without a heading.
func (e *env) columns(rows [][]string) {
	w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = strings.TrimSpace(clean(cell))
		}
		fmt.Fprintln(w, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	w.Flush()
}

// clean makes text that comes from servers harmless for a terminal: no control or direction characters.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return r
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r), unicode.Is(unicode.Co, r), r == '\u2028', r == '\u2029':
			return '\uFFFD'
		}
		return r
	}, s)
}

// oneLine is clean text of at most n characters without line ends.
func oneLine(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > n {
		s = string(r[:n-1]) + "…"
	}
	return s
}

// moment shows unix microseconds.
func moment(us int64) string {
	if us == 0 {
		return ""
	}
	return time.UnixMicro(us).Format(time.DateTime)
}

// value reads an option value that may be a secret: @FILE is the content of a file, ${NAME} the environment of
// this process where it has the name, and otherwise left for the server to resolve.
func value(v string) (text string, literal bool, err error) {
	if path, ok := strings.CutPrefix(v, "@"); ok {
		text, err = config.ReadSecret(path)
		if err != nil {
			return "", false, fault.New(fault.Config, "%v", err)
		}
		return text, false, nil
	}
	if !strings.Contains(v, "${") {
		return v, true, nil
	}
	return os.Expand(escapeDollar(v), func(name string) string {
		base, _, _ := strings.Cut(name, ":-")
		if name == "$" {
			return "$"
		}
		if got, ok := os.LookupEnv(base); ok && !strings.HasPrefix(base, "DOORWARD_") {
			return got
		}
		return "${" + name + "}"
	}), false, nil
}

// escapeDollar keeps every $ that does not begin ${…}, which os.Expand would take for a name.
func escapeDollar(v string) string {
	var b strings.Builder
	for i := range len(v) {
		b.WriteByte(v[i])
		if v[i] == '$' && (i+1 == len(v) || v[i+1] != '{') {
			b.WriteString("{$}")
		}
	}
	return b.String()
}
