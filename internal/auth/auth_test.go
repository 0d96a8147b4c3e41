package auth_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/policy"
	"doorward.dev/doorward/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a bootstrapped database with a clock that the test moves.
type world struct {
	*auth.Auth
	t            *testing.T
	db           *db.DB
	now          time.Time
	admin, agent string
	ws           string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, now: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)}
	var err error
	url := "" // SQLite
	if strings.HasPrefix(t.Name(), "TestOnPostgres/") {
		url = testkit.PostgresURL(t)
	}
	if w.db, err = db.Open(t.Context(), url, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.db.Close() })
	if w.Auth, err = auth.New(t.Context(), w.db, func() time.Time { return w.now }); err != nil {
		t.Fatal(err)
	}
	created, admin, agent, err := w.Bootstrap(t.Context(), "", "")
	if err != nil || !created {
		t.Fatal(created, err)
	}
	w.admin, w.agent = admin, agent
	w.ws = w.caller(admin).WorkspaceID
	return w
}

func (w *world) caller(key string) *auth.Caller {
	w.t.Helper()
	c, err := w.Authenticate(key)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// exec changes the database behind the program's back, then reloads.
func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Write.ExecContext(w.t.Context(), query, args...); err != nil {
		w.t.Fatal(err)
	}
	if err := w.Reload(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func patterns(t *testing.T, texts ...string) []auth.Pattern {
	t.Helper()
	var list []auth.Pattern
	for _, s := range texts {
		p, err := auth.ParsePattern(s)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	return list
}

func wantReason(t *testing.T, err error, reason string) {
	t.Helper()
	if f := fault.From(err); f == nil || f.Class != fault.Unauthenticated || f.Reason != reason {
		t.Errorf("got %v, want %s", err, reason)
	}
}

func TestBootstrap(t *testing.T) {
	w := newWorld(t)
	if !strings.HasPrefix(w.admin, "dw_") || !strings.HasPrefix(w.agent, "agent_") || len(w.agent) != len("agent_")+43 {
		t.Errorf("keys %q, %q", w.admin, w.agent)
	}
	owner, agent := w.caller(w.admin), w.caller(w.agent)
	if owner.Role != auth.Owner || owner.PersonID == "" || owner.AgentID != "" || !owner.Granted("any", "tool", policy.TierOps) {
		t.Errorf("owner is %+v", owner)
	}
	if agent.Agent == nil || agent.Agent.Name != "default" || agent.Agent.State != auth.StateActive || agent.PersonID != "" || !agent.Granted("any", "tool", policy.TierOps) {
		t.Errorf("agent is %+v", agent)
	}
	if created, admin, key, err := w.Bootstrap(t.Context(), "", ""); created || admin != "" || key != "" || err != nil {
		t.Errorf("a second start created %v %v", created, err)
	}
	var stored int
	if err := w.db.Read.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM api_key WHERE hash LIKE '%'||$1||'%' OR prefix LIKE '%'||$1||'%' OR name LIKE '%'||$1||'%'`, w.agent).Scan(&stored); err != nil || stored != 0 {
		t.Errorf("the key is stored in the clear: %d %v", stored, err)
	}
}

func TestBootstrapWithGivenKeys(t *testing.T) {
	good, other := strings.Repeat("k", 24), strings.Repeat("m", 24)
	for _, c := range []struct {
		name, admin, agent string
		ok                 bool
	}{
		{"both", good, other, true},
		{"one", "", other, true},
		{"short admin key", good[1:], other, false},
		{"short agent key", good, "short", false},
		{"the same", good, good, false},
		{"a space", good + " x", other, false},
		{"a line break", good + "\n", other, false},
		{"not ASCII", good + "ü", other, false},
		{"too long", strings.Repeat("k", 257), other, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := db.Open(t.Context(), "", t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			a, err := auth.New(t.Context(), d, time.Now)
			if err != nil {
				t.Fatal(err)
			}
			created, admin, agent, err := a.Bootstrap(t.Context(), c.admin, c.agent)
			if !c.ok {
				if !fault.Is(err, fault.Config) || created {
					t.Errorf("got %v, %v", created, err)
				}
				return
			}
			if err != nil || agent != c.agent || (c.admin != "" && admin != c.admin) {
				t.Fatal(admin, agent, err)
			}
			for _, key := range []string{admin, agent} {
				if _, err := a.Authenticate(key); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestAuthenticateRefusals(t *testing.T) {
	w := newWorld(t)
	key, info, err := w.CreateKey(t.Context(), w.ws, w.caller(w.agent).AgentID, "", "ci", w.now.Add(time.Hour).UnixMicro())
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Authenticate("")
	wantReason(t, err, "MISSING_API_KEY")
	for _, bad := range []string{"x", w.agent + "x", w.agent[:len(w.agent)-1], " " + w.agent, strings.ToUpper(w.agent), strings.Repeat("x", 100_000)} {
		_, err = w.Authenticate(bad)
		wantReason(t, err, "INVALID_API_KEY")
	}
	w.caller(key)
	w.now = w.now.Add(time.Hour - time.Microsecond)
	w.caller(key)
	w.now = w.now.Add(time.Microsecond)
	_, err = w.Authenticate(key)
	wantReason(t, err, "EXPIRED_API_KEY")
	if err := w.RevokeKey(t.Context(), w.ws, info.ID); err != nil {
		t.Fatal(err)
	}
	_, err = w.Authenticate(key)
	wantReason(t, err, "INVALID_API_KEY")
	if err := w.RevokeKey(t.Context(), w.ws, info.ID); err != nil {
		t.Errorf("revoking twice: %v", err)
	}
	if err := w.RevokeKey(t.Context(), "other", info.ID); !fault.Is(err, fault.NotFound) {
		t.Errorf("revoking from another workspace: %v", err)
	}
	keys, err := w.Keys(t.Context(), w.ws)
	if err != nil || len(keys) != 3 || keys[2].RevokedAt == 0 || keys[2].Prefix != key[:12] || keys[2].Name != "ci" {
		t.Errorf("keys are %+v, %v", keys, err)
	}
}

func TestCreateKeyRefusals(t *testing.T) {
	w := newWorld(t)
	agent, owner := w.caller(w.agent).AgentID, w.caller(w.admin).PersonID
	done, err := w.CreateAgent(t.Context(), w.ws, auth.Agent{Name: "done"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.SetAgentState(t.Context(), w.ws, done.ID, auth.StateRejected); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, ws, agent, person string
		expires                 int64
		class                   fault.Class
	}{
		{"neither", w.ws, "", "", 0, fault.InvalidParams},
		{"both", w.ws, agent, owner, 0, fault.InvalidParams},
		{"expired", w.ws, agent, "", w.now.UnixMicro(), fault.InvalidParams},
		{"no such agent", w.ws, "nobody", "", 0, fault.NotFound},
		{"no such person", w.ws, "", "nobody", 0, fault.NotFound},
		{"agent of another workspace", "other", agent, "", 0, fault.NotFound},
		{"person of another workspace", "other", "", owner, 0, fault.NotFound},
		{"rejected agent", w.ws, done.ID, "", 0, fault.Conflict},
	} {
		if key, _, err := w.CreateKey(t.Context(), c.ws, c.agent, c.person, "", c.expires); !fault.Is(err, c.class) || key != "" {
			t.Errorf("%s: %q, %v", c.name, key, err)
		}
	}
}

// A key whose agent or person is gone must never be worth more (case 7).
func TestDanglingReferencesDeny(t *testing.T) {
	w := newWorld(t)
	gone := w.caller(w.agent).AgentID
	w.exec(`DELETE FROM agent WHERE id = $1`, gone)
	c := w.caller(w.agent)
	if c.AgentID != gone || c.Agent != nil || c.Granted("any", "tool", policy.TierOps) || c.Role != auth.NoRole {
		t.Errorf("the key of a deleted agent gives %+v", c)
	}
	w.exec(`DELETE FROM person`)
	_, err := w.Authenticate(w.admin)
	wantReason(t, err, "INVALID_API_KEY")
}

func TestBrokenRowsGrantNothing(t *testing.T) {
	for _, c := range []struct{ name, query string }{
		{"agent and person", `UPDATE api_key SET person_id = (SELECT id FROM person), agent_id = (SELECT id FROM agent)`},
		{"neither", `UPDATE api_key SET person_id = NULL, agent_id = ''`},
		{"short digest", `UPDATE api_key SET hash = SUBSTR(hash, 1, 62)`},
		{"long digest", `UPDATE api_key SET hash = hash || '00'`},
		{"not a digest", `UPDATE api_key SET hash = 'zz' || SUBSTR(hash, 3)`},
	} {
		w := newWorld(t)
		w.exec(c.query)
		for _, key := range []string{w.admin, w.agent} {
			if _, err := w.Authenticate(key); !fault.Is(err, fault.Unauthenticated) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
	for _, list := range []string{``, `[]`, `null`, `{}`, `["*"`, `"*"`, `[1]`, `["a*", "", " *", "*/x", "no good/x", "s/"]`} {
		w := newWorld(t)
		w.exec(`UPDATE agent SET allowlist = $1`, list)
		if c := w.caller(w.agent); c.Granted("s", "x", policy.TierOps) {
			t.Errorf("stored allowlist %q grants", list)
		}
	}
	for _, model := range []string{``, `[]`, `{"read":1}`, `{"read":"ALLOW"`} {
		w := newWorld(t)
		w.exec(`UPDATE agent SET capability = $1`, model)
		c := w.caller(w.agent)
		if word := c.Agent.Capability["read"]; c.Granted("s", "x", policy.TierOps) || word == "" || word == "ALLOW" {
			t.Errorf("stored capability %q gives %q", model, word)
		}
	}
	w := newWorld(t)
	w.exec(`UPDATE agent SET capability = '{"read":"PERHAPS"}'`)
	if got := w.caller(w.agent).Agent.Capability["read"]; got != "PERHAPS" {
		t.Errorf("an unknown stored word became %q; it must stay and block", got)
	}
	w.exec(`UPDATE person SET role = 'emperor'`)
	if c := w.caller(w.admin); c.Role != auth.NoRole || c.Granted("s", "x", policy.TierOps) {
		t.Errorf("an unknown role gives %v", c.Role)
	}
}

func TestKeyOfAnotherWorkspaceReachesNoAgent(t *testing.T) {
	w := newWorld(t)
	w.exec(`INSERT INTO workspace (id, slug, name, created_at) VALUES ('w2', 'two', 'Two', 1)`)
	w.exec(`UPDATE api_key SET workspace_id = 'w2'`)
	if c := w.caller(w.agent); c.Agent != nil || c.Granted("s", "x", policy.TierOps) {
		t.Errorf("got %+v", c)
	}
	_, err := w.Authenticate(w.admin)
	wantReason(t, err, "INVALID_API_KEY")
}

func TestStopAndRelease(t *testing.T) {
	w := newWorld(t)
	id := w.caller(w.agent).AgentID
	stop := func(ws, id string) (changed bool, err error) {
		err = w.db.TxChange(t.Context(), func(tx *sql.Tx) (err error) {
			changed, err = auth.StopAgentTx(t.Context(), tx, ws, id, "looked wrong", w.now.UnixMicro())
			return err
		})
		if err == nil {
			err = w.Reload(t.Context())
		}
		return changed, err
	}
	if _, err := stop("other", id); !fault.Is(err, fault.NotFound) {
		t.Errorf("from another workspace: %v", err)
	}
	if changed, err := stop(w.ws, id); !changed || err != nil {
		t.Fatal(changed, err)
	}
	first := w.caller(w.agent).Agent
	if first.StoppedAt != w.now.UnixMicro() || first.StopReason != "looked wrong" || first.State != auth.StateActive {
		t.Errorf("stopped agent is %+v", first)
	}
	w.now = w.now.Add(time.Minute)
	if changed, err := stop(w.ws, id); changed || err != nil {
		t.Errorf("a second stop: %v, %v", changed, err)
	}
	if got := w.caller(w.agent).Agent.StoppedAt; got != first.StoppedAt {
		t.Error("the second stop moved the time of the first")
	}
	g, err := w.ReleaseAgent(t.Context(), w.ws, id)
	if err != nil || g.StoppedAt != 0 || g.StopReason != "" {
		t.Errorf("released: %+v, %v", g, err)
	}
	if _, err := w.ReleaseAgent(t.Context(), w.ws, id); !fault.Is(err, fault.Conflict) {
		t.Errorf("released twice: %v", err)
	}
}

func TestAnonymousAgent(t *testing.T) {
	w := newWorld(t)
	c, err := w.AnonymousAgent("default")
	if err != nil || c.Agent == nil || c.WorkspaceID != w.ws || c.KeyID != "" || c.Role != auth.NoRole {
		t.Errorf("got %+v, %v", c, err)
	}
	if _, err := w.AnonymousAgent("nobody"); !fault.Is(err, fault.Config) {
		t.Errorf("got %v", err)
	}
	w.exec(`INSERT INTO workspace (id, slug, name, created_at) VALUES ('w2', 'two', 'Two', 1)`)
	w.exec(`INSERT INTO agent (id, workspace_id, name, state, created_at) VALUES ('a2', 'w2', 'default', 'ACTIVE', 1)`)
	if _, err := w.AnonymousAgent("default"); !fault.Is(err, fault.Config) {
		t.Errorf("two of a name: %v", err)
	}
}

func TestAnotherProcessSeesAChange(t *testing.T) {
	w := newWorld(t)
	other, err := auth.New(t.Context(), w.db, func() time.Time { return w.now })
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	reloaded, ended := make(chan error, 100), make(chan error, 1)
	go func() {
		ended <- w.db.Watch(ctx, func(ctx context.Context) error { reloaded <- other.Reload(ctx); return nil })
	}()
	keys, err := w.Keys(t.Context(), w.ws)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if err := w.RevokeKey(t.Context(), w.ws, k.ID); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.After(10 * time.Second)
	for {
		if _, err := other.Authenticate(w.agent); err != nil {
			break
		}
		select {
		case err := <-reloaded:
			if err != nil {
				t.Fatal(err)
			}
		case <-deadline:
			t.Fatal("the revoked key still works")
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAuthenticateAllocatesNothing(t *testing.T) {
	w := newWorld(t)
	if n := testing.AllocsPerRun(100, func() { w.Authenticate(w.agent) }); n != 0 { //nolint:errcheck
		t.Errorf("%v allocations", n)
	}
	c := w.caller(w.agent)
	if n := testing.AllocsPerRun(100, func() { c.Granted("server", "tool", policy.TierOps) }); n != 0 {
		t.Errorf("Granted: %v allocations", n)
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	d, err := db.Open(b.Context(), "", b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	a, err := auth.New(b.Context(), d, time.Now)
	if err != nil {
		b.Fatal(err)
	}
	_, _, key, err := a.Bootstrap(b.Context(), "", "")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := a.Authenticate(key); err != nil {
				b.Error(err)
			}
		}
	})
}
