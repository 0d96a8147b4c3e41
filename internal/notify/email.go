package notify

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/mail"
	"net/smtp"
	"strings"
	"time"

	"doorward.dev/doorward/internal/fault"
)

// Email sends an event as a plain text mail to one address.
type Email struct {
	Server   string // host:port; port 465 speaks TLS from the start
	StartTLS bool   // refuse a server that does not offer it
	Username string // empty: no sign-in
	Password string
	From, To string
	TLS      *tls.Config // nil: the certificates of the system
}

// nameLimit bounds names that servers and agents gave themselves, in a mail (bytes).
const nameLimit = 120

// Send sends the event once.
func (m Email) Send(ctx context.Context, body []byte) error {
	message, err := m.message(body)
	if err != nil {
		return err
	}
	c, err := m.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	from, to := bare(m.From), bare(m.To)
	refused := func(err error) error {
		return fault.Wrap(fault.UpstreamError, err, "the mail server refused the message")
	}
	if err := c.Mail(from); err != nil {
		return refused(err)
	}
	if err := c.Rcpt(to); err != nil {
		return refused(err)
	}
	w, err := c.Data()
	if err != nil {
		return refused(err)
	}
	if _, err := w.Write(message); err != nil {
		return refused(err)
	}
	if err := w.Close(); err != nil {
		return refused(err)
	}
	c.Quit() //nolint:errcheck // the server has taken the message
	return nil
}

// connect opens a connection that may carry mail: encrypted and signed in where that is configured.
func (m Email) connect(ctx context.Context) (*smtp.Client, error) {
	host, port, err := net.SplitHostPort(m.Server)
	if err != nil {
		return nil, fault.New(fault.Config, "the mail server must be given as host:port")
	}
	unreachable := func(err error) error { return fault.Wrap(fault.Unreachable, err, "the mail server cannot be reached") }
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.Server)
	if err != nil {
		return nil, unreachable(err)
	}
	if deadline, ok := ctx.Deadline(); ok {
		conn.SetDeadline(deadline) //nolint:errcheck // a connection without it fails later
	}
	context.AfterFunc(ctx, func() { conn.Close() }) // every attempt has a context of its own
	secure := &tls.Config{}
	if m.TLS != nil {
		secure = m.TLS.Clone()
	}
	secure.ServerName, secure.MinVersion = host, tls.VersionTLS12
	implicit := port == "465"
	if implicit {
		conn = tls.Client(conn, secure)
	}
	c, err := smtp.NewClient(conn, host)
	if err != nil {
		conn.Close()
		return nil, unreachable(err)
	}
	if err := m.signIn(c, host, secure, implicit); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (m Email) signIn(c *smtp.Client, host string, secure *tls.Config, implicit bool) error {
	if m.StartTLS && !implicit {
		if offered, _ := c.Extension("STARTTLS"); !offered {
			return fault.New(fault.Config, "the mail server does not offer STARTTLS")
		}
		if err := c.StartTLS(secure); err != nil {
			return fault.Wrap(fault.Unreachable, err, "the mail server does not speak TLS")
		}
	}
	if m.Username == "" {
		return nil
	}
	// PlainAuth itself refuses to send the password over a line that is neither encrypted nor local.
	if err := c.Auth(smtp.PlainAuth("", m.Username, m.Password, host)); err != nil {
		return fault.Wrap(fault.UpstreamError, err, "the mail server did not accept the sign-in")
	}
	return nil
}

// bare is the address in "Name <address>".
func bare(address string) string {
	if a, err := mail.ParseAddress(address); err == nil {
		return a.Address
	}
	return address
}

// subjects say what happened; the text says it in a sentence.
var subjects = map[string][2]string{
	Created:   {"approval needed", "A call waits for the decision of a person."},
	Escalated: {"approval still needed", "A call has waited for a decision for long; it needs somebody with the role %s or higher."},
	Expired:   {"approval ended", "Nobody decided about a call in time, or its approval was withdrawn. It does not run."},
	Decided:   {"approval decided", "A person decided about a call."},
}

// message writes the mail. Names come from servers and agents and are hostile: each becomes one line of visible
// characters, and a header is encoded, so that none can begin another header or a part.
func (m Email) message(body []byte) ([]byte, error) {
	var e Event
	var a struct {
		ID, Status, Reason string
		Agent              string `json:"agent_id"`
		AgentName          string `json:"agent_name"`
		Person             string `json:"person_id"`
		Server             string `json:"server_name"`
		Tool               string `json:"tool_name"`
		CreatedAt          int64  `json:"created_at"`
		ExpiresAt          int64  `json:"expires_at"`
		DecidedBy          string `json:"decided_by_name"`
		DecideReason       string `json:"decide_reason"`
	}
	if err := json.Unmarshal(body, &e); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "a stored notification cannot be read")
	}
	if err := json.Unmarshal(e.Approval, &a); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "a stored notification cannot be read")
	}
	words, ok := subjects[e.Kind]
	if !ok {
		words = [2]string{e.Kind, "Something happened to an approval."}
	}
	tool := oneLine(a.Server, nameLimit) + "/" + oneLine(a.Tool, nameLimit)
	var text strings.Builder
	sentence := words[1]
	if e.Kind == Escalated {
		sentence = fmt.Sprintf(sentence, e.Role)
	}
	text.WriteString(sentence + "\n\n")
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&text, "%-10s %s\n", name+":", oneLine(value, 500))
		}
	}
	line("Tool", tool)
	line("Agent", firstOf(a.AgentName, a.Agent))
	line("Person", a.Person)
	line("Why", a.Reason)
	line("Approval", a.ID)
	line("Status", a.Status)
	line("Asked", moment(a.CreatedAt))
	line("Ends", moment(a.ExpiresAt))
	line("Decided by", a.DecidedBy)
	line("Reason", a.DecideReason)
	if a.Status == "PENDING" {
		text.WriteString("\nDecide with: doorward approvals approve " + oneLine(a.ID, nameLimit) + "   (or: deny)\n")
	}
	if e.URL != "" {
		text.WriteString("\n" + oneLine(e.URL, 500) + "\n")
	}
	return m.render(e, words[0]+": "+tool, text.String())
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func moment(us int64) string {
	if us == 0 {
		return ""
	}
	return time.UnixMicro(us).UTC().Format(time.RFC3339)
}

// render writes headers and body as they go over the wire.
func (m Email) render(e Event, subject, text string) ([]byte, error) {
	from, err := mail.ParseAddress(m.From)
	if err != nil {
		return nil, fault.New(fault.Config, "the sender of mails is not an address")
	}
	to, err := mail.ParseAddress(m.To)
	if err != nil {
		return nil, fault.New(fault.Config, "the receiver of mails is not an address")
	}
	_, domain, _ := strings.Cut(from.Address, "@")
	var b bytes.Buffer
	header := func(name, value string) { b.WriteString(name + ": " + value + "\r\n") }
	header("From", from.String())
	header("To", to.String())
	header("Subject", mime.QEncoding.Encode("utf-8", "[doorward] "+oneLine(subject, 200)))
	header("Date", time.UnixMicro(e.CreatedAt).UTC().Format(time.RFC1123Z))
	header("Message-ID", "<"+e.ID+"@"+domain+">") // the same in every attempt: mail programs show it once
	header("Auto-Submitted", "auto-generated")
	header("MIME-Version", "1.0")
	header("Content-Type", "text/plain; charset=utf-8")
	header("Content-Transfer-Encoding", "quoted-printable")
	b.WriteString("\r\n")
	w := quotedprintable.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "a mail cannot be written")
	}
	if err := w.Close(); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "a mail cannot be written")
	}
	return b.Bytes(), nil
}
