package catalog_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"doorward.dev/doorward/internal/policy"
)

// Whatever the server lists and in which order, a tool can be called only
// while its definition is the one that a person admitted last.
func TestOnlyAdmittedDefinitionsAreCalled(t *testing.T) {
	f := newFixture(t)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		s := f.register(fmt.Sprint("srv", n))
		f.list(s)
		s = f.approve(s)
		tools := []string{"a_read", "b_read"}
		listed, admitted := map[string]string{}, map[string]string{} // name -> version
		known := map[string]string{}                                 // last seen version, also of vanished tools
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			name := rapid.SampledFrom(tools).Draw(rt, "tool")
			switch rapid.SampledFrom([]string{"list", "list", "partial", "fail", "admit", "suggestions", "pause", "restart"}).Draw(rt, "step") {
			case "list", "partial":
				l := listing()
				next := map[string]string{}
				for _, name := range tools {
					if v := rapid.SampledFrom([]string{"", "1", "2"}).Draw(rt, "version"); v != "" {
						l.Tools = append(l.Tools, []byte(def(name, v)))
						next[name] = v
					}
				}
				if rapid.Bool().Draw(rt, "complete") {
					listed = next
				} else {
					l.Complete, l.Err = false, errors.New("page 2 failed")
					for name, v := range next {
						listed[name] = v
					}
				}
				for name, v := range next {
					known[name] = v
				}
				f.apply(s, l)
			case "fail":
				l := listing()
				l.Complete, l.Err = false, errors.New("down")
				f.apply(s, l)
			case "admit":
				if known[name] == "" {
					continue
				}
				_, err := f.c.Admit(f.ctx, ws, s.ID, f.tool(s, name).ID, "ALLOW", f.tool(s, name).Fingerprint, admin)
				if err == nil {
					admitted[name] = known[name]
				}
			case "suggestions":
				_, err := f.c.AdmitSuggestions(f.ctx, ws, s.ID, nil, admin)
				f.ok(err)
				for name, v := range listed {
					admitted[name] = v
				}
			case "pause":
				_, err := f.c.Pause(f.ctx, ws, s.ID, admin)
				f.ok(err)
				_, err = f.c.Resume(f.ctx, ws, s.ID, admin)
				f.ok(err)
			case "restart":
				f.restart()
			}
			for _, name := range tools {
				want := listed[name] != "" && listed[name] == admitted[name]
				if got := f.decide(s, name).Action == policy.Allow; got != want {
					rt.Fatalf("%s: callable %v, listed %v, admitted %v", name, got, listed, admitted)
				}
			}
		}
		f.ok(f.c.Remove(f.ctx, ws, s.ID))
	})
}

// Calls decide on a snapshot while it is replaced.
func TestConcurrentUse(t *testing.T) {
	f := newFixture(t)
	s := f.register("srv")
	f.list(s, def("read_x", "1"))
	s = f.approve(s, "read_x", "ALLOW")
	done := make(chan struct{})
	var readers, writers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				snapshot := f.c.Snapshot()
				for _, tool := range snapshot.Lookup(ws, "srv/read_x") {
					var facts = policy.Facts{AgentID: "agent-1", AgentState: "ACTIVE", Granted: true}
					snapshot.Facts(tool, "agent-1", &facts)
					if v := policy.Decide(&facts); v.Action == policy.Allow && string(tool.Definition) != def("read_x", "1") {
						t.Error("a definition that nobody admitted is allowed")
					}
					if err := tool.Schema.Check([]byte(`{"a":"x"}`)); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	for i := range 2 {
		writers.Go(func() {
			for j := range 10 {
				if _, err := f.c.ApplyListing(f.ctx, s.ID, listing(def("read_x", fmt.Sprint(1+(i+j)%2)))); err != nil {
					t.Error(err)
				}
				if err := f.c.Reload(f.ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
}
