package auth_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
)

const password = "correct horse battery"

func (w *world) person(name string, role auth.Role) auth.Person {
	w.t.Helper()
	p, err := w.CreatePerson(w.t.Context(), w.ws, name, role)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.SetPassword(w.t.Context(), w.ws, p.ID, password); err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) signIn(name, password, address string) (auth.SignedIn, error) {
	return w.SignIn(w.t.Context(), "default", name, password, address)
}

func (w *world) mustSignIn(name string) auth.SignedIn {
	w.t.Helper()
	in, err := w.signIn(name, password, "192.0.2.1")
	if err != nil {
		w.t.Fatal(err)
	}
	return in
}

func (w *world) sessionWorks(cookie string) bool {
	_, _, err := w.AuthenticateSession(w.t.Context(), cookie)
	if err != nil {
		wantReason(w.t, err, "SESSION_INVALID")
	}
	return err == nil
}

func TestSignIn(t *testing.T) {
	w := newWorld(t)
	p := w.person("ada", auth.Admin)
	a, b := w.mustSignIn("ada"), w.mustSignIn("ada")
	if a.Cookie == b.Cookie || len(a.Cookie) != 43 || a.Session.ID == b.Session.ID || a.Person.ID != p.ID || a.WorkspaceID != w.ws {
		t.Errorf("sessions %+v, %+v", a, b)
	}
	c, s, err := w.AuthenticateSession(t.Context(), a.Cookie)
	if err != nil || c.PersonID != p.ID || c.Role != auth.Admin || c.KeyID != a.Session.ID || c.WorkspaceID != w.ws || s != a.Session {
		t.Fatalf("caller %+v, %v", c, err)
	}
	if _, err := w.Authenticate(a.Cookie); err == nil {
		t.Error("a cookie is taken for a key")
	}
	if w.sessionWorks(w.admin) || w.sessionWorks("") || w.sessionWorks(strings.Repeat("x", 10000)) {
		t.Error("what is no cookie is taken for one")
	}
	var stored int
	if err := w.db.Read.QueryRowContext(t.Context(), `SELECT (SELECT COUNT(*) FROM session WHERE hash LIKE '%'||$1||'%') + (SELECT COUNT(*) FROM person WHERE password LIKE '%'||$2||'%')`,
		a.Cookie, password).Scan(&stored); err != nil || stored != 0 {
		t.Errorf("secrets are stored in the clear: %d %v", stored, err)
	}
	if err := w.EndSession(t.Context(), a.Session.ID); err != nil {
		t.Fatal(err)
	}
	if w.sessionWorks(a.Cookie) || !w.sessionWorks(b.Cookie) {
		t.Error("not exactly one session ended")
	}
}

func TestSignInRefusals(t *testing.T) {
	w := newWorld(t)
	w.person("ada", auth.Admin)
	off := w.person("off", auth.Admin)
	yes := true
	if _, err := w.UpdatePerson(t.Context(), w.caller(w.admin), off.ID, auth.PersonChange{Disabled: &yes}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, workspace, user, password string }{
		{"wrong password", "default", "ada", password + "x"},
		{"no password", "default", "ada", ""},
		{"unknown person", "default", "bob", password},
		{"unknown workspace", "other", "ada", password},
		{"disabled", "default", "off", password},
		{"without a password", "default", "owner", ""},
		{"a long one", "default", "ada", strings.Repeat("x", 100_000)},
	} {
		in, err := w.SignIn(t.Context(), c.workspace, c.user, c.password, "192.0.2.1")
		if f := fault.From(err); f == nil || f.Class != fault.Unauthenticated || f.Reason != "INVALID_CREDENTIALS" || f.Message != "name or password is wrong" || in.Cookie != "" {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestSessionExpiry(t *testing.T) {
	w := newWorld(t)
	w.person("ada", auth.Admin)
	idle := w.mustSignIn("ada")
	w.now = w.now.Add(auth.SessionIdle - time.Second)
	if !w.sessionWorks(idle.Cookie) { // which prolongs it
		t.Fatal("ended too soon")
	}
	w.now = w.now.Add(auth.SessionIdle - time.Second)
	if !w.sessionWorks(idle.Cookie) {
		t.Fatal("use did not prolong it")
	}
	w.now = w.now.Add(auth.SessionIdle)
	if w.sessionWorks(idle.Cookie) {
		t.Error("an idle session lives")
	}
	used := w.mustSignIn("ada")
	for range 14 {
		w.now = w.now.Add(auth.SessionIdle - time.Second)
		w.sessionWorks(used.Cookie)
	}
	w.now = w.now.Add(auth.SessionLife - 14*(auth.SessionIdle-time.Second))
	if w.sessionWorks(used.Cookie) {
		t.Error("a session outlives its end")
	}
}

// Whatever changes what a person may do ends the sessions.
func TestWhatEndsSessions(t *testing.T) {
	yes, viewer, admin := true, auth.Viewer, auth.Admin
	for _, c := range []struct {
		name  string
		do    func(w *world, id string) error
		lives bool
	}{
		{"role", func(w *world, id string) error {
			_, err := w.UpdatePerson(w.t.Context(), w.caller(w.admin), id, auth.PersonChange{Role: &viewer})
			return err
		}, false},
		{"same role", func(w *world, id string) error {
			_, err := w.UpdatePerson(w.t.Context(), w.caller(w.admin), id, auth.PersonChange{Role: &admin})
			return err
		}, true},
		{"disabled", func(w *world, id string) error {
			_, err := w.UpdatePerson(w.t.Context(), w.caller(w.admin), id, auth.PersonChange{Disabled: &yes})
			return err
		}, false},
		{"password", func(w *world, id string) error { return w.SetPassword(w.t.Context(), w.ws, id, password+"!") }, false},
	} {
		w := newWorld(t)
		p := w.person("ada", auth.Admin)
		key, _, err := w.CreateKey(t.Context(), w.ws, "", p.ID, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		in := w.mustSignIn("ada")
		if err := c.do(w, p.ID); err != nil {
			t.Fatal(c.name, err)
		}
		if w.sessionWorks(in.Cookie) != c.lives {
			t.Errorf("%s: the session lives: %v", c.name, !c.lives)
		}
		if _, err := w.Authenticate(key); (err != nil) != (c.name == "disabled") {
			t.Errorf("%s: key: %v", c.name, err)
		}
	}
}

func TestLockout(t *testing.T) {
	w := newWorld(t)
	w.person("ada", auth.Admin)
	w.person("bob", auth.Admin)
	locked := func(err error) bool {
		f := fault.From(err)
		return f != nil && f.Class == fault.TooMany && f.Reason == "SIGN_IN_LOCKED" && f.Data["retry_after"].(int64) > 0
	}
	for i := range 5 {
		if _, err := w.signIn("ada", "wrong", "192.0.2.1"); locked(err) || err == nil {
			t.Fatalf("attempt %d: %v", i, err)
		}
	}
	if _, err := w.signIn("ada", password, "192.0.2.1"); !locked(err) {
		t.Errorf("the right password after five wrong ones: %v", err)
	}
	if _, err := w.signIn("ada", password, "192.0.2.2"); err != nil {
		t.Errorf("the account is locked from elsewhere at once: %v", err)
	}
	if _, err := w.signIn("bob", password, "192.0.2.1"); err != nil {
		t.Errorf("another account is locked: %v", err)
	}
	w.now = w.now.Add(15 * time.Minute)
	if _, err := w.signIn("ada", password, "192.0.2.1"); err != nil {
		t.Errorf("the lock does not end: %v", err)
	}
}

// Many addresses do not help against one account, many accounts not from one network.
func TestLockoutOfAccountAndNetwork(t *testing.T) {
	w := newWorld(t)
	w.person("ada", auth.Admin)
	count := func(attempt func(i int) error) (checked int) {
		for i := range 40 {
			if err := attempt(i); fault.Is(err, fault.Unauthenticated) {
				checked++
			} else if !fault.Is(err, fault.TooMany) {
				t.Fatal(err)
			}
		}
		return checked
	}
	if n := count(func(i int) error {
		_, err := w.signIn("ada", "wrong", "198.51.100."+string(rune('0'+i%10))+string(rune('0'+i/10)))
		return err
	}); n != 20 {
		t.Errorf("an account was tried %d times", n)
	}
	if n := count(func(i int) error {
		_, err := w.signIn("nobody"+string(rune('a'+i)), "wrong", "2001:db8::"+string(rune('0'+i%10)))
		return err
	}); n != 30 {
		t.Errorf("a network tried %d times", n)
	}
}

// Attempts side by side are no more than one after the other.
func TestLockoutHoldsForManyAtOnce(t *testing.T) {
	w := newWorld(t)
	w.person("ada", auth.Admin)
	var checked atomic.Int64
	var wg sync.WaitGroup
	for range 15 {
		wg.Go(func() {
			if _, err := w.signIn("ada", "wrong", "192.0.2.1"); fault.Is(err, fault.Unauthenticated) {
				checked.Add(1)
			}
		})
	}
	wg.Wait()
	if n := checked.Load(); n != 5 {
		t.Errorf("%d attempts were checked", n)
	}
}

func TestPasswordRules(t *testing.T) {
	w := newWorld(t)
	id := w.person("ada", auth.Admin).ID
	for _, c := range []struct {
		password string
		class    fault.Class
		ws       string
	}{
		{"short", fault.InvalidParams, w.ws}, {"", fault.InvalidParams, w.ws}, {strings.Repeat("x", 257), fault.InvalidParams, w.ws},
		{"not utf-8 \xff\xff\xff", fault.InvalidParams, w.ws}, {password, fault.NotFound, "other"},
	} {
		if err := w.SetPassword(t.Context(), c.ws, id, c.password); !fault.Is(err, c.class) {
			t.Errorf("%q: %v", c.password, err)
		}
	}
	if err := w.HasPassword(t.Context(), id, password, "192.0.2.1"); err != nil {
		t.Error(err)
	}
	if err := w.HasPassword(t.Context(), id, "wrong", "192.0.2.1"); !fault.Is(err, fault.Forbidden) {
		t.Error(err)
	}
}

func TestLastOwner(t *testing.T) {
	w := newWorld(t)
	owner := w.caller(w.admin)
	yes, viewer, top := true, auth.Viewer, auth.Owner
	for _, in := range []auth.PersonChange{{Role: &viewer}, {Disabled: &yes}, {Role: &viewer, Disabled: &yes}} {
		if _, err := w.UpdatePerson(t.Context(), owner, owner.PersonID, in); fault.From(err) == nil || fault.From(err).Reason != "LAST_OWNER" {
			t.Errorf("got %v", err)
		}
	}
	second := w.person("second", auth.Owner)
	if _, err := w.UpdatePerson(t.Context(), owner, second.ID, auth.PersonChange{Disabled: &yes}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.UpdatePerson(t.Context(), owner, owner.PersonID, auth.PersonChange{Role: &viewer}); !fault.Is(err, fault.Conflict) {
		t.Errorf("a disabled owner counts: %v", err)
	}
	if w.caller(w.admin).Role != auth.Owner {
		t.Error("the owner lost the role")
	}
	ada := w.person("ada", auth.Admin)
	admin := &auth.Caller{WorkspaceID: w.ws, PersonID: ada.ID, Role: auth.Admin}
	for _, c := range []struct {
		id string
		in auth.PersonChange
	}{{owner.PersonID, auth.PersonChange{Disabled: &yes}}, {ada.ID, auth.PersonChange{Role: &top}}} {
		if _, err := w.UpdatePerson(t.Context(), admin, c.id, c.in); !fault.Is(err, fault.Forbidden) {
			t.Errorf("an admin goes above: %v", err)
		}
	}
	if _, err := w.UpdatePerson(t.Context(), &auth.Caller{WorkspaceID: "other", Role: auth.Owner}, ada.ID, auth.PersonChange{Disabled: &yes}); !fault.Is(err, fault.NotFound) {
		t.Errorf("from another workspace: %v", err)
	}
}
