package notify_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/mail"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/notify"
)

// mailbox is a mail server that keeps what it takes.
type mailbox struct {
	addr string
	got  chan envelope

	mu     sync.Mutex
	refuse error
}

type envelope struct {
	from, to, text string
	signedIn       bool
}

func newMailbox(t *testing.T, tlsConfig *tls.Config) *mailbox {
	t.Helper()
	m := &mailbox{got: make(chan envelope, 10)}
	s := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return &letter{m: m}, nil }))
	s.Domain, s.AllowInsecureAuth, s.TLSConfig = "localhost", tlsConfig == nil, tlsConfig
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(l) //nolint:errcheck // it ends by Close
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	m.addr = l.Addr().String()
	return m
}

// letter is one session with the mailbox.
type letter struct {
	m *mailbox
	e envelope
}

func (l *letter) AuthMechanisms() []string { return []string{sasl.Plain} }
func (l *letter) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, name, password string) error {
		if name != "doorward" || password != "hunter2" {
			return errors.New("wrong password hunter2 for " + name)
		}
		l.e.signedIn = true
		return nil
	}), nil
}

func (l *letter) Mail(from string, _ *smtp.MailOptions) error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	l.e.from = from
	return l.m.refuse
}
func (l *letter) Rcpt(to string, _ *smtp.RcptOptions) error { l.e.to = to; return nil }
func (l *letter) Data(r io.Reader) error {
	b, err := io.ReadAll(r)
	l.e.text = string(b)
	l.m.got <- l.e
	return err
}
func (l *letter) Reset()        {}
func (l *letter) Logout() error { return nil }

// Names of servers, tools and agents are hostile: none of them may begin a header, a part, or hide what it says.
func TestEmail(t *testing.T) {
	d, err := db.Open(t.Context(), "", t.TempDir())
	ok(t, err)
	defer d.Close()
	c, box := newClock(), newMailbox(t, nil)
	m := notify.Email{Server: box.addr, Username: "doorward", Password: "hunter2", From: "Doorward <door@example.com>", To: "Ö <ada@example.com>"}
	q, _ := run(t, d, c, notify.Channel{Name: "email", Send: m.Send})
	approval, err := json.Marshal(map[string]any{
		"id": "ap-1", "status": "PENDING", "agent_name": "bot\r\nBcc: eve@example.com\r\n\r\n.\r\nMAIL FROM:<x>", "server_name": "notes\u2028\u202Eevil",
		"tool_name": strings.Repeat("löschen", 100), "reason": "the rule\nsays so\x00", "created_at": c.now().UnixMicro(), "expires_at": c.now().Add(time.Hour).UnixMicro(),
	})
	ok(t, err)
	e := notify.Event{Kind: notify.Escalated, ApprovalID: "ap-1", Role: "owner", URL: "https://door.example/api/v1/mcp/approvals/ap-1", Approval: approval, WorkspaceID: "w"}
	add(t, d, q, e)
	got := <-box.got
	if got.from != "door@example.com" || got.to != "ada@example.com" || !got.signedIn {
		t.Errorf("envelope %+v", got)
	}
	msg, err := mail.ReadMessage(strings.NewReader(got.text))
	ok(t, err)
	subject, err := new(mime.WordDecoder).DecodeHeader(msg.Header.Get("Subject"))
	ok(t, err)
	if !strings.HasPrefix(subject, "[doorward] approval still needed: notes evil/löschen") || len(subject) > 300 {
		t.Errorf("subject %q", subject)
	}
	want := []string{"From", "To", "Subject", "Date", "Message-Id", "Auto-Submitted", "Mime-Version", "Content-Type", "Content-Transfer-Encoding"}
	for _, name := range want {
		if len(msg.Header[name]) != 1 {
			t.Errorf("header %s: %q", name, msg.Header[name])
		}
	}
	if len(msg.Header) != len(want)+len(msg.Header["Received"]) {
		t.Errorf("headers %v", msg.Header)
	}
	raw, err := io.ReadAll(quotedprintable.NewReader(msg.Body))
	ok(t, err)
	body := string(raw)
	for _, part := range []string{
		"needs somebody with the role owner or higher", "Agent:     bot Bcc: eve@example.com . MAIL FROM:<x>\r\n", "Why:       the rule says so\r\n",
		"Ends:      2026-11-30T13:00:00Z\r\n", "doorward approvals approve ap-1", "\r\nhttps://door.example/api/v1/mcp/approvals/ap-1\r\n",
	} {
		if !strings.Contains(body, part) {
			t.Errorf("%q is missing in\n%s", part, body)
		}
	}
	if strings.ContainsAny(body, "\u2028\u202e\x00") {
		t.Errorf("hidden characters in %q", body)
	}
}

// A mail server that refuses is asked again; what it says is kept on one line and without secrets.
func TestEmailIsRetried(t *testing.T) {
	d, err := db.Open(t.Context(), "", t.TempDir())
	ok(t, err)
	defer d.Close()
	c, box := newClock(), newMailbox(t, nil)
	box.refuse = &smtp.SMTPError{Code: 451, EnhancedCode: smtp.EnhancedCode{4, 3, 0}, Message: "busy, hunter2"}
	q, _ := run(t, d, c, notify.Channel{Name: "email", Send: notify.Email{Server: box.addr, From: "door@example.com", To: "ada@example.com"}.Send})
	add(t, d, q, notify.Event{Kind: notify.Created, ApprovalID: "a"})
	m := until(t, d, "a", func(m notify.Message) bool { return m.Error != "" })
	if !strings.Contains(m.Error, "the mail server refused the message") || !strings.Contains(m.Error, "busy, [redacted]") {
		t.Errorf("%+v", m)
	}
	box.mu.Lock()
	box.refuse = nil
	box.mu.Unlock()
	c.add(5 * time.Second)
	q.Wake()
	if got := <-box.got; got.to != "ada@example.com" {
		t.Errorf("%+v", got)
	}
	until(t, d, "a", func(m notify.Message) bool { return m.Status == "SENT" && m.Attempts == 2 })
}

// Where STARTTLS is asked for, nothing goes over a line without it, and not to a server of another name.
func TestEmailOverTLS(t *testing.T) {
	cert, pool := certificate(t)
	secure, plain := newMailbox(t, &tls.Config{Certificates: []tls.Certificate{cert}}), newMailbox(t, nil)
	body := []byte(`{"id":"e","type":"approval.created","approval":{"id":"a"}}`)
	m := notify.Email{
		Server: secure.addr, StartTLS: true, Username: "doorward", Password: "hunter2", From: "door@example.com", To: "ada@example.com",
		TLS: &tls.Config{RootCAs: pool},
	}
	ok(t, m.Send(t.Context(), body))
	if got := <-secure.got; !got.signedIn {
		t.Error("not signed in")
	}
	m.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
	if err := m.Send(t.Context(), body); err == nil {
		t.Error("a server that nobody vouches for got a mail")
	}
	m.Server = plain.addr
	if err := m.Send(t.Context(), body); err == nil || !strings.Contains(err.Error(), "STARTTLS") {
		t.Errorf("without TLS: %v", err)
	}
	m.Server = "127.0.0.1:1"
	if err := m.Send(t.Context(), body); err == nil || !strings.Contains(err.Error(), "cannot be reached") {
		t.Errorf("nobody there: %v", err)
	}
}

func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	ok(t, err)
	parsed, err := x509.ParseCertificate(der)
	ok(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}
