package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/fault"
)

type replayCmd struct {
	What string `arg:"" help:"A trace id, a task id, or a range of row numbers such as 120..180."`
	Mode string `help:"show: print the calls for people. recorded: one line of JSON a call with its recorded result, for an agent loop. live: make the calls anew through the door, with the key of DOORWARD_KEY." enum:"show,recorded,live" default:"show"`
}

// replayed is a recorded call, and with live what it gave now.
type replayed struct {
	Seq       int64           `json:"seq"`
	TraceID   string          `json:"trace_id"`
	Name      string          `json:"name"` // server/tool
	Arguments json.RawMessage `json:"arguments"`
	Status    string          `json:"status"`
	Decision  string          `json:"decision,omitempty"`
	Reason    string          `json:"reason,omitempty"`
	Result    json.RawMessage `json:"result"`            // null where none was recorded whole
	Partial   string          `json:"partial,omitempty"` // why arguments or result are not those that passed
	Live      *liveAnswer     `json:"live,omitempty"`
}

// liveAnswer is what a call that was made anew gave.
type liveAnswer struct {
	HTTP   int             `json:"http_status"`
	Answer json.RawMessage `json:"answer,omitempty"` // as the door gave it
	Same   bool            `json:"same_result"`
	Error  string          `json:"error,omitempty"` // it was not made
}

var rowRange = regexp.MustCompile(`^(\d{1,18})\.\.(\d{1,18})$`)

// Run prints or repeats the calls in the order of the record. It exits with 1 when a live call could not be made.
func (c *replayCmd) Run(e *env) error {
	q := url.Values{"kind": {string(audit.Call)}, "method": {"tools/call"}}
	if m := rowRange.FindStringSubmatch(c.What); m != nil {
		var from, to int64
		fmt.Sscan(m[1], &from) //nolint:errcheck // digits
		fmt.Sscan(m[2], &to)   //nolint:errcheck
		if from < 1 || to < from {
			return fault.New(fault.InvalidParams, "a range is FROM..TO, with FROM at least 1")
		}
		q.Set("before", fmt.Sprint(to+1))
		if from > 1 {
			q.Set("after", fmt.Sprint(from-1))
		}
	} else if strings.HasPrefix(c.What, "trc_") {
		q.Set("trace_id", c.What)
	} else {
		q.Set("task_id", c.What)
	}
	body, err := e.stream(auditPath + "/export?" + q.Encode())
	if err != nil {
		return err
	}
	defer body.Close()
	rows, failed := 0, 0
	for dec := json.NewDecoder(body); ; rows++ {
		var row audit.Event
		if err := dec.Decode(&row); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fault.Wrap(fault.Unreachable, err, "the answer of %s broke off", e.url)
		}
		call := recorded(&row)
		if c.Mode == "live" {
			call.Live = e.again(&call)
			if call.Live.Error != "" {
				failed++
			}
		}
		if err := e.showReplayed(&call, c.Mode == "recorded" || e.json); err != nil {
			return err
		}
	}
	switch {
	case rows == 0:
		return fault.New(fault.NotFound, "the record has no calls of %s", c.What)
	case failed > 0:
		return exitCode(1)
	}
	return nil
}

// recorded takes from a row what a call is made of. Bodies are used only as far as they are what passed: the record
// keeps large ones in part and blanks secrets, and its digest tells.
func recorded(row *audit.Event) replayed {
	call := replayed{
		Seq: row.Seq, TraceID: row.TraceID, Name: row.Tool, Arguments: json.RawMessage("null"), Result: json.RawMessage("null"),
		Status: string(row.Status), Decision: row.Decision, Reason: row.Reason,
	}
	if row.Server != "" {
		call.Name = row.Server + "/" + row.Tool
	}
	var partial []string
	for _, b := range []struct {
		what, body, digest string
		to                 *json.RawMessage
	}{{"arguments", row.ArgsBody, row.ArgsDigest, &call.Arguments}, {"result", row.ResultBody, row.ResultDigest, &call.Result}} {
		if b.digest == "" {
			continue
		}
		if sum := sha256.Sum256([]byte(b.body)); hex.EncodeToString(sum[:]) != b.digest {
			partial = append(partial, b.what)
		}
		if json.Valid([]byte(b.body)) {
			*b.to = json.RawMessage(b.body)
		}
	}
	if len(partial) > 0 {
		call.Partial = strings.Join(partial, " and ") + " were not kept as they passed: too large, or with a secret blanked"
	}
	return call
}

// again makes the call anew. It passes the gate like any other call of this key.
func (e *env) again(call *replayed) *liveAnswer {
	if strings.HasPrefix(call.Partial, "arguments") {
		return &liveAnswer{Error: "not made: its arguments were not kept as they passed"}
	}
	in := map[string]any{"name": call.Name}
	if string(call.Arguments) != "null" {
		in["arguments"] = call.Arguments
	}
	res, err := e.send(http.MethodPost, "/tools/call", in, map[string]string{"Doorward-Replay-Of": call.TraceID})
	if err != nil {
		return &liveAnswer{Error: fault.From(err).Message}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return &liveAnswer{HTTP: res.StatusCode, Error: "the answer broke off; the call may have run"}
	}
	out := &liveAnswer{HTTP: res.StatusCode}
	if json.Valid(b) {
		out.Answer = b
	}
	var got struct {
		Result json.RawMessage `json:"result"`
	}
	out.Same = json.Unmarshal(b, &got) == nil && got.Result != nil && bytes.Equal(got.Result, call.Result)
	return out
}

func (e *env) showReplayed(call *replayed, lines bool) error {
	if lines {
		j := json.NewEncoder(e.stdout)
		j.SetEscapeHTML(false)
		return j.Encode(call)
	}
	fmt.Fprintf(e.stdout, "%d  %s  %s  %s\n", call.Seq, clean(call.TraceID), clean(call.Name), clean(call.Status))
	for _, line := range []struct{ name, text string }{
		{"arguments", string(call.Arguments)}, {"result", string(call.Result)}, {"reason", call.Reason}, {"partial", call.Partial},
	} {
		if line.text != "" && line.text != "null" {
			fmt.Fprintf(e.stdout, "    %-9s  %s\n", line.name, oneLine(clean(line.text), 2000))
		}
	}
	if l := call.Live; l != nil {
		text := fmt.Sprintf("HTTP %d, same result: %t  %s", l.HTTP, l.Same, l.Answer)
		if l.Error != "" {
			text = l.Error
		}
		fmt.Fprintf(e.stdout, "    %-9s  %s\n", "live", oneLine(clean(text), 2000))
	}
	return nil
}
